package identity

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/test/nettest"
)

// proof is a request that is right for one connection.
func proof(t *testing.T, inv *Invitation, conn *tls.Conn, client privateKey) request {
	t.Helper()
	state := conn.ConnectionState()
	message, err := bound(&state, client.public(), inv.Key)
	nettest.Must(t, err)
	signer := inv.signer()
	signature, err := signer.Sign(nil, message, joinSignature)
	nettest.Must(t, err)
	return request{signer.public(), [64]byte(signature), []PublicKey{client.public()}}
}

// ask sends a request and returns the outcome.
func ask(t *testing.T, conn *tls.Conn, r request) outcome {
	t.Helper()
	nettest.Must(t, writeMessage(conn, r.append(nil)))
	body, err := readMessage(conn)
	nettest.Must(t, err)
	a, err := parseAnswer(body)
	nettest.Must(t, err)
	return a.outcome
}

// TestProofIsBound holds that a proof is good for one connection, one client and one
// server.
func TestProofIsBound(t *testing.T) {
	nettest.CheckLeaks(t)
	b := newStore(t)
	inv := invite(t, b, "site-a", "b:6000")
	mine, other := testKey(1), testKey(2)
	connect := func(key privateKey) (*tls.Conn, <-chan error) {
		near, far := tcpPair(t)
		served := make(chan error, 1)
		go func() {
			_, err := b.serveJoin(t.Context(), far)
			far.Close()
			served <- err
		}()
		certificate := certificateOf(key)
		conn := tls.Client(near, newConfig(&certificate, func(PublicKey) error { return nil }))
		nettest.Must(t, conn.Handshake())
		return conn, served
	}
	first, firstServed := connect(mine)
	r := proof(t, inv, first, mine)

	for name, test := range map[string]struct {
		key    privateKey
		change func(*request)
	}{
		"another connection":  {mine, func(*request) {}},
		"another client":      {other, func(*request) {}},
		"another's key added": {other, func(r *request) { r.keys = []PublicKey{other.public(), mine.public()} }},
	} {
		conn, served := connect(test.key)
		replayed := r
		test.change(&replayed)
		if got := ask(t, conn, replayed); got != unknown {
			t.Errorf("%s: outcome %d", name, got)
		}
		conn.Close()
		if err := <-served; err == nil || !strings.Contains(err.Error(), "without the secret") {
			t.Errorf("%s: %v", name, err)
		}
	}

	// A proof of the right client that lists other keys than the one it has used.
	conn, served := connect(other)
	forged := proof(t, inv, conn, other)
	forged.keys = []PublicKey{mine.public()}
	if got := ask(t, conn, forged); got != unknown {
		t.Errorf("keys of another: outcome %d", got)
	}
	conn.Close()
	<-served

	if got := ask(t, first, r); got != accepted {
		t.Errorf("the right connection: outcome %d", got)
	}
	first.Close()
	nettest.Must(t, <-firstServed)
}

// TestSecretIsNotStored holds that no file of the inviting host has the secret.
func TestSecretIsNotStored(t *testing.T) {
	b := newStore(t)
	inv := invite(t, b, "site-a", "b:6000")
	files, err := filepath.Glob(filepath.Join(b.dir, "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files %v, %v", files, err)
	}
	signer := inv.signer()
	for _, file := range files {
		text, err := os.ReadFile(file)
		nettest.Must(t, err)
		for _, secret := range []string{string(inv.secret[:]), encoding.EncodeToString(inv.secret[:])[:20], encoding.EncodeToString(signer.Seed())[:40]} {
			if strings.Contains(string(text), secret) {
				t.Errorf("%s has the secret", file)
			}
		}
	}
}

// TestFailedWrite holds that a write that fails leaves the old file.
func TestFailedWrite(t *testing.T) {
	s := newStore(t)
	pin(t, s, "b", testKey(1).public())
	// What an interrupted write has left is replaced.
	nettest.Must(t, os.WriteFile(filepath.Join(s.dir, peersFile+newSuffix), []byte("half"), 0o644))
	pin(t, s, "c", testKey(2).public())
	blocked := filepath.Join(s.dir, peersFile+newSuffix, "full")
	nettest.Must(t, os.MkdirAll(blocked, 0o700))
	_, err := s.Pin("d", testKey(3).public())
	checkMistake(t, err, "cannot write "+filepath.Join(s.dir, peersFile)+": directory not empty")
	if peers, err := New(s.dir).Peers(); err != nil || len(peers) != 2 {
		t.Errorf("peers %v, %v", peers, err)
	}
	key := testKey(3).public()
	if _, known := s.PeerOf(key[:]); known {
		t.Error("a peer that could not be stored is known")
	}
}

// TestOldInvitations holds that the file of invitations stays small.
func TestOldInvitations(t *testing.T) {
	var l invitationList
	for i := range maxInvitations + 5 {
		l = l.add(kept{verifier: testKey(byte(i)).public(), name: "site", made: noon, used: testKey(1).public()})
	}
	if len(l) != maxInvitations || l[0].verifier != testKey(5).public() {
		t.Errorf("%d invitations, the first %v", len(l), l[0])
	}
	if l = l.add(kept{name: "site", made: noon.Add(keptFor + time.Second)}); len(l) != 1 {
		t.Errorf("%d invitations after a day", len(l))
	}
}

// TestServeInvitationTimes holds that silent clients are dropped after 10 s, also behind
// their preface, and that the invitation ends after 10 minutes.
func TestServeInvitationTimes(t *testing.T) {
	b := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		l := nettest.ListenPipe()
		inv := invite(t, b, "site-a", "b:6000")
		start := time.Now()
		problems := make(chan error, 10)
		served := make(chan error, 1)
		go func() {
			served <- b.ServeInvitation(t.Context(), l, "site-a", func(_ net.Addr, err error) { problems <- err })
		}()
		for _, first := range [][]byte{nil, inv.preface()} {
			began := time.Now()
			conn, err := l.Dial()
			nettest.Must(t, err)
			_, err = conn.Write(first)
			nettest.Must(t, err)
			if err := <-problems; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != JoinTimeout {
				t.Errorf("a client that is silent after %d bytes: %v after %v", len(first), err, time.Since(began))
			}
			conn.Close()
		}
		if err := <-served; !errors.Is(err, ErrExpired) || time.Since(start) != InvitationLife {
			t.Errorf("the end: %v after %v", err, time.Since(start))
		}
	})
}
