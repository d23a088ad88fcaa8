package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/handover"
	"longhaul/internal/carry/relay"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/remedy"
)

// httpSite serves one HTTP handler on every address of the configuration. It waits for those that
// this host does not have.
type httpSite struct {
	log     *slog.Logger
	what    string        // the name of the service
	scheme  func() string // of URLs in the log; nil: no URLs
	serve   func(net.Listener) *httpd.Server
	past    *past
	others  []*httpSite // of this relay, whose addresses the site may get
	leaving sync.WaitGroup
	web     atomic.Pointer[webconfig.Guard] // TLS and users; nil: none

	mu      sync.Mutex // reloads and the keeper of the host change what follows
	wanted  []netip.AddrPort
	serving map[netip.AddrPort]siteServer
	waiting map[netip.AddrPort]flow.HostProblem
}

type siteServer struct {
	*httpd.Server
	listener net.Listener
	scope    uint32 // index of the interface that the address names; 0: it names none
}

func newHTTPSite(log *slog.Logger, past *past, what string, handler http.Handler) *httpSite {
	w := &httpSite{log: log, past: past, what: what}
	w.serve = func(l net.Listener) *httpd.Server {
		if g := w.web.Load(); g != nil && g.Current().TLS() {
			return httpd.ServeTLS(l, w.tls("h2", "http/1.1"), w.admitted(handler), log, httpd.DefaultLimits)
		}
		return httpd.Serve(l, w.admitted(handler), log, httpd.DefaultLimits)
	}
	return w
}

// tls is the configuration of a server that follows the web configuration in force. It speaks the
// protocols of ALPN.
func (w *httpSite) tls(protocols ...string) *tls.Config {
	return webconfig.TLS(w.web.Load, protocols...)
}

// certificate is the site's, or nil.
func (w *httpSite) certificate() *flow.Certificate {
	g := w.web.Load()
	if g == nil || !g.Current().TLS() {
		return nil
	}
	from, until := g.Current().Validity()
	return &flow.Certificate{From: from, Until: until}
}

// hasCertificateFor reports whether the site's certificate is valid for a host.
func (w *httpSite) hasCertificateFor(host string) bool {
	g := w.web.Load()
	return g != nil && g.Current().Names(host)
}

// guardWith puts another web configuration into force, also for the requests that go on.
func (w *httpSite) guardWith(g *webconfig.Guard) {
	if before := w.web.Swap(g); before != g {
		before.Replace()
	}
}

// admitted admits requests to a handler as the web configuration in force says.
func (w *httpSite) admitted(next http.Handler) http.Handler {
	return webconfig.Handler(w.web.Load, next)
}

// metricsSite is the part that serves health checks and metrics at http_listen.
type metricsSite struct {
	*httpSite
	names        httpNames
	readablePath func(path string) string
}

func (s *metricsSite) Prepare(ctx context.Context, p *plan) (Change, error) {
	var guard *webconfig.Guard
	if file := p.HTTPWebConfig.File; file != "" {
		var err error
		if guard, err = webconfig.Open("http_listen", s.log, readWebConfig(file, s.readablePath, nil)); err != nil {
			return nil, err
		}
	}
	change, err := s.prepare(ctx, p.HTTPListen, speaksTLS(guard) != speaksTLS(s.web.Load()))
	if err != nil {
		return nil, err
	}
	return &metricsChange{change, s, p.HTTPNames, guard}, nil
}

// readWebConfig makes a function that reads a web configuration and checks it.
func readWebConfig(file string, readable func(string) string, check func(*webconfig.Settings) error) func() (*webconfig.Settings, error) {
	return func() (*webconfig.Settings, error) {
		s, _, err := config.ReadWebConfig(file, readable)
		if err == nil && check != nil {
			err = check(s)
		}
		return s, err
	}
}

func speaksTLS(g *webconfig.Guard) bool { return g != nil && g.Current().TLS() }

type metricsChange struct {
	*siteChange
	to    *metricsSite
	names []string
	guard *webconfig.Guard
}

func (c *metricsChange) Commit() {
	c.commit(func() {
		c.to.names.set(c.names)
		c.to.guardWith(c.guard)
	})
}

// healthSite is the part that serves health checks alone, at health_listen.
type healthSite struct{ *httpSite }

func (s healthSite) Prepare(ctx context.Context, p *plan) (Change, error) {
	change, err := s.prepare(ctx, p.HealthListen, false)
	if err != nil {
		return nil, err
	}
	return change, nil
}

// siteChange is a set of prepared addresses before its commit.
type siteChange struct {
	site   *httpSite
	before []netip.AddrPort // wanted until now: Try, also another site's, takes some away
	wanted []netip.AddrPort
	anew   bool // with a new server on each
	fresh  map[netip.AddrPort]net.Listener
	later  []netip.AddrPort // overlap some that leave: Try listens on them
}

// prepare listens on every new address that this host has, or on none. With anew set it prepares a new
// server on every address.
func (w *httpSite) prepare(ctx context.Context, wanted []netip.AddrPort, anew bool) (*siteChange, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &siteChange{site: w, before: w.wanted, wanted: wanted, anew: anew, fresh: map[netip.AddrPort]net.Listener{}}
	for _, at := range wanted {
		if w.serving[at].Server != nil && !anew || c.fresh[at] != nil {
			continue
		}
		l, err := w.again(at)
		if l == nil && err == nil {
			l, err = w.handedOver(at)
		}
		for _, other := range w.others { // no two of a configuration want the same address
			if l == nil && err == nil {
				other.mu.Lock()
				l, err = other.again(at)
				other.mu.Unlock()
			}
		}
		if l == nil && err == nil {
			if l, err = httpd.Listen(ctx, at); errors.Is(err, unix.EADDRINUSE) && w.yield(at, wanted) {
				c.later = append(c.later, at)
				continue
			}
		}
		if err != nil {
			if why, _ := relay.Absence(at.Addr()); why != nil {
				continue // it waits
			}
			c.closeFresh()
			return nil, err
		}
		c.fresh[at] = l
	}
	return c, nil
}

// Try listens on the addresses that overlap those that leave, once the servers of these have ended.
func (c *siteChange) Try() error {
	for _, at := range c.later {
		if err := c.takePlace(at); err != nil {
			c.Abort()
			return err
		}
	}
	return nil
}

func (c *siteChange) takePlace(at netip.AddrPort) error {
	w := c.site
	w.mu.Lock()
	defer w.mu.Unlock()
	w.give(at, c.wanted)
	for _, other := range w.others {
		other.mu.Lock()
		other.give(at, nil)
		other.mu.Unlock()
	}
	l, err := httpd.Listen(context.Background(), at)
	if err == nil {
		c.fresh[at] = l
	}
	return err
}

// Abort closes the new listeners, and wants again what has left for some of them: the keeper listens there
// once every site has closed its own.
func (c *siteChange) Abort() {
	c.closeFresh()
	c.site.mu.Lock()
	defer c.site.mu.Unlock()
	c.site.wanted = c.before
}

func (c *siteChange) closeFresh() {
	for _, l := range c.fresh {
		l.Close()
	}
	c.fresh = nil
}

// Commit serves on the new addresses and closes removed ones.
func (c *siteChange) Commit() { c.commit(func() {}) }

// commit is Commit with other settings of the servers. Those that end do so before: one that leaves it to the
// former settings to admit readers would admit all of them.
func (c *siteChange) commit(settings func()) {
	w := c.site
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = c.wanted
	for at, s := range w.serving {
		unwanted := !slices.Contains(c.wanted, at)
		if unwanted || c.anew || c.fresh[at] != nil { // anew without fresh: it came since prepare
			s.Close()
			delete(w.serving, at)
		}
		if unwanted {
			w.log.Info("no longer serving "+w.what, "address", at)
		}
	}
	settings()
	for at, l := range c.fresh {
		w.begin(at, l)
	}
	for at := range w.waiting {
		if !slices.Contains(c.wanted, at) {
			delete(w.waiting, at)
		}
	}
	c.fresh = nil
	w.lookLocked() // what cannot be served yet, the keeper looks at again
}

// begin serves on an address. The caller holds mu.
func (w *httpSite) begin(at netip.AddrPort, l net.Listener) {
	if before := w.serving[at]; before.Server != nil {
		before.Close()
	}
	if w.serving == nil {
		w.serving = map[netip.AddrPort]siteServer{}
	}
	w.serving[at] = siteServer{w.serve(l), l, relay.Scope(at.Addr())}
	attrs := []any{"address", at}
	if w.scheme != nil {
		attrs = append(attrs, "url", w.scheme()+"://"+l.Addr().String()+"/")
	}
	w.log.Info("serving "+w.what, attrs...)
}

// look serves on addresses that this host has got, also on those of an interface that was made anew,
// and logs those that it has not. again: the site cannot listen on one.
func (w *httpSite) look() (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lookLocked()
}

func (w *httpSite) lookLocked() (again bool) {
	for _, at := range w.wanted {
		why, known := relay.Absence(at.Addr())
		if !known {
			again = true
			continue
		}
		var problem, said, reason, fix string
		if why != nil {
			problem = fmt.Sprintf("%s waits for address %s: %s", w.what, at, *why)
			said, reason, fix = "waiting for an address, the relay goes on without it", *why, relay.AbsenceFix
		}
		s := w.serving[at]
		if why == nil && (s.Server == nil || s.scope != relay.Scope(at.Addr())) {
			l, err := httpd.Listen(context.Background(), at)
			if err == nil {
				w.begin(at, l)
			} else {
				problem = fmt.Sprintf("%s is not served on %s: %v", w.what, at, err)
				said, reason, fix = "cannot listen on an address, the relay goes on without it", err.Error(), cmp.Or(remedy.Of(err), "see with ss -ltnp what listens there")
				again = true
			}
		}
		before, waited := w.waiting[at]
		switch {
		case problem == "":
			delete(w.waiting, at)
		case !waited || before.Problem != problem:
			if w.waiting == nil {
				w.waiting = map[netip.AddrPort]flow.HostProblem{}
			}
			w.waiting[at] = flow.HostProblem{Part: flow.HostAddress, Problem: problem, Fix: fix, Since: time.Now()}
			w.log.Warn(said, "service", w.what, "address", at, "reason", reason, "remedy", fix)
		}
	}
	return again
}

// lacks lists the addresses that the site waits for, and TLS files that cannot be used.
func (w *httpSite) lacks() (all []flow.HostProblem) {
	if g := w.web.Load(); g != nil {
		if p := g.Problem(); p != nil {
			all = append(all, flow.HostProblem{Part: flow.HostTLSFiles, Problem: p.Text, Fix: p.Fix, Since: p.Since})
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.wanted {
		if p, ok := w.waiting[at]; ok {
			all = append(all, p)
		}
	}
	return all
}

// introduce has sites take over each other's addresses at a reload.
func introduce(sites ...*httpSite) {
	for i, w := range sites {
		w.others = slices.Delete(slices.Clone(sites), i, i+1)
	}
}

// leavers are the addresses in service that are not wanted and that overlap another. The caller holds mu.
func (w *httpSite) leavers(at netip.AddrPort, wanted []netip.AddrPort) (all []netip.AddrPort) {
	for served := range w.serving {
		if tcpinfo.Overlap(served, at) && !slices.Contains(wanted, served) {
			all = append(all, served)
		}
	}
	return all
}

// yield reports whether only addresses that this site and others leave keep it from listening on one. The
// caller holds mu.
func (w *httpSite) yield(at netip.AddrPort, wanted []netip.AddrPort) bool {
	leave := w.leavers(at, wanted)
	for _, other := range w.others {
		other.mu.Lock()
		leave = append(leave, other.leavers(at, nil)...) // no two addresses of a configuration overlap
		other.mu.Unlock()
	}
	return len(leave) > 0 && !tcpinfo.OtherListener(at, leave...)
}

// give ends the servers of addresses that leave for another one. The caller holds mu.
func (w *httpSite) give(at netip.AddrPort, wanted []netip.AddrPort) {
	for _, served := range w.leavers(at, wanted) {
		w.serving[served].Close()
		delete(w.serving, served)
		w.wanted = slices.DeleteFunc(slices.Clone(w.wanted), func(a netip.AddrPort) bool { return a == served })
		w.log.Info("no longer serving "+w.what, "address", served)
	}
}

// again returns a second listener on an address in service; nil: not in service. The caller holds mu.
func (w *httpSite) again(at netip.AddrPort) (net.Listener, error) {
	s := w.serving[at]
	if s.Server == nil {
		return nil, nil
	}
	f, err := s.listener.(*net.TCPListener).File()
	if err != nil {
		return nil, fmt.Errorf("serve %s again on %s: %w", w.what, at, err)
	}
	defer f.Close()
	return net.FileListener(f)
}

// handedOver returns another process's listener on an address; nil: none.
func (w *httpSite) handedOver(at netip.AddrPort) (net.Listener, error) {
	for _, s := range w.past.sockets() {
		if s.Configured == at {
			l, err := net.FileListener(s.File)
			if err != nil {
				return nil, fmt.Errorf("take over HTTP on %s: %w", at, err)
			}
			return l, nil
		}
	}
	return nil, nil
}

// sockets returns the listening sockets for another process.
func (w *httpSite) sockets() (all []handover.Socket, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, s := range w.serving {
		f, err := s.listener.(*net.TCPListener).File()
		if err != nil {
			handover.CloseAll(all)
			return nil, fmt.Errorf("hand over HTTP on %s: %w", at, err)
		}
		all = append(all, handover.Socket{Configured: at, Bound: s.listener.Addr().(*net.TCPAddr).AddrPort(), File: f})
	}
	return all, nil
}

// leave leaves the addresses to another process. Most requests in progress finish
// before it returns. The others get a grace period, which close waits out.
func (w *httpSite) leave(within time.Duration) {
	answered := make(chan struct{})
	defer func() {
		go func() {
			w.leaving.Wait()
			close(answered)
		}()
		select {
		case <-answered:
		case <-time.After(within / 10):
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = nil
	for at, s := range w.serving {
		w.leaving.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			s.Finish(ctx)
		})
		delete(w.serving, at)
	}
}

func (w *httpSite) close() {
	w.mu.Lock()
	w.wanted = nil
	for _, s := range w.serving {
		s.Close()
	}
	w.mu.Unlock()
	w.leaving.Wait()
}
