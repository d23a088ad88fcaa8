package web

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"testing"

	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/test/nettest"
)

// The dashboard speaks HTTP/1.1 only: with HTTP/2 one connection would carry any number of
// requests, past the bound on connections.
func TestNoHTTP2(t *testing.T) {
	nettest.CheckLeaks(t)
	cert, key := nettest.Certificate(t, t.TempDir(), "localhost")
	c, err := webconfig.Open("the dashboard", slog.New(slog.DiscardHandler), webconfig.ReadPair(cert, key))
	nettest.Must(t, err)
	l, err := httpd.Listen(t.Context(), netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1")))
	nettest.Must(t, err)
	s := httpd.ServeTLS(l, webconfig.TLS(func() *webconfig.Guard { return c }, "http/1.1"), New(Options{}).Handler(Access{Token: NewToken("")}), slog.New(slog.DiscardHandler), Limits)
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(c.Current().Certificate.Leaf)
	for _, test := range []struct {
		offered []string
		want    string // empty: refused
	}{{[]string{"h2", "http/1.1"}, "http/1.1"}, {[]string{"h2"}, ""}} {
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: test.offered})
		got := ""
		if err == nil {
			got = conn.ConnectionState().NegotiatedProtocol
			conn.Close()
		}
		if got != test.want {
			t.Errorf("of %q the server chooses %q, want %q", test.offered, got, test.want)
		}
	}
}
