package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/relays"
	"longhaul/lab/wan"
)

// world is the relays of a way, a client on host-a and a target on host-b.
type world struct {
	*kit.World
	way     string
	trusted string     // whose PROXY headers the near relay wants; empty: nobody's
	line    []station  // the near relay first
	paths   []wan.Path // the WANs, that of site A first
	to      netip.AddrPort
	target  *target

	upgraded int64 // flows that an older process of a relay took to their end, summed

	mu      sync.Mutex // guards what follows
	dice    *rand.Rand
	clients []*client
}

// station is a relay on a flow's way.
type station struct {
	*relays.Process
	site string
	file string // of its history
}

// Tunnels have a port each; the target of the second one refuses.
const (
	port       = 6000
	targetPort = 5000
	refuses    = 1
	tunnels    = 2

	proxyPort = 7000 // of HAProxy
)

// The WANs are short: thousands of flows are to pass them.
const (
	wanRTT     = 4 * time.Millisecond
	wanRateBps = 1e9
)

// resume of all pairs, and how long a WAN is away.
const resume = 2 * time.Second

func newWorld(ctx context.Context, o kit.Options, way, trusted string, seed uint64) (*world, error) {
	c := lab.MitreConditions()
	c.RTT, c.RateBps = wanRTT, wanRateBps
	t := lab.TwoSites(c)
	if way == wayChain {
		t = lab.ViaHub(c, c)
	}
	// The client binds its ports.
	t.Hosts[0].Sysctls = append(slices.Clone(t.Hosts[0].Sysctls), lab.Sysctl{Name: "net.ipv4.ip_local_port_range", Value: "60000 65000"})
	w := &world{way: way, trusted: trusted, to: netip.AddrPortFrom(lab.RelayA, port), target: &target{seen: map[token][]sight{}}, dice: rand.New(rand.NewPCG(seed, 0))}
	if way == wayHAProxy {
		w.trusted, w.to = lab.RelayA.String(), netip.AddrPortFrom(lab.RelayA, proxyPort)
	}
	built, err := kit.NewWorld(t, o.Program, o.Report)
	if err != nil {
		return nil, err
	}
	w.World = built
	if err := w.start(ctx); err != nil {
		err = w.Explain(err)
		w.Close()
		return nil, err
	}
	return w, nil
}

// start starts the target and what is before it.
func (w *world) start(ctx context.Context) error {
	if err := w.Serve(ctx, "host-b", targetPort, w.target.serve); err != nil {
		return err
	}
	if err := w.startRelays(ctx); err != nil {
		return err
	}
	if w.way == wayHAProxy {
		return w.startHAProxy(ctx)
	}
	return nil
}

// over is a WAN with the far relay's address.
type over struct {
	link, near, far string
	at              netip.Addr
}

func (w *world) wans() []over {
	if w.way == wayChain {
		return []over{{lab.WAN, "relay-a", lab.Hub, lab.WANB}, {lab.WAN2, lab.Hub, "relay-b", lab.WANB2}}
	}
	return []over{{lab.WAN, "relay-a", "relay-b", lab.WANB}}
}

// startRelays makes the keys and starts the relays, the last one first.
func (w *world) startRelays(ctx context.Context) error {
	hosts := []string{"relay-a"}
	for _, one := range w.wans() {
		hosts = append(hosts, one.far)
		w.paths = append(w.paths, wan.Path{Near: w.Host(one.near), Far: w.Host(one.far), Link: w.Link(one.link),
			Serves: func(p uint16) bool { return p == port || p == port+refuses }})
		if w.way == wayUnpaired {
			continue
		}
		peer := func(host string) relays.Peer {
			return relays.Peer{Host: w.Host(host), Name: siteOf(host), Keys: w.keys(host)}
		}
		if err := relays.Introduce(ctx, w.Program, peer(one.far), peer(one.near), netip.AddrPortFrom(one.at, port).String()); err != nil {
			return err
		}
	}
	for _, host := range hosts {
		w.line = append(w.line, station{w.Relay(host, host), siteOf(host), filepath.Join(w.Dir, host+".db")})
	}
	for _, s := range slices.Backward(w.line) {
		if err := s.Start(ctx, w.config(s)); err != nil {
			return err
		}
	}
	return nil
}

// siteOf is how the other relays call a host.
func siteOf(host string) string { return "site-" + host[strings.LastIndexByte(host, '-')+1:] }

func (w *world) keys(host string) string { return filepath.Join(w.Dir, "keys-"+host) }

// config is a relay's configuration.
func (w *world) config(s station) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "control_socket: %s\nhistory: {file: %s, max_size: 300MiB}\n", s.Socket(), s.file)
	if w.way != wayUnpaired {
		fmt.Fprintf(b, "pair_keys: %s\n", w.keys(s.Host.Name))
	}
	b.WriteString("tunnels:\n")
	for n := range uint16(tunnels) {
		fmt.Fprintf(b, "  - {name: %s, %s}\n", [...]string{"main", "refuses"}[n], strings.Join(w.settings(s, n), ", "))
	}
	return b.String()
}

// settings are those of a relay's tunnel.
func (w *world) settings(s station, n uint16) (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	paired := w.way != wayUnpaired
	var headers []string
	at, forward := lab.RelayA, netip.AddrPortFrom(lab.HostB, targetPort+n)
	for _, one := range w.wans() {
		switch s.Host.Name {
		case one.near:
			forward = netip.AddrPortFrom(one.at, port+n)
			if paired {
				add("pair: {peer: %s, resume: %v}", siteOf(one.far), resume)
			}
		case one.far:
			at = one.at
			if paired {
				add("pair_from: %s", siteOf(one.near))
			} else {
				headers = append(headers, fmt.Sprintf("in: {trusted: [%v]}", lab.WANA))
			}
		}
	}
	if at == lab.RelayA && w.trusted != "" {
		headers = append(headers, fmt.Sprintf("in: {trusted: [%s]}", w.trusted))
	}
	if forward.Addr() == lab.HostB || !paired {
		headers = append(headers, "out: v2")
	}
	add("listen: %v", netip.AddrPortFrom(at, port+n))
	add("forward: %v", forward)
	if len(headers) > 0 {
		add("proxy_protocol: {%s}", strings.Join(headers, ", "))
	}
	if at == lab.RelayA || !paired {
		add("allow: [0.0.0.0/0]")
	}
	return all
}

// haproxyLog is the file with a line for each of HAProxy's connections.
func (w *world) haproxyLog() string { return filepath.Join(w.Dir, "haproxy.log") }

// startHAProxy starts HAProxy before the near relay.
func (w *world) startHAProxy(ctx context.Context) error {
	b := &strings.Builder{}
	b.WriteString(`global
    log stdout format raw local0 info
defaults
    mode tcp
    log global
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    unique-id-format %[uuid()]
    log-format "flow %ID %ci %cp"
`)
	for n := range tunnels {
		fmt.Fprintf(b, "listen tunnel-%d\n    bind %v:%d\n    server near %v:%d send-proxy-v2 proxy-v2-options unique-id\n",
			n, lab.RelayA, proxyPort+n, lab.RelayA, port+n)
	}
	config := filepath.Join(w.Dir, "haproxy.cfg")
	if err := os.WriteFile(config, []byte(b.String()), 0o600); err != nil {
		return err
	}
	// It never waits for a file.
	_, err := w.Start(ctx, "relay-a", proxyPort, "sh", "-c", `exec "$0" -db -f "$1" >"$2"`, lab.FindProgram("haproxy"), config, w.haproxyLog())
	return err
}

// idle waits until no relay has a flow.
func (w *world) idle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("relays still have flows %v after the last one has ended", patience))
	defer cancel()
	for {
		left := int64(0)
		for _, s := range w.line {
			processes, err := s.StatusOfAll(ctx)
			if err != nil {
				return err
			}
			for _, status := range processes {
				left += status.FlowsNow
			}
		}
		if left == 0 {
			return nil
		}
		if kit.Pause(ctx, 20*time.Millisecond) != nil {
			return context.Cause(ctx)
		}
	}
}

// errorf is an error with the logs of what ran.
func (w *world) errorf(format string, args ...any) error {
	return w.Explain(fmt.Errorf(format, args...))
}
