package pair

import (
	"sync"
	"time"

	"longhaul/internal/carry/flow"
)

// probeLead is how long before the end of a far relay's certificate the near relay looks for its next one. The
// far relay may have had that for an hour, in which no lane was made.
const probeLead = 10 * time.Second

// validity is what is known of the certificates of a session that stands: flows go on when one has ended, but
// no new connection is made.
type validity struct {
	mu    sync.Mutex
	err   error // nil: none has ended
	since time.Time
	// Of a near session.
	shown   time.Time // end of this host's certificate that the far relay has seen last; zero: not known yet
	looked  time.Time // when a lane was last made for the sake of certificates
	looking bool
}

// now is since when new connections are refused, and why; nil: they are not, as far as is known.
func (v *validity) now() (since time.Time, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.since, v.err
}

func (v *validity) note(since time.Time, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.since, v.err = since, err
}

// lookAtCertificates finds certificates that have ended. The near relay makes a lane if one may be followed by
// another: when this host's was renewed, and from shortly before the end of the far one's. It does so too while
// the far relay refuses lanes for a key or a certificate, so that the end of that is seen.
func (s *session) lookAtCertificates(now time.Time) {
	own, peers := s.node.identity.Ends(s.host().key)
	switch {
	case !own.IsZero() && now.After(own):
		s.validity.note(own, problem(flow.PairCertificate, "this host's certificate has ended at %s: the other relay refuses new connections", own.UTC().Format(time.DateTime+" MST")))
	case !peers.IsZero() && now.After(peers):
		s.validity.note(peers, problem(flow.PairCertificate, "the certificate of %s has ended at %s, and it has shown no other one: new connections are refused",
			s.peerNow(), peers.UTC().Format(time.DateTime+" MST")))
	default:
		s.validity.note(time.Time{}, nil)
	}
	if !s.near || s.control() == nil {
		return
	}
	refused := refusesKeys(problemOf(s.unmade.why()))
	v := &s.validity
	v.mu.Lock()
	if v.shown.IsZero() {
		v.shown = own
	}
	renewed := !own.Equal(v.shown) && now.Before(own)
	due := (renewed || refused || !peers.IsZero() && peers.Sub(now) < probeLead) && !v.looking && now.Sub(v.looked) >= refusedEvery-tickEvery
	if due {
		v.looking, v.looked = true, now
	}
	v.mu.Unlock()
	if !due {
		return
	}
	s.link.refresh(s, func(err error) {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.looking = false; err == nil {
			v.shown = own
		}
	})
}

// refusal is since when a new connection of a session that stands is refused for a key or a certificate, and
// why; nil: none is, as far as is known.
func (s *session) refusal(now time.Time) (since time.Time, err error) {
	if since, err = s.validity.now(); err != nil || !s.near {
		return since, err
	}
	if since, err = s.unmade.now(); err != nil && refusesKeys(problemOf(err)) && now.Sub(since) > laneErrSettles {
		return since, err
	}
	return time.Time{}, nil
}

// refusesKeys reports whether a problem is that of a key or a certificate.
func refusesKeys(p flow.PairProblem) bool {
	return p == flow.PairKeyUnknown || p == flow.PairCertificate
}
