package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/internal/carry/flow"
	"longhaul/lab"
	"longhaul/lab/relays"
)

// Ports: of the first tunnel, of the first target and of the first far relay.
const (
	tunnelPort = 6000
	targetPort = 5000
	farPort    = 6100
	targets    = 4 // hosts and ports
	farRelays  = 3
	newFlows   = 4 // at the same time
)

// The bad answers.
const (
	badGone  = string(flow.ServiceNoName)
	badEmpty = string(flow.ServiceNoRecords)
	badRoot  = string(flow.ServiceNoTarget)
)

// world is a relay with services, its name server, targets and clients.
type world struct {
	*kit.World
	way    string
	near   *relays.Process
	server *nameServer
	dice   *rand.Rand
	now    [services]answer

	began, lost atomic.Int64
	unanswered  atomic.Int64 // queries, as the log says
	mu          sync.Mutex
	first       error // of a lost flow
}

func newWorld(ctx context.Context, o kit.Options, way string, seed uint64) (*world, error) {
	c := lab.MitreConditions()
	c.RTT, c.RateBps = 4*time.Millisecond, 1e9
	built, err := kit.NewWorld(lab.TwoSites(c), o.Program, o.Report)
	if err != nil {
		return nil, err
	}
	w := &world{World: built, way: way, dice: rand.New(rand.NewPCG(seed, 0))}
	if err := w.start(ctx); err != nil {
		err = w.Explain(err)
		w.Close()
		return nil, err
	}
	return w, nil
}

// pool are the hosts and ports of the targets.
func (w *world) pool() (hosts []string, ports []uint16, at netip.Addr) {
	n, port, at := targets, uint16(targetPort), lab.HostB
	if isPaired(w.way) {
		n, port, at = farRelays, farPort, lab.WANB
	}
	for i := range n {
		hosts, ports = append(hosts, fmt.Sprintf("t%d", i)), append(ports, port+uint16(i))
	}
	return hosts, ports, at
}

func (w *world) start(ctx context.Context) error {
	file := filepath.Join(w.Dir, "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil { // the sandbox has its own mounts
		return fmt.Errorf("mount a resolv.conf: %w", err)
	}
	w.AtClose(func() { _ = unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH) })
	for i := range uint16(targets) {
		if err := w.Serve(ctx, "host-b", targetPort+i, func(c net.Conn) { _, _ = io.Copy(c, c) }); err != nil {
			return err
		}
	}
	w.near = w.Relay("near", "relay-a")
	w.near.Line = func(line string) {
		if strings.Contains(line, "a service has no targets") && strings.Contains(line, "state="+string(flow.ServiceNoAnswer)) {
			w.unanswered.Add(1)
		}
	}
	if isPaired(w.way) {
		if err := w.startFar(ctx); err != nil {
			return err
		}
	}
	hosts, ports, _ := w.pool()
	for i := range w.now {
		w.now[i].records = []record{{hosts[0], ports[0], 1, 1}, {hosts[1], ports[1], 1, 1}}
	}
	var err error
	if w.server, err = newNameServer(ctx, w.World, "relay-a", isKnot(w.way), w.records()); err != nil {
		return err
	}
	return w.near.Start(ctx, w.config(func(i int) string { return fmt.Sprintf("{srv: %s.%s}", serviceName(i), zoneName) }))
}

// config is the near relay's configuration. forward leads on from each tunnel.
func (w *world) config(forward func(i int) string) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "control_socket: %s\nhistory: off\npair_keys: %s\ntunnels:\n", w.near.Socket(), filepath.Join(w.Dir, "keys-near"))
	for i := range w.now {
		fmt.Fprintf(b, "  - {name: s%d, listen: %v, forward: %s, allow: [0.0.0.0/0], balance: round-robin", i, netip.AddrPortFrom(lab.RelayA, tunnelPort+uint16(i)), forward(i))
		if isPaired(w.way) {
			b.WriteString(", pair: site-b")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// startFar starts the far relays, all on one host, each with a key of its own.
func (w *world) startFar(ctx context.Context) error {
	for i := range farRelays {
		name := fmt.Sprintf("far%d", i)
		far := w.Relay(name, "relay-b")
		keys := filepath.Join(w.Dir, "keys-"+name)
		at := netip.AddrPortFrom(lab.WANB, farPort+uint16(i))
		err := relays.Introduce(ctx, w.Program, relays.Peer{Host: far.Host, Name: "site-b/" + name, Keys: keys},
			relays.Peer{Host: w.near.Host, Name: "site-a", Keys: filepath.Join(w.Dir, "keys-near")}, at.String())
		if err == nil {
			err = far.Start(ctx, fmt.Sprintf("control_socket: %s\nhistory: off\npair_keys: %s\ntunnels:\n  - {name: far, listen: %v, forward: %v, pair_from: site-a}\n",
				far.Socket(), keys, at, netip.AddrPortFrom(lab.HostB, targetPort)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// records are the zone's.
func (w *world) records() string {
	b := &strings.Builder{}
	hosts, _, at := w.pool()
	for _, h := range hosts {
		fmt.Fprintf(b, "%s A %v\n", h, at)
	}
	for i := range w.now {
		b.WriteString(w.now[i].text(i))
	}
	return b.String()
}

// change changes what is said of a service.
func (w *world) change(a *answer) {
	if a.bad != "" {
		a.bad = "" // the same records come back
		return
	}
	hosts, ports, _ := w.pool()
	a.records = slices.Clone(a.records)
	one := &a.records[w.dice.IntN(len(a.records))]
	fresh := func() (r record, ok bool) {
		for range 100 {
			r = record{hosts[w.dice.IntN(len(hosts))], ports[w.dice.IntN(len(ports))], 1 + uint16(w.dice.IntN(3)), 1 + uint16(w.dice.IntN(1000))}
			if !slices.ContainsFunc(a.records, func(o record) bool { return o.name() == r.name() }) {
				return r, true
			}
		}
		return r, false
	}
	switch w.dice.IntN(6) {
	case 0:
		if len(a.records) > 1 {
			a.records = slices.DeleteFunc(a.records, func(r record) bool { return r == *one })
			return
		}
		fallthrough
	case 1:
		if r, ok := fresh(); ok {
			a.records = append(a.records, r)
			return
		}
		fallthrough
	case 2:
		one.weight = one.weight%1000 + 1
	case 3:
		one.priority += 100
	case 4:
		if r, ok := fresh(); ok {
			one.host, one.port = r.host, r.port
		} else {
			one.weight = one.weight%1000 + 1
		}
	case 5:
		a.bad = []string{badGone, badEmpty, badRoot}[w.dice.IntN(3)]
	}
}

// hopsOf are the hops that the records must become, in any order.
func (a answer) hops() (all []string) {
	var priorities []uint16
	for _, r := range a.records {
		priorities = append(priorities, r.priority)
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	for _, r := range a.records {
		rank, _ := slices.BinarySearch(priorities, r.priority)
		all = append(all, fmt.Sprintf("%s %d %d", r.name(), rank+1, r.weight))
	}
	slices.Sort(all)
	return all
}

// differs says in what a tunnel is not as a service's answer wants it; empty: in nothing.
func (a answer) differs(t *relays.TunnelStatus, dead bool) string {
	var is []string
	for _, h := range t.Hops {
		is = append(is, fmt.Sprintf("%s %d %d", h.Name, h.Priority, h.Weight))
	}
	slices.Sort(is)
	state := cmp.Or(a.bad, string(flow.ServiceAnswered))
	if dead {
		state = string(flow.ServiceNoAnswer)
	}
	switch {
	case t.Service == nil:
		return "it shows no service"
	case string(t.Service.State) != state:
		return fmt.Sprintf("its service is %s and not %s", t.Service.State, state)
	case !slices.Equal(is, a.hops()):
		return fmt.Sprintf("its hops are %v and not %v", is, a.hops())
	}
	return ""
}

// seen waits until the relay has all changes, and calls each with how long after since it had one.
func (w *world) seen(ctx context.Context, since time.Time, dead bool, each func(time.Duration)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var had [services]bool
	for {
		s, err := w.near.Status(ctx)
		if err != nil {
			return err
		}
		missing := ""
		for i := range s.Tunnels {
			if had[i] {
				continue
			}
			if why := w.now[i].differs(&s.Tunnels[i], dead); why != "" {
				missing = s.Tunnels[i].Name + ": " + why
				continue
			}
			had[i] = true
			each(time.Since(since))
		}
		if missing == "" {
			return nil
		}
		if kit.Pause(ctx, 20*time.Millisecond) != nil {
			return errors.New("a change is not seen: " + missing)
		}
	}
}

// dial opens a flow through a tunnel.
func (w *world) dial(ctx context.Context, tunnel int) (*net.TCPConn, error) {
	return w.Host("host-a").DialTCP(ctx, netip.AddrPortFrom(lab.RelayA, tunnelPort+uint16(tunnel)), patience)
}

// ask sends a byte, and gets it back.
func ask(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	one := []byte{'x'}
	if _, err := c.Write(one); err != nil {
		return err
	}
	_, err := io.ReadFull(c, one)
	return err
}

func (w *world) loses(err error) {
	w.lost.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first == nil {
		w.first = err
	}
}

// flows begins and ends flows until done is closed.
func (w *world) flows(ctx context.Context, done <-chan struct{}) {
	var all sync.WaitGroup
	for k := range newFlows {
		all.Go(func() {
			for i := k; ; i++ {
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond):
				}
				c, err := w.dial(ctx, i%services)
				if err == nil {
					err = ask(c)
					c.Close()
				}
				w.began.Add(1)
				if err != nil && ctx.Err() == nil {
					w.loses(err)
				}
			}
		})
	}
	all.Wait()
}

// run makes about n changes.
func (w *world) run(ctx context.Context, n int, note func(kit.Measured)) error {
	if err := w.seen(ctx, time.Now(), false, func(time.Duration) {}); err != nil {
		return err
	}
	standing := make([]*net.TCPConn, services)
	for i := range standing {
		c, err := w.dial(ctx, i)
		if err != nil {
			return err
		}
		defer c.Close()
		if standing[i] = c; ask(c) != nil {
			return fmt.Errorf("the flow of tunnel s%d does not begin", i)
		}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() { w.flows(ctx, done); close(ended) }()
	count, slowest, err := w.changes(ctx, n)
	note(kit.Measured{Name: "services that got no answer for a while", Value: float64(w.unanswered.Load())})
	if err == nil {
		err = w.outage(ctx)
	}
	close(done)
	<-ended
	if err != nil {
		return err
	}
	for i, c := range standing {
		if err := ask(c); err != nil {
			w.loses(fmt.Errorf("the standing flow of s%d: %w", i, err))
		}
	}
	text := ""
	if w.first != nil {
		text = w.first.Error()
	}
	note(kit.Measured{Name: "changes", Value: float64(count), Bound: kit.AtLeast(float64(n)), Exact: true})
	note(kit.Measured{Name: "slowest change after its TTL", Unit: "s", Value: max(0, (slowest - ttl).Seconds()), Bound: kit.AtMost(late.Seconds()), Exact: true})
	note(kit.Measured{Name: "flows begun", Value: float64(w.began.Load()), Bound: kit.AtLeast(1), Exact: true})
	note(kit.Measured{Name: "flows lost", Value: float64(w.lost.Load()), Bound: kit.AtMost(0), Exact: true, Example: text})
	return nil
}

// changes changes all services at the same time, until n changes are made and no answer is bad.
func (w *world) changes(ctx context.Context, n int) (count int, slowest time.Duration, err error) {
	for isBad := true; count < n || isBad; {
		isBad = false
		for i := range w.now {
			if count+i >= n && w.now[i].bad == "" {
				continue
			}
			w.change(&w.now[i])
			isBad = isBad || w.now[i].bad != ""
		}
		since, err := w.server.set(ctx, w.records())
		if err != nil {
			return count, slowest, err
		}
		if err := w.seen(ctx, since, false, func(took time.Duration) { slowest = max(slowest, took) }); err != nil {
			return count, slowest, err
		}
		count += services
		w.Report.Notef("%d changes, the slowest was seen %.2f s after its TTL; %d flows, %d lost", count, max(0, (slowest-ttl).Seconds()), w.began.Load(), w.lost.Load())
	}
	return count, slowest, nil
}

// outage has the name server die and come back. The addresses of hops are cached as well, by the same rule.
func (w *world) outage(ctx context.Context) error {
	w.server.End(w.server.daemon)
	if err := w.seen(ctx, time.Now(), true, func(time.Duration) {}); err != nil {
		return fmt.Errorf("without a name server: %w", err)
	}
	if err := w.server.start(ctx); err != nil {
		return err
	}
	return w.seen(ctx, time.Now(), false, func(time.Duration) {})
}
