package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/sys/kernel"
	"longhaul/lab"
	"longhaul/lab/relays"
)

// Every relay has two tunnels. Targets of the second one greet their clients, which wait for that.
const (
	tunnelMain, tunnelGreets = "main", "greets"
	tunnels                  = 2

	port       = 6000 // of tunnelMain; the next one is tunnelGreets'
	targetPort = 5000 // the same
)

// The sites, whose hosts have a key each.
const (
	siteA = "site-a"
	siteB = "site-b"
)

const rateBps = 300e6

// pairWithB is the setting of a near tunnel. Each hop gets its share of the new connections all the
// time, so that some of them are with the relay that fails.
const pairWithB = ", health: {slow_return: off}, pair: " + siteB

// world is a lab with its relays and the target on host-b.
type world struct {
	*kit.World
	target  *target
	to      netip.Addr        // where clients connect
	configs map[string]string // of the relays, by name
	debug   bool              // relays log what they do

	mu   sync.Mutex
	said []string // lines of the near relays' logs
}

func newWorld(ctx context.Context, o kit.Options, t lab.Topology) (w *world, err error) {
	w = &world{target: &target{requests: map[uint64]int{}}, to: lab.RelayA, configs: map[string]string{}}
	if w.World, err = kit.NewWorld(t, o.Program, o.Report); err != nil {
		return nil, err
	}
	for i, greets := range []bool{false, true} {
		err := w.Serve(ctx, "host-b", targetPort+uint16(i), func(c net.Conn) { w.target.answer(c, greets) })
		if err != nil {
			w.Close()
			return nil, err
		}
	}
	return w, nil
}

// newFarWorld is one near relay and two far ones, each behind a WAN of its own: relay-a, relay-b, relay-b2.
func newFarWorld(ctx context.Context, o kit.Options, p path) (*world, error) {
	c := lab.MitreConditions()
	c.RTT, c.RateBps, c.QueueBDP = p.rtt, rateBps, 0
	w, err := newWorld(ctx, o, lab.TwoFarRelays(c))
	if err != nil {
		return nil, err
	}
	if err := w.startFarWorld(ctx, p); err != nil {
		err = w.Explain(err)
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *world) startFarWorld(ctx context.Context, p path) error {
	near := []string{"relay-a"}
	far := []farRelay{
		{name: "relay-b", listen: lab.WANB, target: lab.HostB},
		{name: "relay-b2", listen: lab.WANB2, target: lab.HostBOnB2},
	}
	tunnel := ""
	if p.paired {
		if err := w.makeKeys(ctx, near, far); err != nil {
			return err
		}
		tunnel = pairWithB
	} else {
		tunnel = ", health: {check: connect, interval: 500ms, timeout: 500ms, slow_return: off}"
	}
	for _, f := range far {
		if err := w.startFar(ctx, f, p.paired); err != nil {
			return err
		}
	}
	err := w.startNear(ctx, near[0], lab.RelayA.String(), []netip.Addr{lab.WANB, lab.WANB2}, tunnel)
	if err == nil && p.paired {
		err = w.stands(ctx, tunnels*len(far), near...)
	}
	return err
}

// farRelay is one of site B.
type farRelay struct {
	name           string
	listen, target netip.Addr
	more           string // of both tunnels, such as ", advertise: …"; with PORT for the tunnel's port
}

// startFar starts a far relay.
func (w *world) startFar(ctx context.Context, f farRelay, paired bool) error {
	tunnel := func(i uint16) string {
		t := fmt.Sprintf("listen: \":%d\", forward: %v%s", port+i, netip.AddrPortFrom(f.target, targetPort+i),
			strings.ReplaceAll(f.more, "PORT", fmt.Sprint(port+i)))
		if paired {
			return t + ", pair_from: " + siteA
		}
		return t + ", allow: [0.0.0.0/0]"
	}
	return w.startRelay(ctx, f.name, paired, tunnel)
}

// startNear starts a near relay, whose tunnels have the far relays' addresses as hops.
func (w *world) startNear(ctx context.Context, name, listen string, far []netip.Addr, more string) error {
	paired := strings.Contains(more, "pair")
	tunnel := func(i uint16) string {
		var hops []string
		for _, a := range far {
			hops = append(hops, netip.AddrPortFrom(a, port+i).String())
		}
		return fmt.Sprintf("listen: %q, forward: [%s], balance: round-robin, allow: [0.0.0.0/0]%s",
			fmt.Sprintf("%s:%d", listen, port+i), strings.Join(hops, ", "), more)
	}
	return w.startRelay(ctx, name, paired, tunnel)
}

func (w *world) startRelay(ctx context.Context, name string, paired bool, tunnel func(i uint16) string) error {
	r := w.Relay(name, name)
	if strings.HasPrefix(name, "relay-a") {
		r.Line = w.hear
	}
	keys := ""
	if paired {
		keys = "pair_keys: " + w.keys(name) + "\n"
	}
	level := "info"
	if w.debug {
		level = "debug"
	}
	w.configs[name] = fmt.Sprintf("control_socket: %s\n%slog: {level: %s}\ntunnels:\n  - {name: %s, %s}\n  - {name: %s, %s}\n",
		r.Socket(), keys, level, tunnelMain, tunnel(0), tunnelGreets, tunnel(1))
	return r.Start(ctx, w.configs[name])
}

func (w *world) relay(name string) *relays.Process {
	return w.Relays[slices.IndexFunc(w.Relays, func(r *relays.Process) bool { return r.Name == name })]
}

// stands waits until near relays have their sessions with all far relays.
func (w *world) stands(ctx context.Context, sessions int, near ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, name := range near {
		for up := 0; up < sessions; {
			status, err := w.relay(name).Status(ctx)
			if err == nil {
				err = kit.Pause(ctx, 20*time.Millisecond)
			}
			if err != nil {
				return fmt.Errorf("%s has %d of %d sessions: %w", name, up, sessions, err)
			}
			up = 0
			for _, s := range status.Pairs.Sessions {
				if s.Up {
					up++
				}
			}
		}
	}
	return nil
}

// keys is the directory of a host's keys.
func (w *world) keys(host string) string { return filepath.Join(w.Dir, "keys-"+host) }

// makeKeys has each host of site A know each of site B, and the other way round.
func (w *world) makeKeys(ctx context.Context, near []string, far []farRelay) error {
	for _, f := range far {
		inviter := relays.Peer{Host: w.Host(f.name), Name: siteB + "/" + f.name, Keys: w.keys(f.name)}
		for _, n := range near {
			joiner := relays.Peer{Host: w.Host(n), Name: siteA + "/" + n, Keys: w.keys(n)}
			at := netip.AddrPortFrom(f.listen, port).String()
			if err := relays.Introduce(ctx, w.Program, inviter, joiner, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// hear keeps a line of a near relay's log.
func (w *world) hear(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, line)
}

// heard returns the lines of the near relays' logs that contain a text.
func (w *world) heard(text string) (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.said {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// reason is what the near relays' logs say of the end of a client's flow; empty: nothing.
func (w *world) reason(client string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range slices.Backward(w.said) {
		if _, after, found := strings.Cut(line, " end="); found && strings.Contains(line, client) {
			return strings.TrimSpace(after)
		}
	}
	return ""
}

// missing says why a way cannot run on this machine; empty: it can.
func missing(way string) string {
	switch way {
	case nearRelay, nearHost:
		return lab.MissingProgram("keepalived", "keepalived")
	case byNFT:
		return lab.MissingProgram("nft", "nftables")
	case byMH, bySH:
		if state := (kernel.Modules{}).State("ip_vs"); state != kernel.ModuleLoaded && state != kernel.ModuleOnDisk {
			return "needs a kernel with IPVS: go run ./packaging/kernels --kernels 6.1 --checks ipvs"
		}
		return lab.MissingProgram("ipvsadm", "ipvsadm")
	}
	return ""
}
