package pair_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

// setEnds sets when certificates end, this host's and that of its peers.
func (k *keyring) setEnds(own, peers time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ends = [2]time.Time{own, peers}
}

// renew has this host show another certificate, which ends when the former one does.
func (k *keyring) renew() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewals++
}

func (k *keyring) setRefuses(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuses = on
}

// TestCertificateEnds holds that a session takes no new flows, and says so, while the certificate of the far relay
// has ended or the far relay refuses that of the near one, although it stands and its flows go on. The near relay's
// own clock does not count for its own certificate.
func TestCertificateEnds(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	later, before := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	farSession := func() flow.Session { return s.far.State().Sessions[0] }
	is := func(what, state, farState string) {
		t.Helper()
		takes, problem := state == "up", flow.PairProblem("")
		if !takes {
			problem = flow.PairProblem(state)
		}
		nettest.Eventually(t, patience, func() bool {
			now, near, far := s.link.Taking(), s.session(), farSession()
			return now.Takes == takes && now.Problem == problem && near.Up && near.State() == state && far.Up && far.State() == farState
		}, func() string { return what + "\n" + s.dump() })
		s.roundTrip(c, what)
	}
	set := func(near, far time.Time) {
		s.nearKeys.setEnds(near, far)
		s.farKeys.setEnds(far, near)
	}
	set(later, later)
	is("both certificates are valid", "up", "up")
	set(later, before)
	is("that of the far relay has ended", "certificate", "certificate")
	if at := s.link.Taking().Since; !at.Equal(before) {
		t.Errorf("flows are not taken since %v, and the certificate ended at %v", at, before)
	}
	set(later, later.Add(time.Hour))
	is("it has another one", "up", "up")
	looked := s.link.Looked()
	s.nearKeys.setEnds(before, later)
	nettest.Eventually(t, patience, func() bool { return s.link.Looked().After(looked) }, s.dump)
	is("that of the near relay has ended by its own clock", "up", "up")
	s.farKeys.setRefuses(true)
	s.farKeys.setEnds(later, before)
	is("it has by that of the far relay", "key-unknown", "certificate")
	s.farKeys.setRefuses(false)
	set(later, later)
	is("both have others", "up", "up")
}

// TestRefusedLanes holds that a near relay whose own certificate was renewed shows that at once, though it needs
// no lane and the next one ends in the same second, and that it takes no new flows while the far one refuses it.
func TestRefusedLanes(t *testing.T) {
	t.Parallel()
	s, c := greeted(t)
	nettest.Eventually(t, patience, func() bool { return s.session().LanesWarm == 2 }, s.dump)
	state := func() string {
		one := s.session()
		return one.State()
	}
	later := time.Now().Add(time.Hour)
	s.nearKeys.setEnds(later, later)
	nettest.Eventually(t, patience, s.link.SeesCertificates, s.dump)
	s.farKeys.setRefuses(true)
	s.nearKeys.renew()
	nettest.Eventually(t, patience, func() bool {
		now := s.link.Taking()
		return !now.Takes && now.Problem == flow.PairKeyUnknown && state() == "key-unknown"
	}, s.dump)
	if one := s.session(); !one.Up || one.LanesWarm != 2 {
		t.Errorf("the session is %+v", one)
	}
	s.roundTrip(c, "refused meanwhile")
	s.farKeys.setRefuses(false)
	nettest.Eventually(t, patience, func() bool { return s.link.Taking().Takes && state() == "up" }, s.dump)
	if n := s.session().LanesWarm; n != 2 {
		t.Errorf("%d lanes are warm", n)
	}
}

// TestHostStaysKnown holds that a link names its host while that is away, as an operator does who takes it back
// into service: the one of an earlier session or process.
func TestHostStaysKnown(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	nettest.Eventually(t, patience, func() bool { return s.link.Taking().Host == "far" }, s.dump)
	s.change(func(l *pair.LinkOptions) { // another session
		l.Resume, l.NoResume = 0, true
		l.Addresses = func(context.Context) ([]netip.AddrPort, error) { return nil, errors.New("nowhere") }
	})
	if host := s.link.Taking().Host; host != "far" {
		t.Errorf("the host of a session that is away is %q", host)
	}
	o := s.way
	o.Tunnel, o.Stood, o.Host = "next", true, "far/b1"
	next := s.near.Link(o)
	defer next.Close()
	if host := next.Taking().Host; host != "far/b1" {
		t.Errorf("the host of the process before is %q", host)
	}
}
