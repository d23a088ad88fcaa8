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
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
	"longhaul/packaging"
)

// Two relays at each site, and one WAN between the sites:
//
//	          ┌ relay-a1 ┐                         ┌ relay-b  ┐
//	host-a ───┤          ├ router-a ══WAN══ router-b          ├─── host-b
//	          └ relay-a2 ┘                         └ relay-b2 ┘
//
// host-a and its relays are on one Ethernet, on which the relays share the address lab.RelayA.
var (
	nearRelays = []string{"relay-a1", "relay-a2"}
	onLAN      = []netip.Prefix{netip.MustParsePrefix("10.10.10.21/24"), netip.MustParsePrefix("10.10.10.22/24")}
	sharedLAN  = netip.PrefixFrom(lab.RelayA, 24)

	farRelays = []farRelay{
		{name: "relay-b", listen: netip.MustParseAddr("10.21.1.2"), target: lab.HostB},
		{name: "relay-b2", listen: netip.MustParseAddr("10.21.2.2"), target: lab.HostBOnB2},
	}
	ownFar = netip.MustParsePrefix("10.21.0.0/16") // the far relays' own addresses

	// sharedFar is the one address of both far relays.
	sharedFar = netip.MustParsePrefix("10.30.50.1/32")
)

const siteRTT = 20 * time.Millisecond

// siteTopology is that, with a rate of the WAN.
func siteTopology(rateBps int64) lab.Topology {
	prefix := netip.MustParsePrefix
	router := []lab.Sysctl{{Name: "net.ipv4.ip_forward", Value: "1"}, {Name: "net.ipv4.fib_multipath_hash_policy", Value: "1"}}
	end := func(host, device string, prefixes ...netip.Prefix) lab.Endpoint {
		return lab.Endpoint{Host: host, Device: device, Addresses: prefixes}
	}
	settings := link.Settings{MTU: 1500, Delay: siteRTT / 2, RateBps: rateBps}
	anywhere := prefix("0.0.0.0/0")
	t := lab.Topology{
		Hosts: []lab.HostSpec{
			{Name: "host-a", Address: lab.HostA},
			{Name: "switch"},
			{Name: "router-a", Sysctls: router, Routes: []hosts.Route{{To: anywhere, Via: lab.WANB}}},
			{Name: "router-b", Sysctls: router, Routes: []hosts.Route{{To: prefix("10.31.0.0/16"), Via: lab.WANA}}},
			{Name: "host-b", Address: lab.HostB},
		},
		Cables: []lab.Cable{{MTU: 1500, A: end("host-a", "lan", netip.PrefixFrom(lab.HostA, 24)), B: end("switch", "host-a")}},
		Links: []lab.LinkSpec{{
			Name: lab.WAN, AB: settings, BA: settings,
			A: end("router-a", "wan", netip.PrefixFrom(lab.WANA, 30)), B: end("router-b", "wan", netip.PrefixFrom(lab.WANB, 30)),
		}},
	}
	for i, name := range nearRelays {
		own, via := prefix(fmt.Sprintf("10.31.%d.2/30", i+1)), prefix(fmt.Sprintf("10.31.%d.1/30", i+1))
		t.Hosts = append(t.Hosts, lab.HostSpec{Name: name, Address: own.Addr(), Routes: []hosts.Route{{To: anywhere, Via: via.Addr()}}})
		t.Cables = append(t.Cables,
			lab.Cable{MTU: 1500, A: end(name, "lan", onLAN[i]), B: end("switch", name)},
			lab.Cable{MTU: 1500, A: end(name, "wan", own), B: end("router-a", name, via)})
	}
	for _, f := range farRelays {
		via := f.listen.Prev()
		site := netip.MustParseAddr(map[bool]string{true: lab.RelayB2.String(), false: lab.RelayB.String()}[f.name == "relay-b2"])
		t.Hosts = append(t.Hosts, lab.HostSpec{Name: f.name, Address: f.listen, Routes: []hosts.Route{{To: anywhere, Via: via}}})
		t.Cables = append(t.Cables,
			lab.Cable{MTU: 1500, A: end(f.name, "wan", netip.PrefixFrom(f.listen, 30)), B: end("router-b", f.name, netip.PrefixFrom(via, 30))},
			lab.Cable{MTU: 1500, A: end(f.name, "lan", netip.PrefixFrom(site, 24)), B: end("host-b", f.name, netip.PrefixFrom(f.target, 24))})
	}
	return t
}

// newSiteWorld is that with its keys and far relays.
func newSiteWorld(ctx context.Context, o kit.Options, rateBps int64, near []string, far []farRelay) (*world, error) {
	w, err := newWorld(ctx, o, siteTopology(rateBps))
	if err != nil {
		return nil, err
	}
	err = w.Host("switch").Switch("switch", append([]string{"host-a"}, nearRelays...)...)
	if err == nil {
		err = w.makeKeys(ctx, near, far)
	}
	for _, f := range far {
		if err == nil {
			err = w.startFar(ctx, f, true)
		}
	}
	if err != nil {
		err = w.Explain(err)
		w.Close()
		return nil, err
	}
	return w, nil
}

// What dies at the near site.
const (
	nearRelay = "relay" // the process of the relay that has the address
	nearHost  = "host"  // its host: nothing leaves that any more
)

// nearSite has the near relay die that has the address, under flows to both far relays.
func nearSite(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) (err error) {
	w, err := newSiteWorld(ctx, o, rateBps, nearRelays, farRelays)
	if err != nil {
		return err
	}
	defer w.Close()
	defer func() {
		if err != nil {
			err = w.Explain(err)
		}
	}()
	var far []netip.Addr
	for _, f := range farRelays {
		far = append(far, f.listen)
	}
	for i, name := range nearRelays {
		if err := w.startNear(ctx, name, "", far, pairWithB); err != nil {
			return err
		}
		if err := w.startKeepalived(ctx, name, i); err != nil {
			return err
		}
	}
	if err := w.stands(ctx, tunnels*len(far), nearRelays...); err != nil {
		return err
	}
	l := loadOf(o, way)
	l.away = 2 * l.away
	standing, err := w.stand(ctx, l.standing)
	if err != nil {
		return err
	}
	if err := standing.onBoth(); err != nil {
		return err
	}
	var at time.Time
	all, err := w.under(ctx, l, standing, func() error {
		active, err := w.active()
		if err != nil {
			return err
		}
		at = time.Now()
		if way == nearHost {
			err = w.killHost(active)
		} else {
			err = w.relay(active).Kill()
		}
		if err != nil {
			return err
		}
		return kit.Pause(ctx, l.away)
	})
	if err != nil {
		return err
	}
	countAfterMove(all, at, note)
	noteTwice(w.target, note)
	w.countCut(standing, at, note)
	return nil
}

// active is the near relay that has the address.
func (w *world) active() (string, error) {
	for _, name := range nearRelays {
		has, err := w.Host(name).Has(sharedLAN.Addr())
		if err != nil || has {
			return name, err
		}
	}
	return "", fmt.Errorf("no near relay has the address %v", sharedLAN.Addr())
}

// killHost has a host of the LAN fall silent, and its programs die.
func (w *world) killHost(name string) error {
	err := w.Host("switch").Down(name)
	for _, d := range w.Running() {
		if d.Host == name {
			_ = unix.Kill(d.PID(), unix.SIGKILL) // it may have ended
		}
	}
	if err == nil {
		err = w.relay(name).Kill()
	}
	return err
}

// startKeepalived starts keepalived with the packaged example, and for the first relay waits until
// it has the address.
func (w *world) startKeepalived(ctx context.Context, name string, number int) error {
	text, err := packaging.File(fmt.Sprintf("examples/ha/keepalived-a%d.conf", number+1), w.Program)
	if err != nil {
		return err
	}
	config := string(text)
	for _, other := range [][2]string{
		{"interface eth0", "interface lan"},
		{"ready to-site-b", "ready " + tunnelMain + " --control-socket " + w.relay(name).Socket()},
	} {
		if !strings.Contains(config, other[0]) {
			return fmt.Errorf("keepalived's example lacks %q", other[0])
		}
		config = strings.ReplaceAll(config, other[0], other[1])
	}
	file := filepath.Join(w.Dir, name+"-keepalived.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	serves := func() (bool, error) {
		if number > 0 {
			return true, nil
		}
		return w.Host(name).Has(sharedLAN.Addr())
	}
	_, err = w.StartUntil(ctx, name, "take the address", serves, lab.FindProgram("keepalived"), "--dont-fork", "--log-console", "--vrrp", "--use-file", file,
		"--pid", file+".pid", "--vrrp_pid", file+".vrrp.pid")
	return err
}

// countAfterMove notes when new connections were served again, and those that never were.
func countAfterMove(all []attempt, at time.Time, note func(kit.Measured)) {
	failed, before, example := 0, 0, ""
	var lastFailed, slowest time.Duration
	first := time.Hour
	for _, a := range all {
		since := a.began.Sub(at)
		switch {
		case since < 0 && a.err != nil:
			before++ // it ended with its relay
		case since < 0:
		case a.err != nil:
			failed++
			example = fmt.Sprintf("%+.3f s: number %d from %s: %v, after %.3f s", since.Seconds(), a.number, a.local, a.err, a.took.Seconds())
		default:
			slowest, first = max(slowest, a.took), min(first, since+a.took)
		}
		if a.err != nil {
			lastFailed = max(lastFailed, since)
		}
	}
	note(kit.Measured{Name: "new connections", Value: float64(len(all))})
	note(kit.Measured{Name: "failed, begun before", Value: float64(before)})
	note(kit.Measured{Name: "failed, begun after", Value: float64(failed), Example: example})
	note(kit.Measured{Name: "slowest, begun after", Unit: "s", Value: slowest.Seconds()})
	note(kit.Measured{Name: "new ones are served again after", Unit: "s", Value: max(first, lastFailed).Seconds(), Bound: kit.AtMost(siteBackMost), Exact: true})
}

// countCut notes what became of the standing connections: the relay that had them is dead.
func (w *world) countCut(s *standing, at time.Time, note func(kit.Measured)) {
	stood, whole, latest := 0, 0, time.Duration(0)
	for _, f := range s.flows {
		switch {
		case f.err == nil:
			stood++
		case isWhole(f.err):
			whole++
		default:
			latest = max(latest, f.ended.Sub(at))
		}
	}
	note(kit.Measured{Name: "standing connections", Value: float64(len(s.flows))})
	note(none("not ended of these", stood, ""))
	note(none("ends that look whole", whole, ""))
	note(kit.Measured{Name: "the last of them ended after", Unit: "s", Value: latest.Seconds()})
}

// How two far relays have one address.
const (
	byECMP = "ecmp" // a router sends each connection by its hash to one of them
	byNFT  = "nft"  // a balancer translates the address, by the same hash
	byMH   = "ipvs-mh"
	bySH   = "ipvs-sh" // IPVS forwards to one of them, by a hash with the ports
)

// oneAddress carries flows with several lanes to two far relays behind one address.
func oneAddress(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) (err error) {
	far := slices.Clone(farRelays)
	if way == byNFT {
		for i := range far {
			// Behind a translation a relay does not see that it was dialed at another address.
			far[i].more = fmt.Sprintf(", advertise: \"%v:PORT\"", far[i].listen)
		}
	}
	rate, perSecond := int64(rateBps), 100
	if way == byMH || way == bySH { // in an emulated guest
		rate, perSecond = 5e6, 5
	}
	w, err := newSiteWorld(ctx, o, rate, nearRelays[:1], far)
	if err != nil {
		return err
	}
	defer w.Close()
	defer func() {
		if err != nil {
			err = w.Explain(err)
		}
	}()
	if err := w.share(way); err != nil {
		return err
	}
	w.debug = true // else the log has no lanes
	pair := fmt.Sprintf(", pair: {peer: %s, lanes: 4, lanes_to: [%v]}", siteB, ownFar)
	if err := w.startNear(ctx, nearRelays[0], "", []netip.Addr{sharedFar.Addr()}, pair); err != nil {
		return err
	}
	w.to = onLAN[0].Addr()
	l := load{perSecond: perSecond, standing: kit.Pick(o, 1000, 60), before: kit.Pick(o, 10*time.Second, 3*time.Second)}
	if o.Flows > 0 {
		l.standing = o.Flows
	}
	standing, err := w.stand(ctx, l.standing)
	if err != nil {
		return err
	}
	bulk := w.fill(ctx)
	defer bulk.end()
	var striped, refused int
	var why string
	var bulkErr error
	all, err := w.under(ctx, l, standing, func() (err error) {
		if striped, refused, why, err = w.lanes(ctx); err == nil {
			bulkErr = bulk.end()
		}
		return err
	})
	if err != nil {
		return err
	}
	lost, example := 0, ""
	for _, a := range all {
		if a.err != nil {
			lost++
			example = fmt.Sprintf("number %d from %s: %v, after %.3f s, reason %q", a.number, a.local, a.err, a.took.Seconds(), w.reason(a.local))
		}
	}
	for _, f := range standing.flows {
		if f.err != nil {
			lost++
			example = fmt.Sprintf("%s: %v, reason %q", f.local, f.err, w.standingReason(f.local))
		}
	}
	if bulkErr != nil {
		lost++
		example = bulkErr.Error()
	}
	note(kit.Measured{Name: "flows", Value: float64(len(all) + len(standing.flows) + bulkFlows)})
	note(none("flows lost", lost, example))
	several := kit.Measured{Name: "flows with several lanes", Value: float64(striped)}
	if way == byECMP || way == byNFT { // an emulated guest may be too slow for them
		several.Bound, several.Exact = kit.AtLeast(1), true
	}
	note(several)
	note(none("lanes refused", refused, why))
	noteTwice(w.target, note)
	return nil
}

// share gives both far relays one address.
func (w *world) share(way string) error {
	if way == byNFT {
		return w.balance("nft", fmt.Sprintf(`table ip balancer {
	chain translate {
		type nat hook prerouting priority dstnat
		ip daddr %v tcp dport %d-%d dnat to jhash ip saddr . tcp sport mod 2 map { 0 : %v, 1 : %v }
	}
}
`, sharedFar.Addr(), port, port+1, farRelays[0].listen, farRelays[1].listen), "-f", "-")
	}
	var routers []netip.Addr
	for _, f := range farRelays {
		routers = append(routers, f.listen)
		if err := w.Host(f.name).Address("lo", sharedFar); err != nil {
			return err
		}
	}
	if way == byECMP {
		return w.Host("router-b").Route(hosts.Route{To: sharedFar, Group: routers})
	}
	// The relays answer through the balancer, with its own address as their source.
	if err := errors.Join(w.Host("router-b").Sysctl("net.ipv4.conf.all.accept_local", "1"), w.Host("router-b").Address("lo", sharedFar)); err != nil {
		return err
	}
	scheduler := strings.TrimPrefix(way, "ipvs-")
	var rules strings.Builder
	for i := range uint16(2) {
		service := netip.AddrPortFrom(sharedFar.Addr(), port+i)
		fmt.Fprintf(&rules, "-A -t %v -s %s -b %s-port\n", service, scheduler, scheduler)
		for _, to := range routers {
			fmt.Fprintf(&rules, "-a -t %v -r %v -g\n", service, netip.AddrPortFrom(to, port+i))
		}
	}
	return w.balance("ipvsadm", rules.String(), "-R")
}

// balance has a program of router-b take rules from its standard input.
func (w *world) balance(program, rules string, args ...string) error {
	cmd := exec.Command(lab.FindProgram(program), args...)
	cmd.Stdin = strings.NewReader(rules)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	err := w.Host("router-b").Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil || said.Len() > 0 {
		return fmt.Errorf("%s: %w: %s", program, err, said.String())
	}
	return nil
}

// lanes counts the flows that have several lanes, and the lanes that the near relay could not make, or
// that a far relay did not take for a part of its session.
func (w *world) lanes(ctx context.Context) (striped, refused int, why string, err error) {
	for _, r := range w.Relays {
		all, err := r.StatusOfAll(ctx)
		if err != nil {
			return 0, 0, "", err
		}
		for _, s := range all {
			if s.Pairs == nil {
				continue // no near relay has come to this one
			}
			for problem, n := range s.Pairs.Strangers {
				refused += int(n)
				why += fmt.Sprintf("%s: %d × %s; ", r.Name, n, problem)
			}
			for _, session := range s.Pairs.Sessions {
				if session.End == "near" {
					striped += session.FlowsStriped
				}
				if session.LaneError != "" {
					refused++
					why += fmt.Sprintf("%s: %s; ", r.Name, session.LaneError)
				}
			}
		}
	}
	unanswered := func(line string) bool {
		return strings.Contains(line, net.ErrClosed.Error()) || // no flow wanted it any more
			// The bulk flows fill the queue of the WAN.
			strings.Contains(line, os.ErrDeadlineExceeded.Error()) || strings.Contains(line, context.DeadlineExceeded.Error())
	}
	if unmade := slices.DeleteFunc(w.heard("lane not made"), unanswered); len(unmade) > 0 {
		refused += len(unmade)
		why += unmade[0]
	}
	return striped, refused, why, nil
}
