package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"longhaul/internal/sys/httpd"
	"longhaul/test/nettest"
)

// TestServersEndBeforeTheirSettings holds that no server is left that was made for other settings when those
// change, neither at an address that stays nor at one that goes.
func TestServersEndBeforeTheirSettings(t *testing.T) {
	asked := make(chan struct{})
	w := &httpSite{log: slog.New(slog.DiscardHandler), past: &past{}, what: "a test"}
	w.serve = func(l net.Listener) *httpd.Server {
		return httpd.Serve(l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-r.Context().Done()
		}), w.log, httpd.DefaultLimits)
	}
	defer w.close()
	both := []netip.AddrPort{netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1")), netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1"))}
	c, err := w.prepare(t.Context(), both, true)
	nettest.Must(t, err)
	c.Commit()
	var readers []net.Conn
	for _, at := range both {
		reader, err := net.Dial("tcp", at.String())
		nettest.Must(t, err)
		defer reader.Close()
		_, err = fmt.Fprint(reader, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		nettest.Must(t, err)
		<-asked
		readers = append(readers, reader)
	}
	c, err = w.prepare(t.Context(), both[:1], true)
	nettest.Must(t, err)
	c.commit(func() {
		for i, reader := range readers {
			_ = reader.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := reader.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("reader %d has %d bytes, %v", i, n, err)
			}
		}
	})
	if len(w.serving) != 1 || w.serving[both[0]].Server == nil {
		t.Errorf("served are %v", w.serving)
	}
}
