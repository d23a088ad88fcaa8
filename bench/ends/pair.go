//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
	"longhaul/lab/relays"
	"longhaul/lab/wan"
)

// pairModes are the pairs that Options.Through can name.
var pairModes = map[string]pairMode{
	"pair":                 {},
	"pair-no-resume":       {near: ", resume: off", mortal: true},
	"pair-clear":           {near: ", encrypt: off", far: ", encrypt: off"},
	"pair-lanes":           {near: ", lanes: 4"},
	"pair-paths":           {near: ", lanes: 4", paths: true},
	"pair-hops":            {hops: true, mortal: true},
	"pair-chain":           {chain: true},
	"pair-clear-no-resume": {near: ", encrypt: off, resume: off", far: ", encrypt: off", mortal: true},
}

func pairNames() []string { return slices.Sorted(maps.Keys(pairModes)) }

// lastingNames are the pairs that outlive the outages of their WAN.
func lastingNames() []string {
	return slices.DeleteFunc(pairNames(), func(name string) bool { return pairModes[name].mortal })
}

// pairMode is how paired relays carry flows.
type pairMode struct {
	near, far string // settings of both tunnels' pair
	mortal    bool   // an outage cuts flows
	paths     bool   // two, over a WAN each
	hops      bool   // two far relays, over a WAN each, which die at random moments
	chain     bool   // two pairs behind one another, which share a relay
}

// pair is paired relays, each a process on a host of its own, with a WAN between each two. Clients
// are on the near relay's host and targets on the far one's, so that both legs are like those of
// the other ways. It has a tunnel for every lane, and another to what refuses there.
type pair struct {
	name string
	pairMode
	world    *kit.World    // the relay that has the clients is the last one
	targets  []*lane       // on the far relay's host
	busy     []string      // by lane, who still had the script's flow when its client was done
	rtt      time.Duration // of each WAN
	weather  *weather
	upgrades *upgrades
	deaths   *deaths
	others   []others     // by lane, of the last script
	calm     func() error // ends all of them
	observer observer
}

// span is a WAN between two relays, whose names are those of their hosts. Near opens the connections.
type span struct {
	link            string
	near, far       string
	nearEnd, farEnd netip.Prefix
}

// farAt is where the far relay has a tunnel.
func (s span) farAt(t pairTunnel) netip.AddrPort { return netip.AddrPortFrom(s.farEnd.Addr(), t.far) }

// The relays that have the clients, the targets, and neither.
const (
	nearRelay = "near"
	hubRelay  = "hub"
	farRelay  = "far"
	farRelay2 = "far2"
)

// spans are the WANs.
func (m pairMode) spans() []span {
	end := netip.MustParsePrefix
	first := span{"wan", nearRelay, farRelay, end("10.1.0.1/24"), end("10.1.0.2/24")}
	second := span{"wan2", nearRelay, farRelay, end("10.2.0.1/24"), end("10.2.0.2/24")}
	switch {
	case m.chain:
		first.far, second.near = hubRelay, hubRelay
	case m.hops:
		second.far = farRelay2
	case !m.paths:
		return []span{first}
	}
	return []span{first, second}
}

// relayNames are the relays, those with targets first.
func (m pairMode) relayNames() []string {
	switch {
	case m.chain:
		return []string{farRelay, hubRelay, nearRelay}
	case m.hops:
		return []string{farRelay, farRelay2, nearRelay}
	}
	return []string{farRelay, nearRelay}
}

// onTheWay are the WANs that a flow passes behind one another.
func (m pairMode) onTheWay() int { return 1 + flag(m.chain) }

// leads returns the WANs from a relay on, and those to it.
func (m pairMode) leads(relay string) (on, to []span) {
	for _, s := range m.spans() {
		if s.near == relay {
			on = append(on, s)
		}
		if s.far == relay {
			to = append(to, s)
		}
	}
	return on, to
}

const (
	// pairRTT is the usual one of the WAN: what one end does must be able to overtake what
	// is under way from the other.
	pairRTT = time.Millisecond

	// Of tunnels; they are below the ports that the kernel chooses.
	nearPorts, farPorts = 10_000, 20_000
	mostPorts           = 10_000

	slowRTTs         = 50               // round trips that the slowest script waits for
	outageTime       = time.Minute      // in which a script must end, whatever happens to the WAN
	pairShrinkWays   = 5 * time.Second  // as shrinkWays
	outageShrinkWays = 20 * time.Second // the same
	outageShrinkTime = 3 * time.Minute  // as shrinkTime
)

// startPair starts a pair for scripts in some lanes, and the weather and the upgrades if there
// are to be some.
func startPair(ctx context.Context, name string, o Options, lanes int) (p *pair, err error) {
	p = &pair{name: name, pairMode: pairModes[name], rtt: cmp.Or(o.RTT, pairRTT), calm: func() error { return nil }}
	defer func() {
		if err != nil {
			p.close()
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	if err := p.build(o.Program); err != nil {
		return p, err
	}
	for range lanes {
		var l *lane
		host, at := p.farHost(), onLoopback
		if p.hops {
			host, at = p.world.Host("target"), placeOf(hopsTarget.Addr(), hopsTarget6.Addr())
		}
		err := host.Do(func() (err error) {
			l, err = newLane(at)
			return err
		})
		if err != nil {
			return p, err
		}
		p.targets = append(p.targets, l)
	}
	p.busy, p.others = make([]string, lanes), make([]others, lanes)
	if p.hops {
		p.deaths = newDeaths(o.Seed)
		p.observer.isDead = p.deaths.isDead
	}
	if err := p.start(ctx, o.Program); err != nil {
		return p, err
	}
	if o.Outages {
		p.weather = p.newWeather(o.Seed)
	}
	if o.Upgrades {
		p.upgrades = newUpgrades(o.Seed, p.world.Relays)
	}
	p.startTrouble(ctx)
	return p, nil
}

func (p *pair) nearHost() *hosts.Host { return p.world.Host(nearRelay) }
func (p *pair) farHost() *hosts.Host  { return p.world.Host(farRelay) }

// build builds the hosts and the WANs.
func (p *pair) build(program string) (err error) {
	settings := link.Settings{MTU: 1500, Delay: p.rtt / 2}
	fastOpen := []lab.Sysctl{{Name: "net.ipv4.tcp_fastopen", Value: fastOpenBoth}}
	var t lab.Topology
	for i, name := range p.relayNames() {
		host := lab.HostSpec{Name: name, Sysctls: fastOpen}
		if p.hops && name != nearRelay {
			cableTarget(&t, &host, i)
		}
		t.Hosts = append(t.Hosts, host)
	}
	for _, s := range p.spans() {
		t.Links = append(t.Links, lab.LinkSpec{
			Name: s.link,
			A:    lab.Endpoint{Host: s.near, Device: s.link, Addresses: []netip.Prefix{s.nearEnd}},
			B:    lab.Endpoint{Host: s.far, Device: s.link, Addresses: []netip.Prefix{s.farEnd}},
			AB:   settings, BA: settings,
		})
	}
	if p.hops {
		t.Hosts = append(t.Hosts, lab.HostSpec{Name: "target", Sysctls: fastOpen})
	}
	if p.world, err = kit.NewWorld(t, program, nil); err != nil || !p.hops {
		return err
	}
	return errors.Join(p.world.Host("target").Address("lo", hopsTarget), p.world.Host("target").Address("lo", hopsTarget6))
}

// hopsTarget and hopsTarget6 are the addresses of the targets of pair-hops, on a host that both far
// relays reach.
var (
	hopsTarget  = netip.MustParsePrefix("10.3.0.1/32")
	hopsTarget6 = netip.MustParsePrefix("fd00:3::1/128")
)

// cableTarget joins a far relay's host and the targets'.
func cableTarget(t *lab.Topology, far *lab.HostSpec, number int) {
	v4 := func(end int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("10.4.%d.%d/24", number, end)) }
	v6 := func(end int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("fd00:4:%d::%d/64", number, end)) }
	t.Cables = append(t.Cables, lab.Cable{
		MTU: 1500,
		A:   lab.Endpoint{Host: far.Name, Device: "lan", Addresses: []netip.Prefix{v4(1), v6(1)}},
		B:   lab.Endpoint{Host: "target", Device: far.Name, Addresses: []netip.Prefix{v4(2), v6(2)}},
	})
	far.Routes = append(far.Routes, hosts.Route{To: hopsTarget, Via: v4(2).Addr()}, hosts.Route{To: hopsTarget6, Via: v6(2).Addr()})
}

// pairTunnel is one tunnel of all relays. Each has sessions of its own.
type pairTunnel struct {
	name    string
	listen  []netip.AddrPort // of the near relay
	far     uint16           // port of the others
	target  Family           // of the target
	forward netip.AddrPort
}

// tunnel returns a lane's tunnel for clients of all families. From lane to lane it differs
// whether one socket of the near relay takes all of them, and of which family targets are.
func (p *pair) tunnel(lane int, refused bool) (t pairTunnel) {
	number := uint16(lane*2 + flag(refused))
	t.name = fmt.Sprintf("t%d", number)
	for _, f := range [...][]Family{{IPv4, IPv6}, {Mapped}}[lane/int(families)%2] {
		t.listen = append(t.listen, netip.AddrPortFrom(bindTo[f], nearPorts+number))
	}
	t.far = farPorts + number
	t.target = Family(lane) % families
	target := p.targets[lane].target(t.target, refused)
	t.forward = netip.AddrPortFrom(target.Addr().Unmap(), target.Port())
	return t
}

// start makes the keys and starts the relays.
func (p *pair) start(ctx context.Context, program string) error {
	for _, name := range p.relayNames() {
		p.world.Relay(name, name)
	}
	p.observer.listen(p.world.Relays)
	peer := func(name string) relays.Peer {
		return relays.Peer{Host: p.world.Host(name), Name: p.hostName(name), Keys: p.keys(name)}
	}
	introduced := ""
	for _, s := range p.spans() {
		if s.far == introduced {
			continue // by another path
		}
		introduced = s.far
		at := netip.AddrPortFrom(s.farEnd.Addr(), farPorts)
		if err := relays.Introduce(ctx, program, peer(s.far), peer(s.near), at.String()); err != nil {
			return err
		}
	}
	for _, r := range p.world.Relays {
		config := p.config(r)
		if err := r.Start(ctx, config); err != nil {
			return err
		}
		if p.hops && r.Name != nearRelay {
			p.deaths.add(r, config)
		}
	}
	return nil
}

func (p *pair) keys(relay string) string { return filepath.Join(p.world.Dir, relay+"-keys") }

// hostName is how the others call a relay's host: several far ones are hosts of a site.
func (p *pair) hostName(relay string) string {
	if p.hops && relay != nearRelay {
		return farRelay + "/" + relay
	}
	return relay
}

// config is a relay's configuration.
func (p *pair) config(r *relays.Process) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "control_socket: %s\npair_keys: %s\nreset_drain_timeout: %s\ndefaults: {connect_timeout: %s}\ntunnels:\n",
		r.Socket(), p.keys(r.Name), resetDrain, outageTime)
	for lane := range p.targets {
		for _, refused := range []bool{false, true} {
			fmt.Fprintf(b, "  - {%s}\n", p.settings(r.Name, p.tunnel(lane, refused)))
		}
	}
	return b.String()
}

// settings are those of a relay's tunnel.
func (p *pair) settings(relay string, t pairTunnel) string {
	on, to := p.leads(relay)
	listen, from := t.listen, ", allow: [0.0.0.0/0, \"::/0\"]"
	if len(to) > 0 {
		listen, from = nil, fmt.Sprintf(", pair_from: {peer: %s%s}", to[0].near, p.far)
		for _, s := range to {
			listen = append(listen, s.farAt(t))
		}
	}
	forward, pair := []netip.AddrPort{t.forward}, ""
	if len(on) > 0 {
		forward, pair = []netip.AddrPort{on[0].farAt(t)}, fmt.Sprintf(", pair: {peer: %s, warm: 1%s}", on[0].far, p.near+p.pathsTo(on, t))
	}
	if p.hops && len(on) > 1 {
		forward, pair = append(forward, on[1].farAt(t)), ", balance: round-robin"+pair
	}
	return fmt.Sprintf("name: %s, listen: %s, forward: %s%s%s", t.name, listOf(listen), listOf(forward), from, pair)
}

// pathsTo is the setting of the two paths to one relay, if there are two.
func (p *pair) pathsTo(on []span, t pairTunnel) string {
	if !p.paths {
		return ""
	}
	return fmt.Sprintf(", paths: [{from: %v}, {from: %v, to: \"%v\"}]", on[0].nearEnd.Addr(), on[1].nearEnd.Addr(), on[1].farAt(t))
}

// listOf writes addresses as a list of YAML.
func listOf(all []netip.AddrPort) string {
	quoted := make([]string, len(all))
	for i, a := range all {
		quoted[i] = strconv.Quote(a.String())
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func (p *pair) newWeather(seed uint64) *weather {
	var paths []*wan.Path
	for _, s := range p.spans() {
		paths = append(paths, &wan.Path{
			Near: p.world.Host(s.near), Far: p.world.Host(s.far), Link: p.world.Link(s.link),
			Serves: func(port uint16) bool { return port >= farPorts && port < farPorts+mostPorts },
		})
	}
	return newWeather(seed, paths...)
}

// startTrouble starts the weather, the upgrades and the deaths.
func (p *pair) startTrouble(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var errs [3]error
	if p.weather != nil {
		running.Go(func() { errs[0] = p.weather.run(ctx) })
	}
	if p.upgrades != nil {
		running.Go(func() { errs[1] = p.upgrades.run(ctx) })
	}
	if p.deaths != nil {
		running.Go(func() { errs[2] = p.deaths.run(ctx) })
	}
	p.calm = sync.OnceValue(func() error {
		cancel()
		running.Wait()
		return errors.Join(errs[:]...)
	})
}

func (p *pair) close() {
	_ = p.calm() // whoever needs its error has asked before
	if p.world != nil {
		p.world.Kill()
	}
	for _, l := range p.targets {
		l.close()
	}
	if p.world != nil {
		p.world.Close()
	}
}

// check returns an error if a relay has died, or if the weather, the upgrades or the deaths could not be made.
func (p *pair) check() error {
	err := p.calm()
	for _, r := range p.world.Relays {
		if !r.Running() {
			err = errors.Join(err, fmt.Errorf("the %s relay has ended:\n%s", r.Name, r.Log()))
		}
	}
	return err
}

func (p *pair) way() *way {
	w := &way{name: p.name, flag: "--through " + p.name, shrinkWays: pairShrinkWays, shrinkTime: shrinkTime, route: p.route, said: p.said,
		weather: p.weather, upgrades: p.upgrades}
	round := time.Duration(p.onTheWay()) * p.rtt
	w.calmly = scriptTime + slowRTTs*round
	w.within = w.calmly
	w.settled = func(i int, s *Script) string { return p.settled(i, s, w.calmly) }
	var with []string
	if p.weather != nil {
		with, w.flag = append(with, "outages"), w.flag+" --outages"
	}
	if p.upgrades != nil {
		with, w.flag = append(with, "upgrades"), w.flag+" --upgrades"
	}
	if p.deaths != nil {
		with = append(with, "deaths")
		w.deaths, w.excused = p.deaths, p.excused
		w.settled = func(i int, s *Script) string { return p.settled(i, s, outageTime) }
	}
	if p.rtt != pairRTT {
		w.flag += fmt.Sprintf(" --rtt %v", p.rtt)
	}
	if len(with) > 0 {
		w.name += " with " + strings.Join(with, " and ")
		w.flag += " --repeat 100"
		w.within, w.shrinkWays, w.shrinkTime = outageTime+slowRTTs*round, outageShrinkWays, outageShrinkTime
	}
	if p.rtt != pairRTT {
		w.name += fmt.Sprintf(" at %v", p.rtt)
	}
	return w
}

func (p *pair) route(_ *lane, i int, s *Script) (route, func(), error) {
	l, t := p.targets[i], p.tunnel(i, s.Refused)
	at := *s
	at.Family = t.target
	r := l.direct(&at)
	r.dial = netip.AddrPortFrom(dialTo[s.Family], t.listen[0].Port())
	r.socket = socketsOf(p.nearHost())
	p.busy[i] = ""
	r.quiet = twice(func() bool {
		idle := p.observer.idle(t.name)
		p.busy[i] = p.observer.where(t.name)
		return idle
	})
	done := l.empty
	if p.hops {
		done = func() { p.others[i].see(l) }
	}
	return r, done, nil
}

// leftTime is longer than the resume of the pairs, after which a relay gives a flow up in any case.
const leftTime = 3 * time.Minute

// settled is that of a way. A relay may have the flow for a time, beyond what faults of the WAN
// excuse.
func (p *pair) settled(i int, s *Script, calmly time.Duration) (left string) {
	tunnel := p.tunnel(i, s.Refused).name
	over := twice(func() bool { return p.observer.idle(tunnel) })
	for began := time.Now(); !over() && time.Since(began) < leftTime; time.Sleep(slice) {
		excused := time.Duration(0)
		if p.weather != nil {
			excused = p.weather.delay(began)
		}
		if left == "" && time.Since(began)-excused > calmly {
			left = p.observer.where(tunnel)
		}
	}
	return left
}

// said returns what both relays say of the flow of a lane's last script.
func (p *pair) said(i int, s *Script, since time.Time) string {
	return p.busy[i] + p.observer.said(p.tunnel(i, s.Refused).name, since)
}

// socketsOf makes a client's sockets on a host.
func socketsOf(h *hosts.Host) func(family int) (int, error) {
	return func(family int) (fd int, err error) {
		err = h.Do(func() error {
			fd, err = newSocket(family)
			return err
		})
		return fd, err
	}
}

func newSocket(family int) (int, error) {
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
}
