package routing

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/carry/intercept"
	"longhaul/internal/sys/checksum"
	"longhaul/internal/sys/halfopen"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// Observer observes the ways of intercepted connections.
type Observer struct {
	During time.Duration // the least time of watching
	// Client is the client whose address the probes have; zero: that of a flow, or else
	// this host's own at the clients' side.
	Client netip.Addr
}

const (
	// connectPatience has room for SYNs that are sent again after losses.
	connectPatience = 5 * time.Second
	echoPatience    = time.Second
	echoBeat        = 10 * time.Millisecond // between two looks for the reply
	echoTries       = 2
)

// Observe sends the probes of a tunnel to a target, or to that of a flow if it is zero.
func (o *Observer) Observe(
	ctx context.Context, relay intercept.Status, t intercept.TunnelStatus, target netip.AddrPort,
) (Observation, error) {
	seen := Observation{Relay: relay.Relay, Tunnel: t.Name, Interface: t.Interface, SourceRelay: t.SourceRelay,
		Problem: relay.Problem, Removed: len(relay.Missing) > 0, Swallowed: intercept.Swallows(relay.Missing), Connections: t.Connections, Target: target, Client: o.Client}
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		return seen, err
	}
	defer diag.Close()
	if err := seen.choose(t, diag); err != nil {
		return seen, err
	}
	if seen.Problem != "" {
		return seen, nil
	}
	seen.ClientDevice = routeDevice(seen.Client)
	stalled, err := stalledFlows(diag, seen.Target)
	if err != nil {
		return seen, err
	}
	probe := prober{Observation: &seen, port: clientPort()}
	ports := []uint16{probe.port}
	const watched = 16
	for _, s := range stalled[:min(len(stalled), watched)] {
		ports = append(ports, s.Source.Port())
	}
	if probe.watch, err = startWatch(ports); err != nil {
		return seen, err
	}
	defer probe.watch.stop()
	before := readCounters()
	probe.toward(ctx)
	if !seen.Proxy && seen.Client.BitLen() == seen.Target.Addr().BitLen() {
		if err := probe.back(); err != nil {
			return seen, err
		}
	}
	select {
	case <-ctx.Done():
		return seen, context.Cause(ctx)
	case <-time.After(time.Until(probe.watch.began.Add(o.During))):
	}
	seen.FilterDrops = readCounters().filter - before.filter
	probe.passive(t)
	return seen, probe.keepStalled(diag, stalled)
}

// clientPort is a port that clients hardly ever use by themselves: below the ranges from
// which systems choose.
func clientPort() uint16 { return uint16(20000 + rand.IntN(10000)) }

// choose completes client and target.
func (o *Observation) choose(t intercept.TunnelStatus, diag *tcpinfo.Diag) error {
	err := diag.Each(tcpinfo.States(tcpinfo.Established), func(c *tcpinfo.Connection) {
		// The relay's connection to a client has the target's address here.
		if !t.Takes(c.Remote.Addr(), c.Local) || o.Target.IsValid() && o.Target != c.Local {
			return
		}
		if !o.Client.IsValid() {
			o.Client = c.Remote.Addr()
		}
		if !o.Target.IsValid() && o.Client == c.Remote.Addr() {
			o.Target = c.Local
		}
	})
	if err != nil {
		return err
	}
	if !o.Target.IsValid() {
		return remedy.New(fmt.Errorf("tunnel %s has no flow whose target could be probed", t.Name), "name a target: longhaul doctor --intercept ADDRESS:PORT")
	}
	device, err := net.InterfaceByName(t.Interface)
	if err != nil {
		return fmt.Errorf("find the interface %s of tunnel %s: %w", t.Interface, t.Name, err)
	}
	addresses, err := device.Addrs()
	if err != nil {
		return err
	}
	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().BitLen() != o.Target.Addr().BitLen() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if !o.InterfaceAddress.IsValid() {
			o.InterfaceAddress = p.Addr()
		}
		if !o.Client.IsValid() && t.Takes(p.Addr(), o.Target) {
			o.Client, o.Proxy = p.Addr(), true
		}
	}
	if !o.Client.IsValid() || !t.Takes(o.Client, o.Target) {
		return remedy.New(fmt.Errorf("tunnel %s: no client is known whose address a probe to %s could have", t.Name, o.Target), "name one: --client ADDRESS")
	}
	o.Clients, o.Targets = covering(t.From, o.Client), covering(t.To, o.Target.Addr())
	return nil
}

// covering returns the prefix that has an address, or the address alone.
func covering(all []netip.Prefix, a netip.Addr) netip.Prefix {
	for _, p := range all {
		if p.Contains(a) {
			return p
		}
	}
	return netip.PrefixFrom(a, a.BitLen())
}

func routeDevice(to netip.Addr) string {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return ""
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return ""
	}
	return link.Attrs().Name
}

type prober struct {
	*Observation
	watch *watch
	port  uint16
}

// toward connects to the target as the relay does.
func (p *prober) toward(ctx context.Context) {
	from := netip.AddrPortFrom(p.Client, p.port)
	if p.SourceRelay {
		from = netip.AddrPort{}
	}
	before := readCounters()
	c, source := connect(ctx, from, p.Target)
	ended, after := time.Now(), readCounters()
	c.FilterDrops, c.ConntrackInvalid = after.filter-before.filter, after.invalid-before.invalid
	p.Toward = &c
	from = source
	p.Own = ownAddress(p.Target)
	if !c.ok() {
		control, _ := connect(ctx, netip.AddrPort{}, p.Target)
		p.Control = &control
	}
	p.watch.await(ended)
	// By the ports alone, since a NAT may have changed the address. An answer after the
	// end of the connect finds no socket, and passes on to the client.
	toTarget := func(q *packet) bool { return q.at.Before(ended) && q.to == p.Target && q.from.Port() == from.Port() }
	fromTarget := func(q *packet) bool { return q.at.Before(ended) && q.from == p.Target && q.to.Port() == from.Port() }
	c.SentBy = p.watch.devices(func(q *packet) bool { return q.outgoing && toTarget(q) && q.flags&flagSYN != 0 })
	c.AnsweredAt = p.watch.devices(func(q *packet) bool { return !q.outgoing && fromTarget(q) })
	c.ForwardedBy = p.watch.devices(func(q *packet) bool { return q.outgoing && fromTarget(q) })
	c.ResetAt = p.watch.devices(func(q *packet) bool { return !q.outgoing && toTarget(q) && q.flags&flagRST != 0 })
	if c.ok() { // a reset may be that of the connection itself
		c.ResetAt = nil
	}
}

// connect finds out whether a SYN is answered. The target's program sees no connection.
func connect(ctx context.Context, from, to netip.AddrPort) (c Connect, source netip.AddrPort) {
	var o halfopen.Options
	if from.IsValid() {
		o.Local, o.Prepare = from, func(fd int) error { return transparent(fd, from.Addr()) }
	} else if own := ownAddress(to); own.IsValid() {
		o.Local = netip.AddrPortFrom(own, clientPort())
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	_, err := halfopen.Ask(ctx, to.String(), o)
	switch {
	case err == nil:
		c.Result = Connected
		return c, o.Local
	case errors.Is(err, syscall.ECONNREFUSED):
		c.Result = Refused
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		c.Result = Rejected
	default:
		c.Result = Silent
	}
	c.Error = err.Error()
	return c, o.Local
}

// ownAddress returns this host's address toward another; the zero address without a route.
func ownAddress(to netip.AddrPort) netip.Addr {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) // sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

func transparent(fd int, address netip.Addr) error {
	if address.Is6() {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}

// back sends an echo request from the target's address to the client, whose reply has to
// come by this host, and one from this host's address if it does not.
func (p *prober) back() (err error) {
	if p.Back, err = p.echo(p.Target.Addr()); err == nil && len(p.Back.RepliedAt) == 0 {
		p.BackControl, err = p.echo(netip.Addr{})
	}
	return err
}

func (p *prober) echo(from netip.Addr) (*Echo, error) {
	family, protocol, kind := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
	var to unix.Sockaddr
	if p.Client.Is4() {
		to = &unix.SockaddrInet4{Addr: p.Client.As4()}
	} else {
		family, protocol, kind = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
		to = &unix.SockaddrInet6{Addr: p.Client.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open a socket for echo requests: %w", err)
	}
	defer unix.Close(fd)
	if from.IsValid() {
		var source unix.Sockaddr = &unix.SockaddrInet6{Addr: from.As16()}
		if from.Is4() {
			source = &unix.SockaddrInet4{Addr: from.As4()}
		}
		if err := errors.Join(transparent(fd, from), unix.Bind(fd, source)); err != nil {
			return nil, fmt.Errorf("send from %s: %w", from, err)
		}
	}
	e := &Echo{}
	id := uint16(rand.IntN(1 << 16))
	for try := range uint16(echoTries) {
		message := []byte{kind, 0, 0, 0}
		message = binary.BigEndian.AppendUint16(message, id)
		message = binary.BigEndian.AppendUint16(message, try)
		if family == unix.AF_INET { // the kernel has IPv6's
			binary.BigEndian.PutUint16(message[2:], checksum.Of(message))
		}
		if err := unix.Sendto(fd, message, 0, to); err != nil {
			continue // no route, which the route to the client shows
		}
		e.Sent = true
		isReply := func(q *packet) bool {
			return !q.outgoing && q.isEcho() && q.from.Addr() == p.Client && q.echo == id
		}
		for deadline := time.Now().Add(echoPatience); time.Now().Before(deadline); time.Sleep(echoBeat) {
			if e.RepliedAt = p.watch.devices(isReply); len(e.RepliedAt) > 0 {
				return e, nil
			}
		}
	}
	return e, nil
}

// passive reads what passed beside the probes.
func (p *prober) passive(t intercept.TunnelStatus) {
	type counts struct {
		Handshake
		arrived bool // an answer of the target
		stray   bool
		ended   bool
	}
	all := map[[2]netip.AddrPort]*counts{}
	of := func(client, target netip.AddrPort) *counts {
		key := [2]netip.AddrPort{client, target}
		if all[key] == nil {
			all[key] = &counts{Handshake: Handshake{Client: client, Target: target}}
		}
		return all[key]
	}
	const settled = time.Second // a connect from before the watch may be answered until then
	for _, q := range p.watch.seen() {
		switch {
		case q.protocol == protocolVRRP:
			m := Master{q.device, q.router, q.from.Addr(), q.outgoing}
			if !slices.Contains(p.Masters, m) {
				p.Masters = append(p.Masters, m)
			}
		case q.protocol != unix.IPPROTO_TCP || q.from.Port() == p.port || q.to.Port() == p.port:
		case q.flags&(flagSYN|flagRST) == 0:
		case q.flags&flagRST != 0:
			if t.Takes(q.from.Addr(), q.to) {
				of(q.from, q.to).ended = true
			} else if t.Takes(q.to.Addr(), q.from) {
				of(q.to, q.from).ended = true
			}
		case q.flags&flagACK == 0 && t.Takes(q.from.Addr(), q.to):
			if c := of(q.from, q.to); q.device == t.Interface && !q.outgoing {
				c.SYNs++
				if c.Answers > 0 {
					c.Repeats++
				}
			} else {
				c.ended = true // the relay's own connect: the handshake with the client is over
			}
		case q.flags&flagACK != 0 && t.Takes(q.to.Addr(), q.from) && q.device == t.Interface && q.outgoing:
			c := of(q.to, q.from)
			c.Answers++
			c.stray = c.stray || c.arrived && c.SYNs == 0 && !c.ended && q.at.Sub(p.watch.began) > settled
		case q.flags&flagACK != 0 && t.Takes(q.to.Addr(), q.from) && q.device != t.Interface && !q.outgoing:
			of(q.to, q.from).arrived = true
		}
	}
	const repeated = 3
	for _, c := range all {
		switch {
		case c.ended:
		case c.stray:
			p.Strays++
		case c.Answers >= repeated && !c.arrived:
			p.Handshakes = append(p.Handshakes, c.Handshake)
		}
	}
	sorted.By(p.Handshakes, func(a, b Handshake) int { return b.Answers - a.Answers })
}

// A flow stalls if the relay has sent again that often, and nothing was acknowledged for
// that long.
const (
	stalledResends = 4
	stalledSilence = 3 * time.Second
)

// stalledFlows returns the relay's connections to the target that get no answer.
func stalledFlows(diag *tcpinfo.Diag, target netip.AddrPort) (all []Stalled, err error) {
	err = diag.Each(tcpinfo.States(tcpinfo.Established), func(c *tcpinfo.Connection) {
		if c.Remote == target && c.Info.Retransmits >= stalledResends && c.Info.LastAckRecv >= stalledSilence {
			all = append(all, Stalled{Source: c.Local, Silence: c.Info.LastAckRecv})
		}
	})
	return all, err
}

// keepStalled keeps the flows that stall even now, with their packets.
func (p *prober) keepStalled(diag *tcpinfo.Diag, before []Stalled) error {
	if len(before) == 0 {
		return nil
	}
	now, err := stalledFlows(diag, p.Target)
	for _, s := range now {
		if !slices.ContainsFunc(before, func(b Stalled) bool { return b.Source == s.Source }) {
			continue
		}
		s.SentBy = p.watch.devices(func(q *packet) bool { return q.outgoing && q.from == s.Source && q.to == p.Target })
		s.ArrivedAt = p.watch.devices(func(q *packet) bool { return !q.outgoing && q.from == p.Target && q.to == s.Source })
		p.Stalled = append(p.Stalled, s)
	}
	return err
}

// counters are those of dropped packets of this network namespace.
type counters struct{ filter, invalid uint64 }

func readCounters() (c counters) {
	c.filter = netstat("IPReversePathFilter")
	f, err := os.Open("/proc/thread-self/net/stat/nf_conntrack")
	if err != nil {
		return c // no connection tracking
	}
	defer f.Close()
	column := -1
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if column < 0 {
			column = slices.Index(fields, "invalid")
			continue
		}
		if column < len(fields) { // a line for each CPU
			n, _ := strconv.ParseUint(fields[column], 16, 64)
			c.invalid += n
		}
	}
	return c
}

// netstat reads a counter of the kernel: pairs of lines, of names and of figures.
func netstat(name string) uint64 {
	b, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return 0
	}
	lines := strings.Split(string(b), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		if at := slices.Index(strings.Fields(lines[i]), name); at >= 0 {
			if figures := strings.Fields(lines[i+1]); at < len(figures) {
				n, _ := strconv.ParseUint(figures[at], 10, 64)
				return n
			}
		}
	}
	return 0
}
