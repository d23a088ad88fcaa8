package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/relays"
	"longhaul/lab/tcpserver"
	"longhaul/lab/wan"
)

// world is two sites with a way between them, and a target on host-b:
//
//	client on host-a ── relay-a ══WAN══ relay-b ── target on host-b
type world struct {
	*kit.World // the far relay first; no relays on ways without longhaul
	way        string
	settings
	to netip.AddrPort // where clients connect

	before func() // what close does first; may be nil

	mu   sync.Mutex
	said []string // lines of the near relay's log
}

// settings are those of longhaul's relays, beside the usual ones.
type settings struct {
	env     []string // of the processes
	process string   // lines of both configurations
	pair    string   // of the near tunnel's pair, like ", resume: 5s"
	tunnel  string   // of the near tunnel, like ", wan: {rate: 100Mbit}"
	far     string   // of the far tunnel
	both    string   // of both tunnels
	tunnels uint16   // 0: one
	wans    bool     // the far relay listens on the second WAN too
}

const (
	port       = lab.RelayPort
	targetPort = 5000
	// refusedTunnel is the number of a tunnel whose target refuses. The ports of a tunnel
	// are those of the first one and its number.
	refusedTunnel = 1
)

// The addresses of the near relay, of the far one, and of the target.
var (
	addressNear = lab.RelayAListens.String()
	addressFar  = netip.AddrPortFrom(lab.WANB, port).String()
	addressTo   = netip.AddrPortFrom(lab.HostB, targetPort).String()
)

// patience bounds every step that nothing delays on purpose.
const patience = time.Minute

// newWorld builds the sites and starts what the way needs. serve is the target.
func newWorld(ctx context.Context, o kit.Options, c lab.Conditions, way string, serve func(net.Conn)) (*world, error) {
	return buildWorld(ctx, o, lab.TwoSites(c), way, serve, settings{})
}

// buildWorld is newWorld with any topology of the two sites, and with settings for
// longhaul's relays.
func buildWorld(ctx context.Context, o kit.Options, t lab.Topology, way string, serve func(net.Conn), s settings) (w *world, err error) {
	built, err := kit.NewWorld(t, o.Program, o.Report)
	if err != nil {
		return nil, err
	}
	w = &world{World: built, way: way, settings: s}
	defer func() {
		if err != nil {
			err = w.Explain(err)
			w.close()
		}
	}()
	if way == WayMPTCP {
		l, err := built.Host("host-b").ListenMPTCP(ctx, targetPort)
		if err != nil {
			return w, err
		}
		w.AtClose(tcpserver.Serve(l, serve))
	} else if err := w.Serve(ctx, "host-b", targetPort, serve); err != nil {
		return w, err
	}
	return w, w.start(ctx)
}

// start starts what stands between the sites.
func (w *world) start(ctx context.Context) error {
	w.to = lab.RelayAListens
	switch w.way {
	case WayDirect:
		w.to = netip.AddrPortFrom(lab.HostB, targetPort)
		return nil
	case WayHAProxy:
		return w.startHAProxy(ctx)
	case WayStunnel:
		return w.startStunnel(ctx)
	case WayWireGuard:
		w.to = netip.AddrPortFrom(lab.HostB, targetPort)
		return w.startWireGuard(ctx)
	case WayMPTCP:
		w.to = netip.AddrPortFrom(lab.HostB, targetPort)
		return w.startMPTCP(ctx)
	}
	return w.startRelays(ctx)
}

// near and far are the relays of both sites.
func (w *world) near() *relays.Process { return w.Relays[1] }
func (w *world) far() *relays.Process  { return w.Relays[0] }

// startRelays starts longhaul at both sites.
func (w *world) startRelays(ctx context.Context) error {
	if w.way != WayPlain {
		if err := w.makeKeys(ctx); err != nil {
			return err
		}
	}
	for _, name := range []string{"relay-b", "relay-a"} {
		r := w.Relay(name, name)
		r.Env = w.env
		if name == "relay-a" {
			r.Line = w.hear
		}
		if err := w.startRelay(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// startRelay starts one of the relays, or starts it again.
func (w *world) startRelay(ctx context.Context, r *relays.Process) error {
	return r.Start(ctx, w.config(r, ""))
}

// reload gives a relay another number of warm connections, if it is the near one, and
// its configuration in any case.
func (w *world) reload(ctx context.Context, r *relays.Process, warm int) error {
	return r.Reload(ctx, w.config(r, fmt.Sprintf(", warm: %d", warm)))
}

// config is the configuration of a relay, with more settings for the near one's pair.
func (w *world) config(r *relays.Process, more string) string {
	keys := ""
	if w.way != WayPlain {
		keys = "pair_keys: " + w.keys(r.Name)
	}
	config := fmt.Sprintf("control_socket: %s\n%s\n%s\ntunnels:\n", r.Socket(), keys, w.process)
	for n := range max(w.tunnels, 1) {
		tunnel := farTunnel(w.way, n, w.wans) + w.settings.far
		if r.Name == "relay-a" {
			tunnel = nearTunnel(w.way, n, w.pair+more) + w.tunnel
		}
		config += fmt.Sprintf("  - {name: %s, allow: [0.0.0.0/0], %s%s}\n", tunnelName(n), tunnel, w.both)
	}
	return config
}

func tunnelName(n uint16) string {
	if n == 0 {
		return "main"
	}
	return fmt.Sprintf("tunnel-%d", n)
}

// hear keeps a line of the near relay's log.
func (w *world) hear(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, line)
}

// heard returns the lines of the near relay's log that contain a text.
func (w *world) heard(text string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for _, line := range w.said {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// dial connects from host-a to the target, over the way.
func (w *world) dial(ctx context.Context) (*net.TCPConn, error) {
	if w.way == WayMPTCP {
		return w.Host("host-a").DialMPTCP(ctx, w.to, patience)
	}
	return w.Host("host-a").DialTCP(ctx, w.to, patience)
}

// path is the WAN between the relays.
func (w *world) path() *wan.Path { return w.pathOver(lab.WAN) }

// pathOver is one of several.
func (w *world) pathOver(link string) *wan.Path {
	return &wan.Path{Near: w.Host("relay-a"), Far: w.Host("relay-b"), Link: w.Link(link),
		Serves: func(p uint16) bool { return p == port || p == port+refusedTunnel }}
}

// cut cuts the WAN in both directions, or mends it.
func (w *world) cut(down bool) error {
	w.Report.Linef("  %s: the WAN is %s", time.Now().Format(clock), map[bool]string{true: "cut", false: "mended"}[down])
	return w.path().Cut(down, wan.BothWays...)
}

// errorf is an error with the log of what ran.
func (w *world) errorf(format string, args ...any) error {
	return w.Explain(fmt.Errorf(format, args...))
}

// pids returns the processes of the way.
func (w *world) pids() []int {
	var all []int
	for _, r := range w.Relays {
		all = append(all, r.PID())
	}
	for _, d := range w.Running() {
		all = append(all, d.PID())
	}
	return all
}

func (w *world) close() {
	if w.before != nil {
		w.before()
	}
	w.Close()
}

// ports bounds the near relay's local ports.
func (w *world) ports(least, most int) error {
	return w.Host("relay-a").Sysctl("net.ipv4.ip_local_port_range", fmt.Sprint(least, " ", most))
}
