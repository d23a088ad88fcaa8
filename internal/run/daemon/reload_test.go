package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"longhaul/internal/carry/integrity"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/httpd"
	"longhaul/test/nettest"
)

var errRefused = errors.New("refused")

// refusing is a part that cannot be prepared.
type refusing struct{}

func (refusing) Prepare(context.Context, *plan) (Change, error) { return nil, errRefused }

// refusedLate is a part whose attempt fails.
type refusedLate struct{ part }

func (r refusedLate) Prepare(ctx context.Context, p *plan) (Change, error) {
	change, err := r.part.Prepare(ctx, p)
	return refusedAttempt{change}, err
}

type refusedAttempt struct{ Change }

func (a refusedAttempt) Try() error { a.Abort(); return errRefused }

// TestFailedReloadChangesNothing has each part in turn fail while a configuration with everything is
// prepared, at the start and at reloads.
func TestFailedReloadChangesNothing(t *testing.T) {
	unbound := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(unbound)
	dir := nettest.OpenTempDir(t)
	address := map[string]string{}
	for _, name := range []string{"first", "second", "near", "far", "http", "health", "pages", "checks"} {
		address[name] = nettest.FreeAddress(t, "127.0.0.1")
	}
	cert, certKey := nettest.Certificate(t, dir, "localhost")
	web := filepath.Join(dir, "web.yaml")
	nettest.Must(t, os.WriteFile(web, fmt.Appendf(nil, "tls_server_config: {cert_file: %q, key_file: %q}\n", cert, certKey), 0o600))
	key := filepath.Join(dir, "key")
	nettest.Must(t, integrity.NewKey().Create(key))
	const (
		plain = `
log: {level: warn}
http_listen: HTTP
tunnels:
  - {name: a, listen: FIRST, forward: 127.0.0.1:9, wan_side: forward}
`
		paired = plain + `
  - {name: near, listen: NEAR, forward: 127.0.0.1:9, wan_side: forward, pair: site-b}
`
		everything = `
log: {level: debug}
http_listen: [HTTP, HEALTH]
http_web_config: WEB
health_listen: CHECKS
dashboard: {listen: PAGES}
history: {file: DIR/history.db}
memory_limit: 1GiB
tunnels:
  - {name: a, listen: FIRST, forward: 127.0.0.1:10, wan_side: forward, check: {key_file: KEY, interval: 1h}}
  - {name: b, listen: SECOND, forward: 127.0.0.1:9, wan_side: forward}
  - {name: near, listen: NEAR, forward: 127.0.0.1:9, wan_side: forward, pair: site-c}
  - {name: far, listen: FAR, forward: 127.0.0.1:9, wan_side: listen, pair_from: site-d}
`
	)
	load := func(t *testing.T, text string) *config.Config {
		t.Helper()
		for name, at := range address {
			text = strings.ReplaceAll(text, strings.ToUpper(name), at)
		}
		text = strings.NewReplacer("KEY", key, "DIR", dir, "WEB", web).Replace(text) + "control_socket: " + filepath.Join(dir, "control.sock") + "\npair_keys: " + dir + "/keys\n"
		path := filepath.Join(dir, "longhaul.yaml")
		nettest.Must(t, os.WriteFile(path, []byte(text), 0o600))
		c, err := config.Loader{}.Load(t.Context(), path)
		nettest.Must(t, err)
		return c
	}
	for name, before := range map[string]string{"start": "", "reload": plain, "reload of pairs": paired} {
		debug.SetMemoryLimit(unbound)
		t.Run(name, func(t *testing.T) {
			now, next := &config.Config{}, load(t, everything)
			if before != "" {
				now = load(t, before)
			}
			d := assembled(t, "", now)
			if before != "" {
				nettest.Must(t, change(t.Context(), d.parts, d.plan(now)))
			}
			was := inForce(d)
			fails := func(name string, parts []part) {
				t.Run(name, func(t *testing.T) {
					nettest.CheckLeaks(t)
					if err := change(t.Context(), parts, d.plan(next)); !errors.Is(err, errRefused) {
						t.Fatalf("the error is %v", err)
					}
					if is := inForce(d); is != was {
						t.Errorf("in force is\n%s\nand not, as before,\n%s", is, was)
					}
					for _, name := range []string{"second", "far", "health", "pages"} {
						if c, err := net.Dial("tcp", address[name]); err == nil {
							c.Close()
							t.Errorf("%s, of the new configuration, is served", name)
						}
					}
				})
			}
			for i := range d.parts {
				fails(fmt.Sprintf("%T", d.parts[i]), append(slices.Clone(d.parts[:i]), refusing{}))
				if _, ok := d.parts[i].(relayTunnels); ok {
					late := slices.Clone(d.parts)
					late[i] = refusedLate{d.parts[i]}
					fails("attempt", late)
				}
			}
			fails("last", append(slices.Clone(d.parts), refusing{}))
			nettest.Must(t, change(t.Context(), d.parts, d.plan(next)))
			if is := inForce(d); is == was {
				t.Errorf("a reload that succeeds changes nothing of\n%s", was)
			}
		})
	}
}

// TestSitesExchangeAddresses has a reload give addresses of one site to another, or change nothing.
func TestSitesExchangeAddresses(t *testing.T) {
	address := [4]string{}
	for i := range address {
		address[i] = nettest.FreeAddress(t, "127.0.0.1")
	}
	dir := nettest.OpenTempDir(t)
	for name, c := range map[string]struct{ before, after string }{
		"health takes that of http": {"http_listen: A", "http_listen: B\nhealth_listen: A"},
		"http takes that of health": {"http_listen: B\nhealth_listen: A", "http_listen: A"},
		"they swap":                 {"http_listen: A\nhealth_listen: B", "http_listen: B\nhealth_listen: A"},
		"all of them":               {"http_listen: A\nhealth_listen: B\ndashboard: {listen: C}", "http_listen: B\nhealth_listen: C\ndashboard: {listen: A}"},
		"a wider one":               {"http_listen: A", "http_listen: WIDE"},
		"a narrower one":            {"http_listen: WIDE", "http_listen: A"},
		"another's wider one":       {"http_listen: B\nhealth_listen: A", "http_listen: WIDE"},
		"one of several":            {"http_listen: [A, B]", "http_listen: A\ndashboard: {listen: B}"},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			load := func(text string) *config.Config {
				wide := "0.0.0.0:" + netip.MustParseAddrPort(address[0]).String()[len("127.0.0.1:"):]
				text = strings.NewReplacer("WIDE", wide, "A", address[0], "B", address[1], "C", address[2]).Replace(text)
				path := filepath.Join(dir, "longhaul.yaml")
				nettest.Must(t, os.WriteFile(path, fmt.Appendf(nil, "log: {level: warn}\n%s\ncontrol_socket: %s/control.sock\npair_keys: %[2]s/keys\ntunnels: [{name: t, listen: %[3]q, forward: \"127.0.0.1:9\"}]\n", text, dir, address[3]), 0o600))
				c, err := config.Loader{}.Load(t.Context(), path)
				nettest.Must(t, err)
				return c
			}
			now, next := load(c.before), load(c.after)
			d := assembled(t, "", now)
			// serves checks that each site of a configuration answers at its addresses, and no other.
			serves := func(c *config.Config) {
				t.Helper()
				for path, all := range map[string][]netip.AddrPort{"/metrics": c.HTTPListen, "/assets/app.css": c.Dashboard.Listen} {
					for _, at := range slices.Concat(c.HTTPListen, c.HealthListen, c.Dashboard.Listen) {
						for range 8 {
							status, _, err := httpd.Get(t.Context(), at.String(), path, 1<<20)
							nettest.Must(t, err)
							if got := status == http.StatusOK; got != slices.Contains(all, at) {
								t.Fatalf("%s at %s: %d", path, at, status)
							}
						}
					}
				}
			}
			nettest.Must(t, change(t.Context(), d.parts, d.plan(now)))
			serves(now)
			was := inForce(d)
			if err := change(t.Context(), append(slices.Clone(d.parts), refusing{}), d.plan(next)); !errors.Is(err, errRefused) {
				t.Fatalf("the error is %v", err)
			}
			if is := inForce(d); is != was {
				t.Errorf("in force is\n%s\nand not, as before,\n%s", is, was)
			}
			serves(now)
			nettest.Must(t, change(t.Context(), d.parts, d.plan(next)))
			serves(next)
		})
	}
}

type discardLog struct{}

func (discardLog) Write(b []byte) (int, error) { return len(b), nil }

// assembled is a daemon of a configuration, whose parts have nothing in force yet.
func assembled(t *testing.T, file string, c *config.Config) *daemon {
	t.Helper()
	d := &daemon{Options: Options{ConfigFile: file, Version: "test", Getenv: func(string) string { return "" }, ReadablePath: func(path string) string { return path }}, life: life{config: c}}
	d.orders = newOrders(&d.life, d.Getenv)
	d.log, d.output = openLog(discardLog{}, c.Log)
	t.Cleanup(func() { d.output.close(0) })
	d.assemble(nil)
	t.Cleanup(d.close)
	return d
}

// inForce describes what a configuration has set up.
func inForce(d *daemon) string {
	var b strings.Builder
	for _, t := range d.relay.Overview().Tunnels {
		for i := range t.Hops {
			t.Hops[i].Pair = nil // a pointer
		}
		fmt.Fprintf(&b, "tunnel %s at %v to %v\n", t.Name, t.Listen, t.Hops)
	}
	listeners, _ := d.relay.Listeners()
	for _, l := range listeners {
		l.File.Close()
	}
	fmt.Fprintln(&b, "listeners", len(listeners), "legs", len(d.legs.current), "budgets", len(d.legs.budgets.has))
	for _, name := range slices.Sorted(maps.Keys(d.integrity.current)) {
		t := d.integrity.current[name]
		fmt.Fprintln(&b, "check", name, t.check.Enabled, t.cancel != nil)
	}
	fmt.Fprintln(&b, "pairs", d.pairs.node != nil, slices.Sorted(maps.Keys(d.pairs.current.far)), d.pairs.memory.Load())
	for name, t := range d.pairs.current.near {
		fmt.Fprintln(&b, "near", name, t.peer)
	}
	fmt.Fprintln(&b, "interception", d.rules.wanted.Relay, len(d.rules.wanted.Tunnels))
	fmt.Fprintln(&b, "limits", debug.SetMemoryLimit(-1))
	fmt.Fprintln(&b, "history", d.history.state() != nil, "dashboard", d.pages.wanted, d.pages.reader != nil)
	fmt.Fprintln(&b, "http", d.http.wanted, len(d.http.serving), d.http.names.configured.Load(), speaksTLS(d.http.web.Load()))
	fmt.Fprintln(&b, "health", d.health.wanted, len(d.health.serving))
	fmt.Fprintln(&b, "control socket", d.control.opened, d.control.server != nil)
	fmt.Fprintln(&b, "log", d.output.level.Level())
	return b.String()
}

var _ attempt = (*tunnelsChange)(nil)
