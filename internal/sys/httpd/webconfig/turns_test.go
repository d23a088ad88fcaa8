package webconfig

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/sys/httpd"
	"longhaul/test/nettest"
)

// busyKey counts the signatures that are made at the same time.
type busyKey struct {
	crypto.Signer
	begun         chan struct{}
	goOn          chan struct{}
	now, together *atomic.Int32
}

func newBusyKey(of crypto.Signer) busyKey {
	return busyKey{of, make(chan struct{}, 1000), make(chan struct{}), new(atomic.Int32), new(atomic.Int32)}
}

func (k busyKey) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	n := k.now.Add(1)
	defer k.now.Add(-1)
	for m := k.together.Load(); n > m && !k.together.CompareAndSwap(m, n); m = k.together.Load() {
	}
	k.begun <- struct{}{}
	<-k.goOn
	return k.Signer.Sign(rand, digest, opts)
}

// A flood of handshakes makes few signatures at the same time, and those whose connections lost
// their places make none. At 071f4916 each connection made one at once.
func TestSignaturesTakeTurns(t *testing.T) {
	nettest.CheckLeaks(t)
	const places, handshakes = 4, 40
	cert, key := nettest.Certificate(t, t.TempDir(), "localhost")
	c, err := Open("test", slog.New(slog.DiscardHandler), ReadPair(cert, key))
	nettest.Must(t, err)
	own := c.now.Certificate
	busy := newBusyKey(own.PrivateKey.(crypto.Signer))
	own.PrivateKey = busy
	l, err := httpd.Listen(t.Context(), netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1")))
	nettest.Must(t, err)
	limits := httpd.Limits{Request: time.Hour, Reply: time.Hour, Connections: places}
	s := httpd.ServeTLS(l, TLS(func() *Guard { return c }), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), slog.New(slog.DiscardHandler), limits)
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(own.Leaf)
	var all sync.WaitGroup
	var whole atomic.Int32
	for range handshakes {
		conn, err := net.Dial("tcp", l.Addr().String())
		nettest.Must(t, err)
		defer conn.Close()
		all.Go(func() {
			if tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "localhost"}).Handshake() == nil {
				whole.Add(1)
			}
		})
	}
	<-busy.begun
	close(busy.goOn)
	all.Wait()
	if n := int(busy.together.Load()); n > cap(signing) {
		t.Errorf("%d signatures at the same time, want at most %d", n, cap(signing))
	}
	if whole.Load() == 0 {
		t.Error("no handshake ends well")
	}
}

// A handshake whose connection is closed waits no longer.
func TestSignatureOfAClosedConnection(t *testing.T) {
	gone := make(chan struct{})
	k := inTurn{newBusyKey(nil), make(chan struct{}), gone} // without a place
	close(gone)
	if _, err := k.Sign(nil, nil, crypto.SHA256); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
