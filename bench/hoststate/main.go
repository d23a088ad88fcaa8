// Command hoststate measures what it costs a relay to hold its host to the file: the time
// until a removed part of the host's state is set again, and the CPU time of a relay whose
// host changes many times a second without concerning it.
//
//	go run ./bench/hoststate --tunnels 500 --runs 5 --time 20s --changes 200
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/bench/peers"
	"longhaul/bench/program"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/sys/netfilter"
)

func main() { program.Main("hoststate", run) }

// bench is what to measure.
type bench struct {
	program.Longhaul
	tunnels, changes int
	runs             int
	time             time.Duration
	relay            *exec.Cmd
	ended            chan struct{}
	table            *nftables.Table
	whole            int // rules of the relay's table
}

const (
	relayName = "bench"
	mark      = intercept.DefaultMark
	routes    = intercept.DefaultTable
	// maxTime is the target for a part to be set again, maxShare that for the share of a core.
	maxTime  = time.Second
	maxShare = 0.005
	patience = 2 * time.Minute
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("hoststate", flag.ContinueOnError)
	b := bench{Longhaul: program.Longhaul{Flags: flags}}
	flags.IntVar(&b.tunnels, "tunnels", 500, "that intercept")
	flags.IntVar(&b.changes, "changes", 200, "of the host's other state, a second")
	flags.IntVar(&b.runs, "runs", 5, "of each damage")
	flags.DurationVar(&b.time, "time", 20*time.Second, "how long to watch a quiet host, and a busy one")
	b.Check = func() error {
		if b.tunnels < 1 || b.tunnels > 5000 || b.changes < 4 || b.runs < 1 || b.time < time.Second {
			return errors.New("--tunnels takes 1 to 5000, --changes 4 or more, --runs 1 or more, --time 1s or more")
		}
		return nil
	}
	return b.Run(ctx, args, stdout, stderr, func() error { return b.run(ctx, stdout) })
}

func (b *bench) run(ctx context.Context, stdout io.Writer) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	defer func() {
		_ = b.relay.Process.Signal(syscall.SIGTERM)
		<-b.ended
	}()
	slow, err := b.damages(ctx, stdout)
	if err != nil {
		return err
	}
	// In turns, since other programs may run on this machine.
	const turns = 10
	b.time /= turns
	var quiet, busy float64
	made := 0
	for range turns {
		share, err := b.share(ctx, func(context.Context) error { return nil })
		if err != nil {
			return err
		}
		quiet += share / turns
		share, err = b.share(ctx, func(ctx context.Context) error {
			n, err := b.disturb(ctx)
			made += n
			return err
		})
		if err != nil {
			return err
		}
		busy += share / turns
	}
	b.time *= turns
	fmt.Fprintf(stdout, "%d tunnels: a quiet host costs %.2f %% of a core, %.0f changes a second %.2f %%: %.2f %% for them\n",
		b.tunnels, 100*quiet, float64(made)/b.time.Seconds(), 100*busy, 100*(busy-quiet))
	fmt.Fprintf(stdout, "Linux %s\n", peers.KernelVersion())
	if slow || busy-quiet > maxShare {
		return fmt.Errorf("a part took longer than %v, or the changes more than %.1f %% of a core", maxTime, 100*maxShare)
	}
	return nil
}

// start makes the host and starts the relay on it.
func (b *bench) start(ctx context.Context) error {
	for name, address := range map[string]string{"lan0": "10.9.1.1/24", "wan0": "10.9.2.1/24"} {
		if err := device(name, address); err != nil {
			return err
		}
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0); err != nil {
			return err
		}
	}
	var config strings.Builder
	fmt.Fprintf(&config, "name: %s\ntunnels:\n  - {name: zone, listen: '[fe80::99%%extra]:6000', forward: '10.9.2.2:6000', allow: ['fe80::/10']}\n", relayName)
	for i := range b.tunnels {
		fmt.Fprintf(&config, "  - {name: t%d, intercept: {interface: lan0, from: ['10.9.1.0/24', 'fd09:1::/64'], to: ['10.9.2.0/24', 'fd09:2::/64'], ports: %d}}\n", i, 10000+i)
	}
	file := filepath.Join(b.Dir, "longhaul.yaml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		return err
	}
	log, err := os.Create(b.log())
	if err != nil {
		return err
	}
	defer log.Close()
	b.relay = exec.CommandContext(ctx, b.Binary, "relay", "--config", file)
	b.relay.Stderr, b.relay.Env = log, append(os.Environ(), "XDG_RUNTIME_DIR="+b.Dir)
	if err := b.relay.Start(); err != nil {
		return err
	}
	b.table = &nftables.Table{Family: nftables.TableFamilyINet, Name: intercept.TableOf(relayName)}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b.ended = make(chan struct{})
	go func() {
		_ = b.relay.Wait()
		cancel() // and with it the waiting for its start
		close(b.ended)
	}()
	if _, err := b.until(ctx, "the start", func() bool { return b.logged("relay started") > 0 }); err != nil {
		return err
	}
	b.whole = b.rules()
	return nil
}

func device(name, address string) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	if peer, err := netlink.LinkByName(link.PeerName); err != nil || netlink.LinkSetUp(peer) != nil {
		return fmt.Errorf("set the other end of %s up: %w", name, err)
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD
	if err := netlink.AddrAdd(link, a); err != nil {
		return fmt.Errorf("give %s an address: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}

func (b *bench) log() string { return filepath.Join(b.Dir, "log") }

func (b *bench) logged(text string) int {
	log, _ := os.ReadFile(b.log())
	return bytes.Count(log, []byte(text))
}

// until returns how long it took until a condition held.
func (b *bench) until(ctx context.Context, what string, holds func() bool) (time.Duration, error) {
	began := time.Now()
	for {
		looked := time.Now()
		if holds() {
			return time.Since(began), nil
		}
		if ctx.Err() != nil || time.Since(began) > patience {
			log, _ := os.ReadFile(b.log())
			return 0, fmt.Errorf("%s takes more than %v\n%s", what, patience, log[max(0, len(log)-4096):])
		}
		time.Sleep(max(2*time.Millisecond, time.Since(looked))) // or looking would take the processor
	}
}

// rules counts the rules of the relay's table.
func (b *bench) rules() (n int) {
	table, err := netfilter.ReadTable(b.table.Name)
	if err != nil || table == nil {
		return 0
	}
	for _, handles := range table.Rules {
		n += len(handles)
	}
	return n
}

func (b *bench) hasRules() bool { return b.rules() == b.whole }

func hasRouting() bool {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := netlink.RuleList(family)
		found := false
		for _, r := range rules {
			found = found || r.Mark == mark
		}
		all, e := netlink.RouteListFiltered(family, &netlink.Route{Table: routes}, netlink.RT_FILTER_TABLE)
		if err != nil || e != nil || !found || len(all) == 0 {
			return false
		}
	}
	return true
}

// damage is what another program does to the host.
type damage struct {
	name string
	do   func() error
	mend func() bool // reports whether all is as before
}

func (b *bench) all() []damage {
	change := func(f func(c *nftables.Conn)) func() error {
		return func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			f(c)
			return c.Flush()
		}
	}
	chain := func(name string) *nftables.Chain { return &nftables.Chain{Table: b.table, Name: name} }
	routing := func(family int, f func(netlink.Rule, []netlink.Route) error) func() error {
		return func() error {
			rules, err := netlink.RuleList(family)
			if err != nil {
				return err
			}
			all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: routes}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			for _, r := range rules {
				if r.Mark == mark {
					r.Family = family
					return f(r, all)
				}
			}
			return errors.New("the relay has no routing rule")
		}
	}
	deleteRule := func(r netlink.Rule, _ []netlink.Route) error { return netlink.RuleDel(&r) }
	deleteRoutes := func(_ netlink.Rule, all []netlink.Route) (err error) {
		for _, r := range all {
			err = errors.Join(err, netlink.RouteDel(&r))
		}
		return err
	}
	return []damage{
		{"flush ruleset", change(func(c *nftables.Conn) { c.FlushRuleset() }), b.hasRules},
		{"restart of nftables.service", change(func(c *nftables.Conn) {
			c.FlushRuleset()
			c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "filter"})
		}), b.hasRules},
		{"delete table", change(func(c *nftables.Conn) { c.DelTable(b.table) }), b.hasRules},
		{"delete chain", change(func(c *nftables.Conn) {
			c.FlushChain(chain("answer"))
			c.DelChain(chain("answer"))
		}), b.hasRules},
		{"delete rules", change(func(c *nftables.Conn) { c.FlushChain(chain("divert")) }), b.hasRules},
		{"delete a tunnel's rules", change(func(c *nftables.Conn) { c.FlushChain(chain("ipv4-t0")) }), b.hasRules},
		{"routing rule", routing(unix.AF_INET, deleteRule), hasRouting},
		{"routing rule, IPv6", routing(unix.AF_INET6, deleteRule), hasRouting},
		{"routes", routing(unix.AF_INET, deleteRoutes), hasRouting},
		{"routes, IPv6", routing(unix.AF_INET6, deleteRoutes), hasRouting},
		{"listener whose interface comes", func() error { return device("extra", "fe80::99/64") }, connects},
		{"listener whose interface is made anew", func() error {
			if err := deleteExtra(); err != nil {
				return err
			}
			return device("extra", "fe80::99/64")
		}, connects},
	}
}

// deleteExtra deletes the interface of the listener.
func deleteExtra() error {
	link, err := netlink.LinkByName("extra")
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// connects reports whether the listener takes a connection. The package net remembers the
// index of an interface for a minute.
func connects() bool {
	link, err := netlink.LinkByName("extra")
	if err != nil {
		return false
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// A SYN that nobody answers would be sent again after a second only.
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 20_000})
	return unix.Connect(fd, &unix.SockaddrInet6{Port: 6000, Addr: netip.MustParseAddr("fe80::99").As16(), ZoneId: uint32(link.Attrs().Index)}) == nil
}

// damages prints how long each takes to be undone, and the relay's CPU time for it.
func (b *bench) damages(ctx context.Context, stdout io.Writer) (slow bool, err error) {
	all := b.all()
	waits, cpu := make([][]float64, len(all)), make([][]float64, len(all))
	for range b.runs {
		for i, d := range all {
			took, used, err := b.damage(ctx, d)
			if err != nil {
				return slow, err
			}
			waits[i], cpu[i] = append(waits[i], took.Seconds()), append(cpu[i], used)
			slow = slow || took > maxTime
		}
		if err := deleteExtra(); err != nil { // which comes in the next run
			return slow, err
		}
	}
	const ms = 1e3
	fmt.Fprintf(stdout, "%-40s %10s %8s %8s %8s  (ms, %d runs)\n", "damage", "as before", "fastest", "slowest", "CPU", b.runs)
	for i, d := range all {
		slices.Sort(waits[i])
		slices.Sort(cpu[i])
		fmt.Fprintf(stdout, "%-40s %10.0f %8.0f %8.0f %8.0f\n", d.name, ms*waits[i][b.runs/2], ms*waits[i][0], ms*waits[i][b.runs-1], ms*cpu[i][b.runs/2])
	}
	return slow, nil
}

// damage returns how long a damage takes to be undone, and the relay's CPU time until it rests.
func (b *bench) damage(ctx context.Context, d damage) (took time.Duration, used float64, err error) {
	// A reload ends what else would be a fight.
	before := b.logged("msg=reloaded")
	if err := b.relay.Process.Signal(syscall.SIGHUP); err != nil {
		return 0, 0, err
	}
	if _, err := b.until(ctx, "a reload", func() bool { return b.logged("msg=reloaded") > before }); err != nil {
		return 0, 0, err
	}
	if _, err := b.rests(ctx); err != nil {
		return 0, 0, err
	}
	began, err := b.cpu()
	if err != nil {
		return 0, 0, err
	}
	if err := d.do(); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", d.name, err)
	}
	if took, err = b.until(ctx, d.name, d.mend); err != nil {
		return 0, 0, err
	}
	ended, err := b.rests(ctx)
	return took, ended - began, err
}

// rests waits until the relay takes a small part of a core, and returns its CPU time until then.
func (b *bench) rests(ctx context.Context) (used float64, err error) {
	const look, most = 300 * time.Millisecond, 0.02 // seconds of it
	for {
		before, err := b.cpu()
		if err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(look):
		}
		if used, err = b.cpu(); err != nil || used-before <= most {
			return used, err
		}
	}
}

// share returns the share of a core that the relay takes while something is done.
func (b *bench) share(ctx context.Context, do func(context.Context) error) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, b.time)
	defer cancel()
	before, err := b.cpu()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := do(ctx); err != nil {
		return 0, err
	}
	<-ctx.Done()
	after, err := b.cpu()
	return (after - before) / time.Since(began).Seconds(), err
}

func (b *bench) cpu() (float64, error) {
	p, err := procfs.NewProc(b.relay.Process.Pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.CPUTime(), err
}

// disturb changes addresses, routes and rules of other programs, and returns how often.
func (b *bench) disturb(ctx context.Context) (n int, err error) {
	wan, err := netlink.LinkByName("wan0")
	if err != nil {
		return 0, err
	}
	address, err := netlink.ParseAddr("10.9.77.1/24")
	if err != nil {
		return 0, err
	}
	_, to, err := net.ParseCIDR("10.9.78.0/24")
	if err != nil {
		return 0, err
	}
	route := &netlink.Route{LinkIndex: wan.Attrs().Index, Dst: to}
	const steps = 6
	beat := time.NewTicker(steps * time.Second / time.Duration(b.changes))
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return n, nil
		case <-beat.C:
		}
		c, err := nftables.New()
		if err != nil {
			return n, err
		}
		other := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "other"})
		policy := nftables.ChainPolicyAccept
		of := c.AddChain(&nftables.Chain{Table: other, Name: "c", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
			Priority: nftables.ChainPriorityFilter, Policy: &policy})
		for range 10 {
			c.AddRule(&nftables.Rule{Table: other, Chain: of})
		}
		err = errors.Join(c.Flush(), netlink.AddrAdd(wan, address), netlink.RouteAdd(route))
		c.DelTable(other)
		if err = errors.Join(err, c.Flush(), netlink.RouteDel(route), netlink.AddrDel(wan, address)); err != nil {
			return n, err
		}
		n += steps
	}
}
