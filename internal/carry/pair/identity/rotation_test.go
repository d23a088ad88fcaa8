package identity

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/carry/pair/preface"
	"longhaul/test/nettest"
)

// session does what two nodes do about keys over a session that stands.
func session(t *testing.T, from *Store, peerName string, to *Store, fromName string) {
	t.Helper()
	key := from.Announced(peerName)
	if key == nil {
		t.Fatalf("nothing is announced to %s", peerName)
	}
	passLearnPause(to)
	nettest.Must(t, to.Learn(fromName, key))
	nettest.Must(t, to.Learn(fromName, key)) // again, over another session
	nettest.Must(t, from.Taken(peerName, key))
	nettest.Must(t, from.Taken(peerName, key))
}

// passLearnPause makes a store forget when it learnt keys, as LearnPause does.
func passLearnPause(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learnt = nil
}

// checkMeet holds that two stores can connect, both ways, with the key that each end
// expects in the preface.
func checkMeet(t *testing.T, when string, a, b *Store) {
	t.Helper()
	for _, way := range []struct {
		near, far *Store
		peer      string
	}{{a, b, "b"}, {b, a, "a"}} {
		first := preface.Preface{Kind: preface.Lane}.Append(nil, way.near.PeerKeys(way.peer)[0])
		if _, verdict := preface.Recognize(first, way.far.PublicKeys()...); verdict != preface.Yes {
			t.Errorf("%s, to %s: the preface is not recognised", when, way.peer)
		}
		if r := shake(t, clientTLS(t, way.near, way.peer), way.far.ServerTLS(nil)); r.clientErr != nil || r.serverErr != nil {
			t.Errorf("%s, to %s: client %v, server %v", when, way.peer, r.clientErr, r.serverErr)
		}
	}
}

func TestRotation(t *testing.T) {
	nettest.CheckLeaks(t)
	a, b := newPair(t)
	c := newStore(t)
	pin(t, a, "c", own(t, c))
	pin(t, c, "a", own(t, a))
	old := own(t, a)

	if key := a.Announced("b"); key != nil {
		t.Errorf("%x is announced without a rotation", key)
	}
	r, err := a.Rotate()
	if err != nil || !r.Started || r.Old != old || r.New == old || !slices.Equal(r.Waiting, []string{"b", "c"}) {
		t.Fatalf("rotation %+v, %v", r, err)
	}
	checkMeet(t, "announced to nobody", a, b)
	again, err := a.Rotate()
	if err != nil || again.Started || again.New != r.New || again.Old != old {
		t.Errorf("a second rotation: %+v, %v", again, err)
	}
	inUse, next, _, err := a.Key()
	if err != nil || inUse != old || next != r.New {
		t.Errorf("key in use %v, next %v, %v", inUse.Short(), next.Short(), err)
	}

	session(t, a, "b", b, "a")
	if a.Announced("b") != nil || a.Announced("c") == nil || a.Announced("nobody") != nil {
		t.Error("announced to who has it, or not to who lacks it")
	}
	if got := peer(t, b, "a").Keys; !slices.Equal(got, []PublicKey{r.New, old}) {
		t.Errorf("b has the keys %v", got)
	}
	checkMeet(t, "one has it", a, b)
	if own(t, a) != old {
		t.Error("the old key is dropped before all have the new one")
	}

	session(t, a, "c", c, "a")
	inUse, next, _, err = a.Key()
	if err != nil || inUse != r.New || !next.IsZero() {
		t.Errorf("in the end: key in use %v, next %v, %v", inUse.Short(), next.Short(), err)
	}
	checkMeet(t, "all have it", a, b)
	checkMeet(t, "used", a, b)
	if got := peer(t, b, "a").Keys; !slices.Equal(got, []PublicKey{r.New}) {
		t.Errorf("b has the keys %v after a has used its new one", got)
	}
	if got := peer(t, c, "a").Keys; !slices.Equal(got, []PublicKey{r.New, old}) {
		t.Errorf("c has the keys %v before a has used its new one", got)
	}

	// The next rotation may begin while c still has both.
	second, err := a.Rotate()
	nettest.Must(t, err)
	session(t, a, "c", c, "a")
	if got := peer(t, c, "a").Keys; !slices.Equal(got, []PublicKey{second.New, r.New}) {
		t.Errorf("c has the keys %v after the next rotation", got)
	}
	session(t, a, "b", b, "a")
	checkMeet(t, "the next rotation", a, b)
}

// TestBothRotate holds that both hosts of a pair may rotate at the same time.
func TestBothRotate(t *testing.T) {
	a, b := newPair(t)
	for _, s := range []*Store{a, b} {
		_, err := s.Rotate()
		nettest.Must(t, err)
	}
	checkMeet(t, "both rotate", a, b)
	session(t, a, "b", b, "a")
	checkMeet(t, "one has rotated", a, b)
	session(t, b, "a", a, "b")
	checkMeet(t, "both have rotated", a, b)
	for name, s := range map[string]*Store{"a": b, "b": a} {
		if keys := peer(t, s, name).Keys; len(keys) != 1 {
			t.Errorf("%d keys of %s are left", len(keys), name)
		}
	}
}

func TestRotationWithoutPeers(t *testing.T) {
	s := newStore(t)
	old := own(t, s)
	r, err := s.Rotate()
	if err != nil || !r.Started || !r.Old.IsZero() || len(r.Waiting) > 0 || own(t, s) != r.New || r.New == old {
		t.Errorf("without peers: %+v, %v", r, err)
	}
	pin(t, s, "b", testKey(1).public())
	_, err = s.Rotate()
	nettest.Must(t, err)
	if own(t, s) != r.New {
		t.Error("the old key is dropped")
	}
	nettest.Must(t, s.Remove("b"))
	if own(t, s) == r.New {
		t.Error("the last peer without the new key is gone, and the old key is not")
	}
}

// TestRotateNow holds that a stolen key can be dropped at once.
func TestRotateNow(t *testing.T) {
	a, b := newPair(t)
	stolen := clientTLS(t, a, "b")
	r, err := a.RotateNow()
	if err != nil || !r.Started || !slices.Equal(r.Waiting, []string{"b"}) || own(t, a) != r.New {
		t.Fatalf("rotation %+v, %v", r, err)
	}
	if r := shake(t, clientTLS(t, a, "b"), b.ServerTLS(nil)); !IsKeyUnknown(r.serverErr) {
		t.Errorf("a peer without the new key: %v", r.serverErr)
	}
	nettest.Must(t, b.Remove("a"))
	pin(t, b, "a", r.New)
	checkMeet(t, "paired again", a, b)
	if r := shake(t, stolen, b.ServerTLS(nil)); !IsKeyUnknown(r.serverErr) {
		t.Errorf("the stolen key: %v", r.serverErr)
	}

	// In a rotation, those that have the new key stay.
	_, err = a.Rotate()
	nettest.Must(t, err)
	nettest.Must(t, b.Learn("a", a.Announced("b")))
	key := a.Announced("b")
	r, err = a.RotateNow()
	if err != nil || r.Started || !bytes.Equal(r.New[:], key) {
		t.Errorf("the end of a rotation: %+v, %v", r, err)
	}
	checkMeet(t, "ended at once", a, b)
}

// TestRefusedKeysTouchNoFile holds that keys which are refused, announced or taken, cost
// neither the lock nor a look at a file, and that a peer changes its keys once in
// LearnPause. The directory is away meanwhile: whoever looks finds that out.
func TestRefusedKeysTouchNoFile(t *testing.T) {
	a, b := newPair(t)
	pin(t, b, "c", testKey(1).public())
	synctest.Test(t, func(t *testing.T) { // its time stands still meanwhile
		first, second, theirs, mine := testKey(2).public(), testKey(3).public(), testKey(1).public(), own(t, b)
		b.forget()
		nettest.Must(t, b.Learn("a", first[:]))
		if got, want := peer(t, b, "a").Keys, []PublicKey{first, own(t, a)}; !slices.Equal(got, want) {
			t.Fatalf("a has the keys %v", got)
		}
		before := fileMarks(t, b)
		away := b.dir + ".away"
		nettest.Must(t, os.Rename(b.dir, away))
		var taken *TakenError
		for range 3 {
			for name, refused := range map[string]struct {
				err  error
				want func(error) bool
			}{
				"a second key":              {b.Learn("a", second[:]), func(err error) bool { return errors.Is(err, ErrTooSoon) }},
				"another peer's":            {b.Learn("a", theirs[:]), func(err error) bool { return errors.As(err, &taken) }},
				"a claim of another peer":   {b.Learn("c", first[:]), func(err error) bool { return errors.As(err, &taken) }},
				"this host's":               {b.Learn("c", mine[:]), func(err error) bool { return strings.Contains(err.Error(), "the key of this host") }},
				"of nobody":                 {b.Learn("d", second[:]), func(err error) bool { return errors.Is(err, ErrNoPeer) }},
				"taken, and not announced":  {b.Taken("a", second[:]), func(err error) bool { return strings.Contains(err.Error(), "not announced") }},
				"taken by nobody":           {b.Taken("d", mine[:]), func(err error) bool { return errors.Is(err, ErrNoPeer) }},
				"the same key, learnt":      {b.Learn("a", first[:]), func(err error) bool { return err == nil }},
				"the former key, as before": {b.Learn("a", peer(t, b, "a").Keys[1][:]), func(err error) bool { return err == nil }},
			} {
				if err := refused.err; !refused.want(err) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if _, err := os.Stat(b.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("somebody has made the directory again: %v", err)
		}
		nettest.Must(t, os.Rename(away, b.dir))
		if after := fileMarks(t, b); after != before {
			t.Errorf("files were written: %v, %v before", after, before)
		}
		time.Sleep(LearnPause - time.Nanosecond)
		if err := b.Learn("a", second[:]); !errors.Is(err, ErrTooSoon) {
			t.Errorf("just before the pause has passed: %v", err)
		}
		time.Sleep(time.Nanosecond)
		nettest.Must(t, b.Learn("a", second[:]))
		if got := peer(t, b, "a").Keys; !slices.Equal(got, []PublicKey{second, first}) {
			t.Errorf("a has the keys %v after the pause", got)
		}
	})
}

func fileMarks(t *testing.T, s *Store) [3]mark {
	t.Helper()
	marks, err := s.stat()
	nettest.Must(t, err)
	return marks
}

// TestClaimedKeys holds who gets a key that a peer has only announced: the host that
// proves to have it, or that the administrator gives it to. A key that a peer has used,
// or its only one, stays its own.
func TestClaimedKeys(t *testing.T) {
	for _, c := range []struct {
		name  string
		used  bool // the thief has shown the key
		only  bool // it is the thief's only one
		taken bool
	}{
		{"announced", false, false, false},
		{"announced and used", true, false, true},
		{"the only key", false, true, true},
	} {
		for _, way := range []string{"a join", "a join of the host that claims are made to", "by hand"} {
			host, b := newStore(t), newStore(t)
			key, former := own(t, host), testKey(9).public()
			if c.only {
				pin(t, b, "thief", key)
			} else {
				pin(t, b, "thief", former)
				nettest.Must(t, b.Learn("thief", key[:]))
			}
			if c.used {
				nettest.Must(t, b.settle("thief", key))
			}
			var err error
			switch way {
			case "a join":
				address, results := serveJoins(t, b)
				_, err = host.Join(t.Context(), invite(t, b, "site-a", address), "")
				<-results
			case "a join of the host that claims are made to":
				address, results := serveJoins(t, host)
				_, err = b.Join(t.Context(), invite(t, host, "b", address), "site-a")
				if err == nil {
					<-results
				}
			default:
				_, err = b.Pin("site-a", key)
			}
			if c.taken {
				if thief := peer(t, b, "thief"); err == nil || !slices.Contains(thief.Keys, key) {
					t.Errorf("%s, %s: %v, the thief has %v", way, c.name, err, thief.Keys)
				}
				continue
			}
			nettest.Must(t, err)
			if thief, site := peer(t, b, "thief"), peer(t, b, "site-a"); !slices.Equal(thief.Keys, []PublicKey{former}) || !slices.Equal(site.Keys, []PublicKey{key}) {
				t.Errorf("%s, %s: the thief has %v, the host %v", way, c.name, thief.Keys, site.Keys)
			}
		}
	}
}

// TestUnprovedClaims holds that of two claims the first stays: a join proves one key only.
func TestUnprovedClaims(t *testing.T) {
	host, b := newStore(t), newStore(t)
	pin(t, host, "other", testKey(8).public())
	r, err := host.Rotate()
	nettest.Must(t, err)
	pin(t, b, "thief", testKey(9).public())
	nettest.Must(t, b.Learn("thief", r.New[:]))
	address, results := serveJoins(t, b)
	_, err = host.Join(t.Context(), invite(t, b, "site-a", address), "")
	checkMistake(t, err, address+" refuses: it has this host's key already, under another name")
	<-results
	if keys := peer(t, b, "thief").Keys; len(keys) != 2 {
		t.Errorf("the thief has %v", keys)
	}
}

func TestLearnRefuses(t *testing.T) {
	a, b := newPair(t)
	pin(t, b, "c", testKey(1).public())
	theirs, mine, good := testKey(1).public(), own(t, b), testKey(2).public()
	var taken *TakenError
	if err := b.Learn("a", theirs[:]); !errors.As(err, &taken) {
		t.Errorf("the key of another peer: %v", err)
	}
	for name, err := range map[string]error{
		"a key of b itself":        b.Learn("a", mine[:]),
		"a short key":              b.Learn("a", good[:31]),
		"no key":                   b.Learn("a", nil),
		"zero":                     b.Learn("a", make([]byte, 32)),
		"of nobody":                b.Learn("nobody", good[:]),
		"taken without a rotation": a.Taken("b", good[:]),
		"taken by nobody":          a.Taken("nobody", mine[:]),
		"taken, too short":         a.Taken("b", nil),
	} {
		if err == nil {
			t.Errorf("%s is stored", name)
		}
	}
	if keys := peer(t, b, "a").Keys; len(keys) != 1 {
		t.Errorf("a has the keys %v", keys)
	}
}

// TestRotationIsNotCutBySessions holds that a configuration made before a rotation works
// through it: handshakes take time.
func TestRotationIsNotCutBySessions(t *testing.T) {
	a, b := newPair(t)
	before := []*tls.Config{clientTLS(t, a, "b"), b.ServerTLS(nil)}
	_, err := a.Rotate()
	nettest.Must(t, err)
	_, err = b.Rotate()
	nettest.Must(t, err)
	if r := shake(t, before[0], before[1]); r.clientErr != nil || r.serverErr != nil {
		t.Errorf("client %v, server %v", r.clientErr, r.serverErr)
	}
}
