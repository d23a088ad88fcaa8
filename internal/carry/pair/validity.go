package pair

import (
	"crypto/sha256"
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
	shown   [sha256.Size]byte // of this host's certificate that the far relay has seen last; zero: not known yet
	looked  time.Time         // when a lane was last made for the sake of certificates
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

// look finds certificates that have ended, of a near session only the far relay's: that the own one has, the far
// relay says by its clock, and this host's may be ahead. A zero time is no end.
func (v *validity) look(own, peers time.Time, peer string, near bool, now time.Time) {
	const form = time.DateTime + " MST"
	switch {
	case !near && !own.IsZero() && now.After(own):
		v.note(own, problem(flow.PairCertificate, "this host's certificate has ended at %s: the other relay refuses new connections", own.UTC().Format(form)))
	case !peers.IsZero() && now.After(peers):
		v.note(peers, problem(flow.PairCertificate, "the certificate of %s has ended at %s, and it has shown no other one: new connections are refused",
			peer, peers.UTC().Format(form)))
	default:
		v.note(time.Time{}, nil)
	}
}

// begin reports that the near relay is to make a lane, since a certificate may be followed by another: when this
// host's was renewed or has ended, and from shortly before the end of the far one's. While lanes are refused for a
// key or a certificate it is so too, so that the end of that is seen. ended follows.
func (v *validity) begin(shows [sha256.Size]byte, own, peers time.Time, refused bool, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shown == [sha256.Size]byte{} {
		v.shown = shows
	}
	renewed := shows != v.shown && now.Before(own)
	over := !own.IsZero() && now.After(own)
	soon := !peers.IsZero() && peers.Sub(now) < probeLead
	if !renewed && !over && !soon && !refused || v.looking || now.Sub(v.looked) < refusedEvery-tickEvery {
		return false
	}
	v.looking, v.looked = true, now
	return true
}

// ended takes the news of the lane that begin has asked for.
func (v *validity) ended(shows [sha256.Size]byte, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.looking = false; err == nil {
		v.shown = shows
	}
}

// refusesKeys reports whether a problem is that of a key or a certificate.
func refusesKeys(p flow.PairProblem) bool {
	return p == flow.PairKeyUnknown || p == flow.PairCertificate
}
