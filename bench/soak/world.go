package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"longhaul/internal/lab"
	"longhaul/internal/lab/link"
)

// world is two sites with a relay each, and a WAN between them:
//
//	client on host-a ──LAN── relay-a ══WAN══ relay-b ──LAN── target on host-b
type world struct {
	lab  *lab.Lab
	near *relayProcess // relay-a
	far  *relayProcess // relay-b
}

// The ports. Each is the same on both relays.
const (
	mainPort    = 6000 // leads to the target
	refusedPort = 6001 // leads to where nobody listens
	extraPort   = 6010 // and following: tunnels that come and go
	targetPort  = 5000
	nobodyPort  = 5999
)

// The WAN: short and wide enough for many flows in little time.
const (
	wanRTT     = 10 * time.Millisecond
	wanRateBps = 300e6
)

var privateRun = sync.OnceValue(lab.PrivateRun)

// newWorld builds the lab and starts both relays. The process must be inside
// a sandbox.
func newWorld(ctx context.Context, binary string, seed uint64) (*world, error) {
	// In a /run that goes with the sandbox, however that ends.
	if err := privateRun(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/run", "soak-")
	if err != nil {
		return nil, err
	}
	if binary == "" {
		binary = filepath.Join(dir, "longhaul")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "longhaul/cmd/longhaul").CombinedOutput(); err != nil {
			os.RemoveAll(dir)
			return nil, fmt.Errorf("build longhaul: %w\n%s", err, out)
		}
	}
	c := lab.MitreConditions()
	c.RTT, c.RateBps, c.Seed = wanRTT, wanRateBps, seed
	built, err := lab.Build(lab.TwoSites(c))
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	w := &world{
		lab:  built,
		near: &relayProcess{name: "relay-a", host: built.Host("relay-a"), binary: binary, dir: dir},
		far:  &relayProcess{name: "relay-b", host: built.Host("relay-b"), binary: binary, dir: dir},
	}
	for _, r := range []*relayProcess{w.near, w.far} {
		if err := r.start(ctx, w.config(r, 0)); err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

// stop has both relays stop, which must leave nothing to reset.
func (w *world) stop(ctx context.Context) error {
	for _, r := range []*relayProcess{w.near, w.far} {
		if status, err := r.stop(ctx); err != nil || status != 0 {
			return errors.Join(err, fmt.Errorf("%s stopped with status %d\n%s", r.name, status, r.log))
		}
	}
	return nil
}

func (w *world) close() {
	for _, r := range []*relayProcess{w.near, w.far} {
		if r.cmd != nil && r.exited != nil {
			_ = r.kill()
		}
	}
	w.lab.Close()
	os.RemoveAll(w.near.dir)
}

// config is a relay's configuration. Variants differ in limits, in timeouts
// and in tunnels that come and go, and each lets the run's flows pass.
func (w *world) config(r *relayProcess, variant int) string {
	listen, main, refused := lab.RelayA, netip.AddrPortFrom(lab.WANB, mainPort), netip.AddrPortFrom(lab.WANB, refusedPort)
	if r.name == "relay-b" {
		listen, main, refused = lab.WANB, netip.AddrPortFrom(lab.HostB, targetPort), netip.AddrPortFrom(lab.HostB, nobodyPort)
	}
	text := fmt.Sprintf(`control_socket: %s
drain_timeout: 5s
memory_limit: %dMiB
log: {level: %s}
defaults:
  connect_timeout: 30s
  wan: {keepalive: {idle: 5s, interval: 2s, count: 5}}
tunnels:
  - {name: main, listen: %s:%d, forward: %s, max_flows: %d}
  - {name: refused, listen: %s:%d, forward: %s, idle_timeout: %ds}
`, r.socket(), 1024+variant%2, []string{"info", "debug"}[variant%2],
		listen, mainPort, main, 30000+variant, listen, refusedPort, refused, 600+variant%7)
	for i := range variant % 4 {
		text += fmt.Sprintf("  - {name: extra-%d, listen: %s:%d, forward: %s}\n", i, listen, extraPort+(i+variant)%5, main)
	}
	return text
}

// dial connects from host-a to a port of relay-a.
func (w *world) dial(ctx context.Context, port uint16) (conn *net.TCPConn, err error) {
	err = w.lab.Host("host-a").Do(func() error {
		d := net.Dialer{Timeout: stallLimit}
		d.SetMultipathTCP(false)
		c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(lab.RelayA, port).String())
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	return conn, err
}

// listen opens the target's socket on host-b.
func (w *world) listen(ctx context.Context) (listener *net.TCPListener, err error) {
	err = w.lab.Host("host-b").Do(func() error {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(lab.HostB, targetPort).String())
		if err == nil {
			listener = l.(*net.TCPListener)
		}
		return err
	})
	return listener, err
}

// setWAN changes both directions of the link between the relays.
func (w *world) setWAN(change func(*link.Settings)) error {
	wan := w.lab.Link(lab.WAN)
	var errs []error
	for _, dir := range []link.Direction{link.AToB, link.BToA} {
		s := wan.Settings(dir)
		change(&s)
		errs = append(errs, wan.Set(dir, s))
	}
	return errors.Join(errs...)
}
