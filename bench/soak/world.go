package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/carry/integrity"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/relays"
)

// world is two sites with one relay at site A, two at site B, and a WAN to
// each of these:
//
//	                              ╔═wan══ relay-b ──┐
//	client on host-a ── relay-a ══╣                 ├── target on host-b
//	                              ╚═wan2═ relay-b2 ─┘
type world struct {
	*kit.World
	near *relays.Process    // relay-a
	far  [2]*relays.Process // relay-b, relay-b2

	// checks are made of the far relays, and of the whole chain. The target sees
	// them as connections without a byte, which not every part's target expects.
	checks bool

	mu      sync.Mutex
	reasons map[netip.AddrPort][]string // what relay-a's log says of the ends of cut flows, by client
}

// The ports. Each is the same on all relays.
const (
	mainPort    = 6000 // leads to the target
	refusedPort = 6001 // leads to where nobody listens
	extraPort   = 6010 // and following: tunnels that come and go
	httpPort    = 6080 // answers to health checks, on the address of the tunnels
	targetPort  = 5000
	nobodyPort  = 5999
)

// The WAN: short and wide enough for many flows in little time.
const (
	wanRTT     = 10 * time.Millisecond
	wanRateBps = 300e6
)

// checkInterval lies between two integrity checks of the chain.
const checkInterval = 2 * time.Second

// newWorld builds the lab and starts the relays. The process must be inside a
// sandbox.
func newWorld(ctx context.Context, program string, seed uint64, checks bool) (*world, error) {
	c := lab.MitreConditions()
	c.RTT, c.RateBps, c.Seed = wanRTT, wanRateBps, seed
	built, err := kit.NewWorld(lab.TwoFarRelays(c), program, nil)
	if err != nil {
		return nil, err
	}
	w := &world{World: built, checks: checks, reasons: map[netip.AddrPort][]string{}}
	w.near, w.far = built.Relay("relay-a", "relay-a"), [2]*relays.Process{built.Relay("relay-b", "relay-b"), built.Relay("relay-b2", "relay-b2")}
	w.near.Line = w.nearSays
	if err := integrity.NewKey().Create(w.keyFile()); err != nil {
		w.Close()
		return nil, err
	}
	// The far ones first: the near one checks them at once.
	for _, r := range []*relays.Process{w.far[0], w.far[1], w.near} {
		if err := r.Start(ctx, w.config(r, 0)); err != nil {
			w.Close()
			return nil, err
		}
	}
	return w, nil
}

// all are the relays, the near one first.
func (w *world) all() []*relays.Process { return []*relays.Process{w.near, w.far[0], w.far[1]} }

// statuses asks every relay, in the order of all.
func (w *world) statuses(ctx context.Context) ([]relays.Status, error) {
	var answers []relays.Status
	for _, r := range w.all() {
		s, err := r.Status(ctx)
		if err != nil {
			return nil, err
		}
		answers = append(answers, s)
	}
	return answers, nil
}

// stop has the relays stop, which must leave nothing to reset.
func (w *world) stop(ctx context.Context) error {
	for _, r := range w.all() {
		if status, err := r.Stop(ctx); err != nil || status != 0 {
			return errors.Join(err, fmt.Errorf("%s stopped with status %d\n%s", r.Name, status, r.Log()))
		}
	}
	return nil
}

// config is a relay's configuration. Variants differ in limits, in timeouts
// and in tunnels that come and go, and each lets the run's flows pass.
func (w *world) config(r *relays.Process, variant int) string {
	listen, forward := lab.RelayA, func(port uint16) string {
		return fmt.Sprintf("[%v, %v]", netip.AddrPortFrom(lab.WANB, port), netip.AddrPortFrom(lab.WANB2, port))
	}
	mainTo, refusedTo := forward(mainPort), forward(refusedPort)
	for i, address := range [2][2]netip.Addr{{lab.WANB, lab.HostB}, {lab.WANB2, lab.HostBOnB2}} {
		if r == w.far[i] {
			listen = address[0]
			mainTo = netip.AddrPortFrom(address[1], targetPort).String()
			refusedTo = netip.AddrPortFrom(address[1], nobodyPort).String()
		}
	}
	health, checked := "off", "off"
	if w.checks {
		checked = fmt.Sprintf("{key_file: %s, bytes: 64KiB}", w.keyFile())
	}
	if r == w.near && w.checks {
		checked = fmt.Sprintf("{key_file: %s, bytes: 64KiB, next: relay, interval: %v}", w.keyFile(), checkInterval)
		health = fmt.Sprintf("{check: connect, interval: 1s, timeout: 500ms, eject_for: 1s, slow_return: %ds}", 1+variant%3)
	}
	text := fmt.Sprintf(`control_socket: %s
drain_timeout: 5s
memory_limit: %dMiB
http_listen: %s
log: {level: %s}
defaults:
  connect_timeout: 30s
  balance: least-flows
  wan: {keepalive: {idle: 5s, interval: 2s, count: 5}}
tunnels:
  - {name: main, listen: %s:%d, forward: %s, max_flows: %d, health: %s, check: %s}
  - {name: refused, listen: %s:%d, forward: %s, idle_timeout: %ds}
`, r.Socket(), 1024+variant%2, netip.AddrPortFrom(listen, httpPort), []string{"info", "debug"}[variant%2],
		listen, mainPort, mainTo, 30000+variant, health, checked, listen, refusedPort, refusedTo, 600+variant%7)
	for i := range variant % 4 {
		text += fmt.Sprintf("  - {name: extra-%d, listen: %s:%d, forward: %s}\n", i, listen, extraPort+(i+variant)%5, mainTo)
	}
	return text
}

// keyFile holds the secret of the relays' integrity checks.
func (w *world) keyFile() string { return filepath.Join(w.Dir, "check.key") }

// hopOf is the near relay's hop that leads to a far one.
func (w *world) hopOf(far int) string {
	return "main/" + netip.AddrPortFrom([2]netip.Addr{lab.WANB, lab.WANB2}[far], mainPort).String()
}

// dial connects from host-a to a port of relay-a.
func (w *world) dial(ctx context.Context, port uint16) (conn *net.TCPConn, err error) {
	return w.dialTo(ctx, "host-a", netip.AddrPortFrom(lab.RelayA, port))
}

func (w *world) dialTo(ctx context.Context, host string, to netip.AddrPort) (*net.TCPConn, error) {
	return w.Host(host).DialTCP(ctx, to, stallLimit)
}

// listen opens the target's socket on host-b, for both relays there.
func (w *world) listen(ctx context.Context) (*net.TCPListener, error) {
	return w.Host("host-b").ListenTCP(ctx, targetPort)
}

// setWAN changes both directions of one of the links between the sites.
func (w *world) setWAN(name string, change func(*link.Settings)) error {
	return w.Link(name).Change(change)
}
