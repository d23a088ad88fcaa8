package identity

import (
	"crypto/ed25519"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// testKey is a key that is the same in each run.
func testKey(seed byte) privateKey {
	b := make([]byte, keyBytes)
	for i := range b {
		b[i] = seed + byte(i)
	}
	return privateKey{ed25519.NewKeyFromSeed(b)}
}

// newStore makes a store with a key.
func newStore(t testing.TB) *Store {
	t.Helper()
	s := New(filepath.Join(t.TempDir(), "state", "pair"))
	_, _, made, err := s.Key()
	if err != nil || !made {
		t.Fatalf("a key is made: %v, %v", made, err)
	}
	return s
}

// own returns the key of a store in use.
func own(t testing.TB, s *Store) PublicKey {
	t.Helper()
	key, _, _, err := s.Key()
	nettest.Must(t, err)
	return key
}

// newPair makes two stores with each other's key: a knows b as "b", b knows a as "a".
func newPair(t testing.TB) (a, b *Store) {
	t.Helper()
	a, b = newStore(t), newStore(t)
	pin(t, a, "b", own(t, b))
	pin(t, b, "a", own(t, a))
	return a, b
}

func pin(t testing.TB, s *Store, name string, key PublicKey) {
	t.Helper()
	if added, err := s.Pin(name, key); err != nil || !added {
		t.Fatalf("pin %s: %v, %v", name, added, err)
	}
}

func peer(t testing.TB, s *Store, name string) Peer {
	t.Helper()
	peers, err := s.Peers()
	nettest.Must(t, err)
	for _, p := range peers {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no peer %s in %v", name, peers)
	return Peer{}
}

// tcpPair returns both ends of a connection over the loopback device.
func tcpPair(t testing.TB) (client, server *net.TCPConn) {
	t.Helper()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	defer l.Close()
	type result struct {
		conn *net.TCPConn
		err  error
	}
	accepted := make(chan result, 1)
	go func() {
		conn, err := l.AcceptTCP()
		accepted <- result{conn, err}
	}()
	var d net.Dialer
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	nettest.Must(t, err)
	r := <-accepted
	nettest.Must(t, r.err)
	for _, c := range []net.Conn{conn, r.conn} {
		nettest.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		t.Cleanup(func() { c.Close() })
	}
	return conn.(*net.TCPConn), r.conn
}

// shook is a handshake as both ends saw it.
type shook struct {
	client, server       tls.ConnectionState
	clientErr, serverErr error // the client's after its first read
}

// shake connects two configurations. The server greets with a byte.
func shake(t testing.TB, client, server *tls.Config) (r shook) {
	t.Helper()
	near, far := tcpPair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn := tls.Server(far, server)
		if r.serverErr = conn.Handshake(); r.serverErr == nil {
			r.server = conn.ConnectionState()
			_, r.serverErr = conn.Write([]byte{1})
		}
		far.CloseWrite()
	}()
	conn := tls.Client(near, client)
	if r.clientErr = conn.Handshake(); r.clientErr == nil {
		r.client = conn.ConnectionState()
		_, r.clientErr = conn.Read(make([]byte, 1))
	}
	near.CloseWrite()
	<-done
	return r
}

// clientTLS is a store's configuration for a peer.
func clientTLS(t testing.TB, s *Store, peer string) *tls.Config {
	t.Helper()
	c, err := s.ClientTLS(peer)
	nettest.Must(t, err)
	return c
}

// checkMistake holds the text of an error and that it has a hint.
func checkMistake(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	} else if remedy.Of(err) == "" {
		t.Errorf("no hint for: %v", err)
	}
}

// rewrite replaces a file of a store, as another program would.
func rewrite(t testing.TB, s *Store, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	nettest.Must(t, os.WriteFile(path+".test", []byte(text), mode))
	nettest.Must(t, os.Chmod(path+".test", mode))
	nettest.Must(t, os.Rename(path+".test", path))
}
