package daemon

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// status is the state of the pairs; nil if no tunnel was ever paired.
func (p *pairs) status() *flow.Pairs {
	p.mu.Lock()
	node, places := p.node, p.current.places()
	p.mu.Unlock()
	if node == nil {
		return nil
	}
	s := node.State()
	putIntoWords(s.Sessions)
	keys := p.keys.Load()
	if err := keys.Problem(); err != nil {
		s.KeysProblem = err.Error()
	}
	if t := keys.Trust(); t != nil {
		own := t.Own()
		s.Certificate = &flow.Certificate{Name: trust.NameOf(own), From: own.NotBefore, Until: t.OwnUntil()}
	}
	places.sort(s.Sessions)
	return &s
}

// hopPlaces are the places of hops in forward, by tunnel and hop.
type hopPlaces map[[2]string]int

func (t *tunnelPairs) places() hopPlaces {
	all := hopPlaces{}
	for tunnel, near := range t.near {
		for i := range near.hops {
			all[[2]string{tunnel, near.hops[i].options.Hop}] = i
		}
	}
	return all
}

// sort orders sessions by tunnel, and those of a near tunnel as forward does. Those of a hop that was
// removed come last.
func (p hopPlaces) sort(all []flow.Session) {
	place := func(s flow.Session) int {
		if i, has := p[[2]string{s.Tunnel, s.Hop}]; has {
			return i
		}
		return math.MaxInt
	}
	sorted.By(all, func(a, b flow.Session) int {
		return cmp.Or(cmp.Compare(a.Tunnel, b.Tunnel), cmp.Compare(place(a), place(b)), cmp.Compare(a.Hop, b.Hop),
			cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Instance, b.Instance))
	})
}

// ends are errors of a lost session that say nothing to a reader, and what they mean.
var ends = map[string]string{
	io.EOF.Error():              "the other relay's process has ended, or has closed the connection",
	io.ErrUnexpectedEOF.Error(): "the other relay's process has ended, or has closed the connection",
}

func inWords(text string) string { return cmp.Or(ends[text], text) }

func putIntoWords(sessions []flow.Session) {
	for i := range sessions {
		s := &sessions[i]
		s.Error = inWords(s.Error)
		for k := range s.Paths {
			s.Paths[k].Error = inWords(s.Paths[k].Error)
		}
	}
}

const (
	pairWatch      = 250 * time.Millisecond // between two looks at the sessions
	problemSettles = time.Second            // until the log tells why a session does not stand
	strangersPause = 10 * time.Second       // between two lines about connections that are no session's
)

// watched is a session as the log last told of it.
type watched struct {
	flow.Session
	down time.Time // since when it does not stand
	told flow.PairProblem
}

type sessionKey struct{ peer, tunnel, number string }

// watch logs every change of a session's state until the pairs are closed.
func (p *pairs) watch(node *pair.Node) {
	tick := time.NewTicker(pairWatch)
	defer tick.Stop()
	known := map[sessionKey]*watched{}
	strangers, strangersAt := map[flow.PairProblem]int64{}, time.Time{}
	trusted, refusals := &trustWatch{pairs: p}, refusedCertificates{}
	for {
		var now time.Time
		select {
		case <-p.life.Done():
			return
		case now = <-tick.C:
		}
		p.lines.Flush()
		state := node.Overview()
		putIntoWords(state.Sessions)
		p.watchSessions(known, state.Sessions, now)
		p.noteStates(state.Sessions)
		refusals.note(p.note, state.Refused, now)
		trusted.look(now)
		if now.Sub(strangersAt) >= strangersPause && !maps.Equal(strangers, state.Strangers) {
			for problem, n := range state.Strangers {
				if more := n - strangers[problem]; more > 0 {
					p.log.Warn("pair: connections are part of no session", "problem", string(problem), "connections", more)
				}
			}
			strangers, strangersAt = state.Strangers, now
		}
	}
}

// refusedCertificates makes events of certificates that far tunnels refuse, by tunnel: when it was last.
type refusedCertificates map[string]time.Time

// refusalLasts is how long a tunnel refuses certificates after the last one: a near relay tries each 2 s.
const refusalLasts = 30 * time.Second

// The states of a tunnel's certificates in events.
const (
	certificatesPass    = "no refusal"
	certificatesRefused = "refused"
)

// note takes the last refusal of all; nil: there was none.
func (all refusedCertificates) note(note func(kind, tunnel, name, state, detail string), last *flow.RefusedCertificate, now time.Time) {
	if last != nil && now.Sub(last.At) < refusalLasts {
		if all[last.Tunnel].IsZero() {
			note(flow.EventCertificate, last.Tunnel, "", certificatesPass, "")
		}
		all[last.Tunnel] = last.At
		note(flow.EventCertificate, last.Tunnel, "", certificatesRefused, fmt.Sprintf("from %s: %s", last.Source, last.Error))
	}
	for tunnel, at := range all {
		if now.Sub(at) >= refusalLasts {
			note(flow.EventCertificate, tunnel, "", certificatesPass, "")
			delete(all, tunnel)
		}
	}
}

func (p *pairs) watchSessions(known map[sessionKey]*watched, sessions []flow.Session, now time.Time) {
	here := map[sessionKey]bool{}
	for _, s := range sessions {
		key := sessionKey{s.Peer, s.Tunnel, s.Session}
		if s.End == flow.NearEnd {
			key.peer = "" // the number is this process's own, and a site's host is not known at first
		}
		here[key] = true
		was := known[key]
		if was == nil {
			was = &watched{down: now}
			known[key] = was
		}
		p.tell(was, s, now)
	}
	for key, was := range known {
		if !here[key] {
			delete(known, key)
			p.sessionLine(slog.LevelInfo, "session ended", was.Session)
		}
	}
}

// noteStates notes the states of pairs and their paths. Several sessions with a paired relay are
// one pair: one that is up and takes flows counts, or else one whose new connections are refused, or else one that is
// up, or else the latest.
func (p *pairs) noteStates(sessions []flow.Session) {
	type key struct{ tunnel, peer string }
	pairs := map[key]flow.Session{}
	for _, s := range sessions {
		k := key{s.Tunnel, s.Peer}
		if was, has := pairs[k]; !has || countsBefore(s, was) {
			pairs[k] = s
		}
	}
	for _, s := range pairs {
		p.note(flow.EventPair, s.Tunnel, s.Peer, s.State(), cmp.Or(s.Error, s.LaneError))
		for _, path := range s.Paths {
			p.note(flow.EventPath, s.Tunnel, path.Path, path.State(), path.Error)
		}
	}
}

// countsBefore orders the sessions of a pair, whichever way they are listed.
func countsBefore(one, other flow.Session) bool {
	rank := func(s flow.Session) int {
		switch {
		case s.Up && !s.Draining && !s.Refused():
			return 0
		case s.Up && !s.Draining:
			return 1
		case s.Up:
			return 2
		}
		return 3
	}
	return cmp.Or(cmp.Compare(rank(one), rank(other)), other.Since.Compare(one.Since), cmp.Compare(one.Session, other.Session)) < 0
}

// tell logs how a session has changed, and remembers it.
func (p *pairs) tell(was *watched, s flow.Session, now time.Time) {
	failure, flows := slog.String("error", s.Error), slog.Int("flows", s.Flows)
	rtt := slog.Float64("rtt_seconds", s.RTT.Seconds())
	switch {
	case s.Up && !was.Up:
		p.sessionLine(slog.LevelInfo, "session up", s, slog.String("release", s.Release), rtt)
		if !s.Encrypted {
			p.sessionLine(slog.LevelWarn, flow.ClearWarning, s)
		}
		if s.EndsInClear {
			p.sessionLine(slog.LevelWarn, flow.ClearEndsWarning, s)
		}
		if s.HeadsUnchecked {
			p.sessionLine(slog.LevelWarn, flow.ClearHeadsWarning, s)
		}
		if s.OnePort {
			p.sessionLine(slog.LevelWarn, flow.OnePortWarning, s)
		}
		was.told = ""
	case s.Up && was.Up && !s.Since.Equal(was.Since):
		p.sessionLine(slog.LevelInfo, "session up again, at once", s, rtt, flows)
	case !s.Up && was.Up && s.Error == "" && s.Flows == 0:
		// This host has closed the session, as when a reload has replaced it.
		was.down = now
	case !s.Up && was.Up:
		p.sessionLine(slog.LevelWarn, "session lost", s, failure, flows)
		was.down = now
	case !s.Up && s.End == flow.NearEnd && s.Problem != was.told && now.Sub(was.down) >= problemSettles:
		p.sessionLine(slog.LevelWarn, "no session: "+string(s.Problem), s, failure, slog.String("remedy", s.Remedy()))
		was.told = s.Problem
	case s.Up && s.Draining && !was.Draining:
		p.sessionLine(slog.LevelInfo, "the other relay takes no new flows", s)
	case s.Up && s.LaneError != "" && was.LaneError == "":
		p.sessionLine(slog.LevelWarn, "no new lane", s, slog.String("error", s.LaneError), slog.String("remedy", s.Remedy()))
	case s.Up && s.LaneError == "" && was.LaneError != "":
		p.sessionLine(slog.LevelInfo, "new lanes again", s)
	}
	if s.Twin && !was.Twin {
		p.sessionLine(slog.LevelWarn, flow.TwinWarning, s)
	}
	was.Session = s
}

// sessionBurst is the number of lines of a kind about one tunnel of a peer in a
// [loglimit.Pause]. An outage of a path may honestly cause some.
const sessionBurst = 5

// sessionLine writes a line about a session. A peer may begin and end sessions as fast as
// it likes, so few are written.
func (p *pairs) sessionLine(level slog.Level, what string, s flow.Session, more ...slog.Attr) {
	attrs := []slog.Attr{slog.String("peer", s.Peer), slog.String("tunnel", s.Tunnel), slog.String("session", s.Session)}
	if s.Remote.IsValid() {
		attrs = append(attrs, slog.String("remote", s.Remote.String()))
	}
	p.lines.LogBurst(sessionBurst, level, "pair: "+what, []string{"peer", "tunnel"}, append(attrs, more...)...)
}

// problemOf waits until a near tunnel has a session for new flows, or a reason for having none. hop names
// one of several.
func (p *pairs) problemOf(ctx context.Context, tunnel, hop string) (flow.Session, error) {
	tick := time.NewTicker(pairWatch / 5)
	defer tick.Stop()
	var last flow.Session
	for {
		if s := p.status(); s != nil {
			if one, has := takesFlows(s.Sessions, tunnel, hop); has {
				last = one
			}
		}
		if last.Up || last.Problem != "" {
			return last, nil
		}
		select {
		case <-ctx.Done():
			return last, remedy.New(fmt.Errorf("the pair of tunnel %s has no session yet, and no reason for it", tunnel), "check again")
		case <-tick.C:
		}
	}
}

// takesFlows is the session of a near tunnel, or of one of its hops, that takes its new flows, or is to: a session that drains
// only keeps its old ones.
func takesFlows(sessions []flow.Session, tunnel, hop string) (found flow.Session, has bool) {
	for _, s := range sessions {
		if s.Tunnel != tunnel || s.Hop != hop || s.End != flow.NearEnd || s.Draining {
			continue
		}
		if !has || countsBefore(s, found) {
			found, has = s, true
		}
	}
	return found, has
}
