package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay"
	"longhaul/internal/run/config"
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

// Changes that have a site's must be attempts as it is.
var _ = []attempt{(*siteChange)(nil), (*metricsChange)(nil), (*dashboardChange)(nil)}

// aborted is a change that does something when it is aborted.
type aborted func()

func (a aborted) Commit() {}
func (a aborted) Abort()  { a() }

// TestServeWider holds that a site gets an address that overlaps one that it or another site leaves, that this
// one serves until the commit, and that no other program of this user gets the port after it. After a commit
// that fails the former address is served again, or looked at until it is.
func TestServeWider(t *testing.T) {
	site := func(what string) *httpSite {
		w := &httpSite{log: slog.New(slog.DiscardHandler), past: &past{}, what: what}
		w.serve = func(l net.Listener) *httpd.Server {
			return httpd.Serve(l, http.NotFoundHandler(), w.log, httpd.DefaultLimits)
		}
		t.Cleanup(w.close)
		return w
	}
	one, other := site("one"), site("other")
	introduce(one, other)
	keeper := newHostKeeper(one.log, nil, new(relay.Relay), one, other)
	looksSoon := func() bool {
		select {
		case <-keeper.soon:
			return true
		default:
			return false
		}
	}
	narrow := netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1"))
	wide := netip.AddrPortFrom(netip.IPv4Unspecified(), narrow.Port())
	alone := func() {
		t.Helper()
		for _, at := range []netip.AddrPort{narrow, wide} {
			thief := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
			}}
			if l, err := thief.Listen(t.Context(), "tcp4", at.String()); err == nil {
				l.Close()
				t.Errorf("another program listens on %s", at)
			}
		}
		c, err := net.Dial("tcp4", narrow.String())
		nettest.Must(t, err)
		c.Close()
	}
	for _, to := range []struct {
		*httpSite
		wanted netip.AddrPort
	}{{one, narrow}, {one, wide}, {one, narrow}, {other, wide}, {one, narrow}} {
		idle := other
		if to.httpSite == other {
			idle = one
		}
		for _, commits := range []bool{false, true} {
			// The one that leaves commits last, as the daemon's sites may.
			c, err := to.prepare(t.Context(), []netip.AddrPort{to.wanted}, false)
			nettest.Must(t, err)
			left, err := idle.prepare(t.Context(), nil, false)
			nettest.Must(t, err)
			if len(one.serving)+len(other.serving) > 0 {
				alone()
			}
			if !commits {
				c.Abort()
				left.Abort()
				continue
			}
			nettest.Must(t, changes{c, left}.Commit())
			if len(to.serving) != 1 || len(to.waiting)+len(idle.serving) > 0 {
				t.Errorf("%s serves %v and waits for %v; the other serves %v", to.what, to.serving, to.waiting, idle.serving)
			}
			alone()
		}
	}
	stranger := func() net.Listener {
		t.Helper()
		return nettest.ListenTCP(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), narrow.Port()).String())
	}
	// Another program comes between the preparation and the commit, or a part that is tried later refuses.
	for _, to := range []*httpSite{one, other} {
		for _, want := range []error{unix.EADDRINUSE, errRefused} {
			c, err := to.prepare(t.Context(), []netip.AddrPort{wide}, false)
			nettest.Must(t, err)
			all := changes{lookBack{keeper}, c}
			if to == other {
				left, err := one.prepare(t.Context(), nil, false)
				nettest.Must(t, err)
				all = append(all, left)
			}
			foreign := net.Listener(nil)
			if want == errRefused {
				all = append(changes{refusedAttempt{setting(func() {})}}, all...)
			} else {
				foreign = stranger()
			}
			if err := all.Commit(); !errors.Is(err, want) {
				t.Errorf("the commit of %s says %v, want %v", to.what, err, want)
			}
			if one.serving[narrow].Server == nil || len(one.serving) != 1 || len(one.waiting)+len(other.serving)+len(other.waiting) > 0 {
				t.Errorf("after %s could not serve wider, %s serves %v, the other %v", to.what, one.what, one.serving, other.serving)
			}
			if looksSoon() {
				t.Errorf("after %s could not serve wider, the keeper has something to look at", to.what)
			}
			if foreign != nil {
				foreign.Close()
			}
			alone()
		}
	}
	// Another program takes the former address before the keeper looks.
	c, err := other.prepare(t.Context(), []netip.AddrPort{wide}, false)
	nettest.Must(t, err)
	left, err := one.prepare(t.Context(), nil, false)
	nettest.Must(t, err)
	var thief net.Listener
	robbed := changes{lookBack{keeper}, aborted(func() { thief = nettest.ListenTCP(t, narrow.String()) }), refusedAttempt{setting(func() {})}, c, left}
	if err := robbed.Commit(); !errors.Is(err, errRefused) {
		t.Errorf("the commit says %v", err)
	}
	if len(one.serving) > 0 || len(one.waiting) != 1 || !looksSoon() {
		t.Errorf("where another program listens, %s serves %v, waits for %v, and the keeper may not look again", one.what, one.serving, one.waiting)
	}
	thief.Close()
	if keeper.lookAtListeners() || one.serving[narrow].Server == nil || len(one.waiting) > 0 {
		t.Errorf("once it has left, %s serves %v and waits for %v", one.what, one.serving, one.waiting)
	}
	foreign := stranger()
	defer foreign.Close()
	if _, err := one.prepare(t.Context(), []netip.AddrPort{wide}, false); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("where another program listens, prepare says %v", err)
	}
	alone()
}

// TestFailedReloadGivesAddressesBack has each attempt of a reload fail, the relay's last, in which a wildcard of one
// site leaves for an address of each of them.
func TestFailedReloadGivesAddressesBack(t *testing.T) {
	dir := nettest.OpenTempDir(t)
	narrow := netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1"))
	tunnel := nettest.FreeAddress(t, "127.0.0.1")
	load := func(sites string) *config.Config {
		t.Helper()
		path := filepath.Join(dir, "longhaul.yaml")
		nettest.Must(t, os.WriteFile(path, fmt.Appendf(nil, `log: {level: warn}
control_socket: %s/control.sock
pair_keys: %[1]s/keys
tunnels: [{name: a, listen: %q, forward: "127.0.0.1:9"}]
`+sites, dir, tunnel, narrow.Port()), 0o600))
		c, err := config.Loader{}.Load(t.Context(), path)
		nettest.Must(t, err)
		return c
	}
	now := load("http_listen: \":%[3]d\"\n")
	next := load("http_listen: 127.0.0.1:%[3]d\nhealth_listen: 127.0.0.2:%[3]d\ndashboard: {listen: \"127.0.0.3:%[3]d\"}\n")
	d := assembled(t, "", now)
	nettest.Must(t, change(t.Context(), d.parts, d.plan(now)))
	refused := 0
	for i, one := range d.parts {
		switch one.(type) {
		case relayTunnels, *metricsSite, healthSite, *dashboard:
		default:
			continue
		}
		refused++
		parts := slices.Clone(d.parts)
		parts[i] = refusedLate{one}
		if err := change(t.Context(), parts, d.plan(next)); !errors.Is(err, errRefused) {
			t.Fatalf("the error is %v", err)
		}
		if status, _, err := httpd.Get(t.Context(), narrow.String(), "/metrics", 1<<20); err != nil || status != http.StatusOK {
			t.Errorf("after %T has refused, http answers %d, %v", one, status, err)
		}
	}
	if refused != 4 {
		t.Errorf("%d parts have refused, want 4", refused)
	}
}
