package identity

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"longhaul/internal/carry/pair/preface"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// TestJoinWithoutInvitation holds that a join is a stranger's connection unless an
// invitation can be used, and only that one's.
func TestJoinWithoutInvitation(t *testing.T) {
	b := newStore(t)
	check := func(when string, first []byte, want preface.Verdict) {
		t.Helper()
		if _, got := b.Recognize(first); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	key := own(t, b)
	byKey := preface.Preface{Kind: preface.Join}.Append(nil, key[:])
	lane := preface.Preface{Kind: preface.Lane}.Append(nil, key[:])
	check("no invitation", byKey, preface.No)
	inv := invite(t, b, "site-a", "b:6000")
	check("with one", inv.preface(), preface.Yes)
	check("with one, for the host's key", byKey, preface.No)
	check("a lane", lane, preface.Yes)
	age(t, b, InvitationLife+2*time.Second)
	check("expired", inv.preface(), preface.No)
	other := invite(t, b, "site-c", "b:6000")
	check("expired, while another is good", inv.preface(), preface.No)
	check("the other", other.preface(), preface.Yes)
	again := invite(t, b, "site-c", "b:6000")
	check("replaced", other.preface(), preface.No)

	use := func(key PublicKey) {
		nettest.Must(t, b.change(func(c *changing) error {
			c.invitations.find(again.signer().public()).used = key
			return nil
		}))
	}
	pin(t, b, "site-c", testKey(5).public())
	use(testKey(5).public())
	check("used, and its answer may be lost", again.preface(), preface.Yes)
	nettest.Must(t, b.Remove("site-c"))
	check("used by a peer that was removed", again.preface(), preface.No)
	use(PublicKey{})
	check("not used after all", again.preface(), preface.Yes)

	rewrite(t, b, invitationsFile, "damaged\n", 0o600)
	b.forget()
	check("damaged", again.preface(), preface.No)
	check("a lane beside damaged invitations", lane, preface.Yes)
	checkMistake(t, b.Problem(), "the file "+b.dir+"/invitations is damaged: line 1: 1 words, want verifier, name, time and used=KEY")
}

// TestJoinPrefaceIsGoodOnce holds that a recorded preface is a stranger's.
func TestJoinPrefaceIsGoodOnce(t *testing.T) {
	nettest.CheckLeaks(t)
	b := newStore(t)
	address, results := serveJoins(t, b)
	inv := invite(t, b, "site-a", address)
	first := inv.preface()
	send := func() net.Conn {
		conn, err := net.Dial("tcp", address)
		nettest.Must(t, err)
		_, err = conn.Write(first)
		nettest.Must(t, err)
		return conn
	}
	held := send()
	defer held.Close()
	nettest.Eventually(t, time.Minute, func() bool {
		_, verdict := b.Recognize(first)
		return verdict == preface.No
	}, func() string { return "the preface is not taken" })
	replayed := send()
	defer replayed.Close()
	if err := <-results; !errors.Is(err, errNoJoin) {
		t.Errorf("a replayed preface: %v", err)
	}
	if _, err := b.ServeJoin(t.Context(), discarded{}, first); !errors.Is(err, errNoJoin) {
		t.Errorf("a replayed preface behind its recognition: %v", err)
	}
	a := newStore(t)
	if _, err := a.Join(t.Context(), inv, ""); err != nil {
		t.Errorf("an honest join beside it: %v", err)
	}
	nettest.Must(t, <-results)
	held.Close()
	<-results
}

// discarded is a connection of which nothing is read.
type discarded struct{ net.Conn }

func (discarded) RemoteAddr() net.Addr        { return nil }
func (discarded) Close() error                { return nil }
func (discarded) SetDeadline(time.Time) error { return nil }

// TestTakenPrefacesAreBounded holds that a process remembers so many prefaces and takes no
// more, until their invitations have expired.
func TestTakenPrefacesAreBounded(t *testing.T) {
	var taken takenPrefaces
	tag := func(i int) (tag preface.Tag) {
		copy(tag[:], fmt.Sprint(i))
		return tag
	}
	until := noon.Add(time.Minute)
	for i := range maxPrefaces {
		if !taken.take(tag(i), until, noon) {
			t.Fatalf("preface %d is not taken", i)
		}
	}
	if taken.take(tag(-1), until, noon) || !taken.refuses(tag(-1), noon) || len(taken.all) != maxPrefaces {
		t.Errorf("%d prefaces are taken", len(taken.all))
	}
	if later := until.Add(1); taken.refuses(tag(-1), later) || !taken.take(tag(-1), later, later) || len(taken.all) != 1 {
		t.Errorf("%d prefaces stay after the end of their invitations", len(taken.all))
	}
}

// TestSilentJoins holds that connections that say nothing behind the preface of a join
// hold 64 places at most, and keep no host of another source from joining.
func TestSilentJoins(t *testing.T) {
	nettest.CheckLeaks(t)
	a, b := newStore(t), newStore(t)
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	results := make(chan error, 500)
	stop := tcpserver.Serve(l, func(conn net.Conn) {
		_, err := b.serveConnection(t.Context(), conn)
		results <- err
	})
	defer stop()
	inv := invite(t, b, "site-a", l.Addr().String())
	const silent = 200
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range silent {
		conn, err := dialer.Dial("tcp", l.Addr().String())
		nettest.Must(t, err)
		defer conn.Close()
		_, _ = conn.Write(inv.preface()) // it may have lost its place already
	}
	for range silent - maxJoins {
		if err := <-results; !errors.Is(err, errCrowded) {
			t.Errorf("a silent join ends by %v", err)
		}
	}
	nettest.Eventually(t, time.Minute, func() bool { return b.places.Taken() == maxJoins }, func() string { return "not all places are taken" })
	if _, err := a.Join(t.Context(), inv, ""); err != nil {
		t.Errorf("an honest join: %v", err)
	}
}
