package pair

import (
	"errors"
	"log/slog"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

// mode is how the lanes of a session carry flows. It never changes: a link whose
// options change begins another session.
type mode struct {
	clear    bool // lanes go on in clear behind their handshake
	noResume bool // a flow ends with its lane
	compress bool // the near end wants compressed records; an older far end knows none
}

const modeFeatures = wire.FeatureClear | wire.FeatureNoResume

var errNoResume = errors.New("the lane was lost, and flows of this pair do not resume")

func (o LinkOptions) mode() mode {
	return mode{o.Clear, o.NoResume, o.Compress && !(o.Clear && o.NoResume)} // what is spliced nobody looks at
}

func modeOf(f wire.Features) mode {
	return mode{f&wire.FeatureClear != 0, f&wire.FeatureNoResume != 0, f&wire.FeatureCompress != 0}
}

func (m mode) features() (f wire.Features) {
	if m.clear {
		f |= wire.FeatureClear | wire.FeatureSealed | wire.FeatureSums
	}
	if m.noResume {
		f |= wire.FeatureNoResume
	}
	if m.compress {
		f |= wire.FeatureCompress
	}
	return f
}

// sealedWith reports whether lanes of the mode carry no OPEN and no END, since the other end knows
// how.
func (m mode) sealedWith(h wire.Hello) bool { return m.clear && h.Features&wire.FeatureSealed != 0 }

// summedWith reports whether frames of the mode's lanes have sums, since the other end knows how.
func (m mode) summedWith(h wire.Hello) bool { return m.clear && h.Features&wire.FeatureSums != 0 }

// agreed reports why an answer does not have what the near end wants; nil: it has. A
// far relay of this release has refused already; an older one leaves features out.
func agreed(want, got wire.Features) error {
	switch missing := want & modeFeatures &^ got; {
	case missing&wire.FeatureClear != 0:
		return problem(flow.PairEncrypt, "this relay has encrypt: off, the other one encrypts")
	case missing != 0:
		return problem(flow.PairVersion, "the other relay does not know resume: off")
	}
	return nil
}

// encryptRefusal is why a far tunnel refuses a peer that wants it otherwise.
func encryptRefusal(peer string, theirs, ours bool, tunnel string) error {
	words := map[bool]string{true: "off", false: "on"}
	return problem(flow.PairEncrypt, "peer %s has encrypt: %s, tunnel %s has encrypt: %s", peer, words[theirs], tunnel, words[ours])
}

func (s *session) isStale() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale
}

// setStale notes why the session is to take no new flows, which is a change of the far
// tunnel; empty: it may. A stale one keeps its flows on the lanes that they have. DRAIN makes
// the near relay begin another session.
func (s *session) setStale(why string) {
	s.mu.Lock()
	fresh := why != "" && !s.stale
	s.stale = why != ""
	s.mu.Unlock()
	if fresh {
		s.tell(slog.LevelInfo, why, nil)
		s.message(wire.Message{Type: wire.MessageDrain})
	}
}
