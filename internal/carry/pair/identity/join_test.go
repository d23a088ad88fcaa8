package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/pair/preface"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// serveJoins has a store serve joins as a relay does, and returns
// the address and what came of each.
func serveJoins(t *testing.T, s *Store) (address string, results <-chan error) {
	t.Helper()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	all := make(chan error, 100)
	t.Cleanup(tcpserver.Serve(l, func(conn net.Conn) {
		_, err := s.serveConnection(t.Context(), conn)
		all <- err
	}))
	return l.Addr().String(), all
}

// invite makes an invitation to an address.
func invite(t *testing.T, s *Store, name string, addresses ...string) *Invitation {
	t.Helper()
	inv, err := s.Invite(name, "site-b", addresses)
	nettest.Must(t, err)
	inv, err = ParseInvitation(inv.Line())
	nettest.Must(t, err)
	return inv
}

// age makes the invitations of a store older.
func age(t *testing.T, s *Store, by time.Duration) {
	t.Helper()
	nettest.Must(t, s.change(func(c *changing) error {
		for i := range c.invitations {
			c.invitations[i].made = c.invitations[i].made.Add(-by)
		}
		return nil
	}))
}

func TestJoin(t *testing.T) {
	nettest.CheckLeaks(t)
	a, b := newStore(t), newStore(t)
	address, results := serveJoins(t, b)
	inv := invite(t, b, "site-a", address)
	j, err := a.Join(t.Context(), inv, "")
	if err != nil || j.Peer != "site-b" || !j.Added || j.Address != address || j.Key != own(t, b) {
		t.Fatalf("joined %+v, %v", j, err)
	}
	nettest.Must(t, <-results)
	if p := peer(t, b, "site-a"); !slices.Equal(p.Keys, []PublicKey{own(t, a)}) || p.Holds != own(t, b) {
		t.Errorf("b has %+v", p)
	}
	if p := peer(t, a, "site-b"); !slices.Equal(p.Keys, []PublicKey{own(t, b)}) || p.Holds != own(t, a) {
		t.Errorf("a has %+v", p)
	}
	if r := shake(t, clientTLS(t, a, "site-b"), b.ServerTLS(nil)); r.clientErr != nil || r.serverErr != nil {
		t.Errorf("after the join: %v, %v", r.clientErr, r.serverErr)
	}

	// A host whose answer was lost joins again with the same line, another one does not.
	nettest.Must(t, a.Remove("site-b"))
	if j, err := a.Join(t.Context(), inv, "b"); err != nil || j.Peer != "b" || !j.Added {
		t.Errorf("joined again: %+v, %v", j, err)
	}
	nettest.Must(t, <-results)
	if j, err := a.Join(t.Context(), inv, "b"); err != nil || j.Added {
		t.Errorf("joined a third time: %+v, %v", j, err)
	}
	nettest.Must(t, <-results)
	c := newStore(t)
	_, err = c.Join(t.Context(), inv, "")
	checkMistake(t, err, address+" refuses: the invitation has been used already")
	if err := <-results; err == nil {
		t.Error("the inviting host sees no error")
	}
	if peers, err := c.Peers(); err != nil || len(peers) > 0 {
		t.Errorf("a refused host has pinned %v, %v", peers, err)
	}
	nettest.Must(t, b.Remove("site-a"))
	_, err = a.Join(t.Context(), inv, "b")
	checkMistake(t, err, address+" ends the connection: the invitation has expired or was used, or no relay of that host takes a join there")
	<-results
}

func TestJoinRefused(t *testing.T) {
	nettest.CheckLeaks(t)
	b := newStore(t)
	address, results := serveJoins(t, b)
	inv := invite(t, b, "site-a", address)
	first := inv

	join := func(what, want string, s *Store, inv *Invitation, as string) {
		t.Helper()
		_, err := s.Join(t.Context(), inv, as)
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
		if strings.HasPrefix(want, address) && <-results == nil {
			t.Errorf("%s: no error at the inviting host", what)
		}
		if peers, err := New(b.dir).Peers(); err != nil || slices.ContainsFunc(peers, func(p Peer) bool { return p.Name == "site-a" }) {
			t.Errorf("%s: b has %v, %v", what, peers, err)
		}
	}
	a := newStore(t)
	join("the host itself", "this is the key of this host itself", b, inv, "")
	join("a wrong name", `invalid name "no name" of a peer`, a, inv, "no name")

	forged := *inv
	forged.secret[0]++
	stranger := address + " ends the connection: the invitation has expired or was used, or no relay of that host takes a join there"
	join("a wrong secret", stranger, a, &forged, "")
	former := *inv
	former.former = true
	join("a preface for the host's public key", stranger, a, &former, "")

	age(t, b, InvitationLife+2*time.Second)
	join("too late", stranger, a, inv, "")
	age(t, b, -2*InvitationLife)
	join("before its time", stranger, a, inv, "")
	inv = invite(t, b, "site-a", address)
	nettest.Must(t, b.Remove("site-a"))
	join("taken back", stranger, a, inv, "")
	inv = invite(t, b, "site-a", address)
	join("replaced by another", stranger, a, first, "")

	pin(t, b, "other", own(t, a))
	join("a key with another name", address+" refuses: it has this host's key already, under another name", a, inv, "")
	nettest.Must(t, b.Remove("other"))

	pin(t, a, "x", own(t, b))
	join("pinned under another name", "the peer x has the key "+own(t, b).Short()+" already", a, inv, "y")
	nettest.Must(t, a.Remove("x"))
	pin(t, a, "site-b", testKey(1).public())
	join("the name is taken", "there is a peer site-b already", a, inv, "")
	nettest.Must(t, a.Remove("site-b"))

	// Nothing of this has used the secret.
	if _, err := a.Join(t.Context(), inv, ""); err != nil {
		t.Errorf("the right join: %v", err)
	}
	nettest.Must(t, <-results)
	_, err := b.Invite("site-a", "site-b", []string{address})
	checkMistake(t, err, "there is a peer site-a already")
}

// TestJoinNameTaken holds what happens if the name is taken after the invitation.
func TestJoinNameTaken(t *testing.T) {
	a, b := newStore(t), newStore(t)
	address, results := serveJoins(t, b)
	inv := invite(t, b, "site-a", address)
	pin(t, b, "site-a", testKey(1).public())
	_, err := a.Join(t.Context(), inv, "")
	checkMistake(t, err, address+" refuses: it has another peer of the invitation's name by now")
	<-results
}

// TestJoinInRotation holds that both hosts learn all keys, and that each end's peers keep
// working when the rotations end.
func TestJoinInRotation(t *testing.T) {
	a, b := newStore(t), newStore(t)
	for _, s := range []*Store{a, b} {
		pin(t, s, "other", testKey(1).public())
		_, err := s.Rotate()
		nettest.Must(t, err)
	}
	address, results := serveJoins(t, b)
	_, err := a.Join(t.Context(), invite(t, b, "a", address), "b")
	nettest.Must(t, err)
	nettest.Must(t, <-results)
	if len(peer(t, a, "b").Keys) != 2 || len(peer(t, b, "a").Keys) != 2 {
		t.Errorf("a has %v, b has %v", peer(t, a, "b"), peer(t, b, "a"))
	}
	checkMeet(t, "joined in a rotation", a, b)

	// Joining again with a further key keeps both hosts' lists complete.
	_, err = b.RotateNow()
	nettest.Must(t, err)
	_, err = b.Rotate()
	nettest.Must(t, err)
	nettest.Must(t, b.Remove("a"))
	inv := invite(t, b, "a", address)
	_, err = a.Join(t.Context(), inv, "b")
	nettest.Must(t, err)
	nettest.Must(t, <-results)
	if got, want := peer(t, a, "b").Keys, b.PublicKeys(); len(got) != 2 || !bytes.Equal(got[0][:], want[1]) || !bytes.Equal(got[1][:], want[0]) {
		t.Errorf("a has %v, b's keys are %x", got, want)
	}
	for _, s := range []*Store{a, b} {
		nettest.Must(t, s.Remove("other"))
	}
	checkMeet(t, "the rotations have ended", a, b)
}

// TestJoinElsewhere holds what is said if something else answers, or nothing.
func TestJoinElsewhere(t *testing.T) {
	nettest.CheckLeaks(t)
	a, b, other := newStore(t), newStore(t), newStore(t)
	otherAddress, _ := serveJoins(t, other)
	right, results := serveJoins(t, b)
	serve := func(f func(net.Conn)) string {
		l := nettest.ListenTCP(t, "127.0.0.1:0")
		t.Cleanup(tcpserver.Serve(l, f))
		return l.Addr().String()
	}
	https := serve(func(conn net.Conn) { // an alert: unexpected message (RFC 8446, 6)
		io.ReadFull(conn, make([]byte, preface.Size))
		conn.Write([]byte{21, 3, 3, 0, 2, 2, 10})
		io.Copy(io.Discard, conn)
	})
	reset := serve(func(conn net.Conn) {
		conn.(*net.TCPConn).SetLinger(0)
	})
	free := nettest.FreeAddress(t, "127.0.0.1")
	echo := serve(tcpserver.Echo)
	for _, test := range []struct {
		address, want string
	}{
		{echo, "something else than a paired relay answers at "},
		{serve(func(conn net.Conn) { io.WriteString(conn, "SSH-2.0-OpenSSH_10.0\r\n"); io.Copy(io.Discard, conn) }),
			"something else than a paired relay answers at "},
		{https, "something else than a paired relay answers at "},
		{serve(func(net.Conn) {}), " ends the connection: the invitation has expired or was used, or no relay of that host takes a join there"},
		{reset, " ends the connection: the invitation has expired or was used, or no relay of that host takes a join there"},
		{otherAddress, " ends the connection: the invitation has expired or was used, or no relay of that host takes a join there"},
		{free, "nothing listens at "},
		{"no..where:6000", "cannot look up the host of no..where:6000: "},
	} {
		inv := invite(t, b, "site-a", test.address)
		_, err := a.Join(t.Context(), inv, "")
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.address) {
			t.Errorf("%s: %v, want %s", test.address, err, test.want)
		}
	}
	// The right address comes last; the wrong ones have used nothing up.
	j, err := a.Join(t.Context(), invite(t, b, "site-a", free, echo, right), "")
	if err != nil || j.Address != right {
		t.Errorf("joined %+v, %v", j, err)
	}
	nettest.Must(t, <-results)
	_, err = newStore(t).Join(t.Context(), invite(t, b, "site-d", free, echo), "")
	if want := "no address of the invitation leads there: nothing listens at " + free + "; something else than a paired relay answers at " + echo; err == nil || err.Error() != want {
		t.Errorf("two wrong addresses: %v, want %s", err, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	silent := serve(func(conn net.Conn) { io.CopyN(io.Discard, conn, preface.Size); cancel(); io.Copy(io.Discard, conn) })
	_, err = newStore(t).Join(ctx, invite(t, b, "site-e", silent), "")
	if err == nil || err.Error() != "interrupted the join at "+silent {
		t.Errorf("interrupted: %v", err)
	}
}

// TestJoinCannotStore holds that a host that cannot store the peer uses no secret up.
func TestJoinCannotStore(t *testing.T) {
	a, b := newStore(t), newStore(t)
	address, results := serveJoins(t, b)
	inv := invite(t, b, "site-a", address)
	b.PublicKeys() // reads the files while they are good
	rewrite(t, a, peersFile, "damaged\n", 0o600)
	_, err := New(a.dir).Join(t.Context(), inv, "")
	checkMistake(t, err, "the file "+filepath.Join(a.dir, peersFile)+" is damaged: line 1: 1 words, want name, time, keys and has=KEY")

	rewrite(t, b, peersFile, "damaged\n", 0o600)
	c := newStore(t)
	_, err = c.Join(t.Context(), inv, "")
	checkMistake(t, err, address+" refuses: it cannot store its peers")
	if err := <-results; err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("the inviting host says %v", err)
	}
	nettest.Must(t, os.Remove(filepath.Join(b.dir, peersFile)))
	b.forget() // as after a second
	if _, err := c.Join(t.Context(), inv, ""); err != nil {
		t.Errorf("after the repair: %v", err)
	}
	nettest.Must(t, <-results)
}

// TestServeJoinStrangers holds what the inviting host does with connections that are no
// joins. Each ends; none changes anything.
func TestServeJoinStrangers(t *testing.T) {
	nettest.CheckLeaks(t)
	a, b := newPair(t)
	address, results := serveJoins(t, b)
	inv := invite(t, b, "site-c", address)
	key := own(t, b)
	for name, first := range map[string][]byte{
		"nothing":        {},
		"a request":      []byte("GET / HTTP/1.1\r\n\r\n"),
		"half a preface": inv.preface()[:20],
		"a lane":         preface.Preface{Kind: preface.Lane}.Append(nil, key[:]),
		"the host's key": preface.Preface{Kind: preface.Join}.Append(nil, key[:]),
		"another key":    preface.Preface{Kind: preface.Join}.Append(nil, testKey(1).Public().(ed25519.PublicKey)),
		"no handshake":   append(inv.preface(), "hello, this is no TLS"...),
	} {
		conn, err := net.Dial("tcp", address)
		nettest.Must(t, err)
		_, err = conn.Write(first)
		nettest.Must(t, err)
		_ = conn.(*net.TCPConn).CloseWrite() // it may have been reset already
		if err := <-results; err == nil {
			t.Errorf("%s is taken for a join", name)
		}
		conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
	}
	// A handshake without a message, and with a wrong one.
	for _, message := range []string{"", "\x00\x01\x09", "\x00\x02\x01\x01", "\xff\xff"} {
		conn, err := net.Dial("tcp", address)
		nettest.Must(t, err)
		_, err = conn.Write(inv.preface())
		nettest.Must(t, err)
		secure := tls.Client(conn, clientTLS(t, a, "b"))
		_, err = io.WriteString(secure, message)
		nettest.Must(t, err)
		nettest.Must(t, secure.CloseWrite())
		if err := <-results; err == nil {
			t.Errorf("%q is taken for a join", message)
		}
		conn.Close()
	}
}

func TestServeInvitation(t *testing.T) {
	nettest.CheckLeaks(t)
	a, b := newStore(t), newStore(t)
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	inv := invite(t, b, "site-a", l.Addr().String())
	served := make(chan error, 1)
	problems := make(chan error, 10)
	serve := func(ctx context.Context, l net.Listener) {
		served <- b.ServeInvitation(ctx, l, "site-a", func(_ net.Addr, err error) { problems <- err })
	}
	go serve(t.Context(), l)
	idle, err := net.Dial("tcp", l.Addr().String()) // holds nothing up
	nettest.Must(t, err)
	defer idle.Close()
	forged := *inv
	forged.secret[0]++
	if _, err := a.Join(t.Context(), &forged, ""); err == nil {
		t.Error("a wrong secret is taken")
	}
	if err := <-problems; !errors.Is(err, errNoJoin) {
		t.Errorf("problem %v", err)
	}
	_, err = a.Join(t.Context(), inv, "")
	nettest.Must(t, err)
	nettest.Must(t, <-served)
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("it listens after the join")
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	serve(ctx, nettest.ListenTCP(t, "127.0.0.1:0"))
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
