package daemon

import (
	"context"
	"net"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/run/config"
	"longhaul/internal/words/units"
)

// nearTunnel is a tunnel whose flows go to a paired relay.
type nearTunnel struct {
	link    *pair.Link
	options pair.LinkOptions // to put into force
	peer    string
	pairing *pairing
	// original: the far relay dials what each client dialed.
	original bool
}

// near returns the near tunnel of a configuration. One with the same peer as
// before keeps its link. The caller holds mu.
func (p *pairs) near(c *config.Tunnel, transport relay.Transport) *nearTunnel {
	o := pair.LinkOptions{
		Tunnel:    c.Name,
		Peer:      c.Pair.Peer,
		Addresses: addressesOf(c.Forward[0]),
		Paths:     pathsOf(c.Pair.Paths),
		Lanes:     c.Pair.Lanes,
		Warm:      c.Pair.Warm,
		Resume:    c.Pair.Resume,
		Origin:    p.host + " " + c.Entrance(),
		NoResume:  c.Pair.Resume == 0,
		Clear:     c.Pair.Encrypt == config.EncryptOff,
		Compress:  c.Pair.Compress == config.CompressAuto,
	}
	if transport != nil {
		o.Prepare = func(fd int) error { return transport.Prepare(fd, true) }
		o.Established = func(fd int) {
			side, _ := transport.Established(fd, true)
			_ = transport.Lasting(fd, side) // Established has reported what the kernel refuses
		}
	}
	if was := p.current.near[c.Name]; was != nil && was.peer == o.Peer {
		return &nearTunnel{was.link, o, o.Peer, was.pairing, c.Intercept.Enabled()}
	}
	for _, m := range p.stood {
		if m.Tunnel == c.Name && m.Peer == o.Peer {
			o.Stood, o.Away = true, m.Away
		}
	}
	link := p.node.Link(o)
	return &nearTunnel{link, o, o.Peer, newPairing(link), c.Intercept.Enabled()}
}

func (t *nearTunnel) keep() { t.link.Update(t.options) }

func pathsOf(paths []config.Path) (all []pair.PathOptions) {
	for _, p := range paths {
		o := pair.PathOptions{Name: p.String(), Local: p.From, Interface: p.Interface, Standby: p.Standby}
		if p.To != nil {
			o.Addresses = addressesOf(*p.To)
		}
		all = append(all, o)
	}
	return all
}

// addressesOf resolves the far relay's address.
func addressesOf(f config.Forward) func(context.Context) ([]netip.AddrPort, error) {
	port := f.Ports.First
	if a, err := netip.ParseAddr(f.Host); err == nil {
		one := []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), port)}
		return func(context.Context) ([]netip.AddrPort, error) { return one, nil }
	}
	return func(ctx context.Context) ([]netip.AddrPort, error) {
		found, err := names.Lookup(ctx, net.DefaultResolver, f.Host)
		if err != nil {
			return nil, err
		}
		all := make([]netip.AddrPort, len(found))
		for i, a := range found {
			all[i] = netip.AddrPortFrom(a, port)
		}
		return all, nil
	}
}

// pairing adapts a link to relay's Pairing. It has a function in place of the
// link: relay compares tunnels deeply at a reload.
type pairing struct {
	carry func(relay.PairClient, func(relay.PairEnd)) relay.PairFlow
}

func newPairing(link *pair.Link) *pairing {
	carry := func(c relay.PairClient, ended func(relay.PairEnd)) relay.PairFlow {
		return pairFlow{link.Carry(pair.Client{
			FD:       c.FD,
			From:     c.From,
			Listen:   c.Listen,
			Early:    c.Early,
			Deadline: c.Deadline,
			Legs:     legsOfPair(c.Legs),
		}, func(_ *pair.Flow, e pair.End) { ended(toPairEnd(e)) })}
	}
	return &pairing{carry}
}

// Carry implements relay.Pairing.
func (p *pairing) Carry(c relay.PairClient, ended func(relay.PairEnd)) relay.PairFlow {
	return p.carry(c, ended)
}

// unbounded is a timeout that never ends.
const unbounded = 100 * 365 * 24 * time.Hour

func legsOfPair(l relay.PairLegs) pair.LegOptions {
	o := pair.LegOptions{HalfClose: l.HalfClose, Idle: l.Idle, ResetDrain: l.ResetDrain, Closing: l.Closing}
	if o.HalfClose < 0 {
		o.HalfClose = unbounded
	}
	return o
}

// pairFlow adapts a flow of a pair to relay's PairFlow.
type pairFlow struct{ *pair.Flow }

func (f pairFlow) Figures() relay.PairFigures {
	now := f.Flow.Figures()
	return relay.PairFigures{
		State:     string(now.State),
		BytesUp:   now.BytesUp,
		BytesDown: now.BytesDown,
		Retained:  now.Retained,
		Lanes:     now.Lanes,
		Target:    addressOrNone(now.Target),
		Idle:      f.Flow.Idle(),
		Resumes:   now.Resumes,
		Outage:    now.Outage,
		RTT:       now.RTT,
	}
}

// Inspect implements relay.PairFlow.
func (f pairFlow) Inspect(look func(leg, lane int, add relay.PairCounters)) {
	f.Flow.Inspect(func(leg, lane int, add pair.Counters) { look(leg, lane, toPairCounters(add)) })
}

// EachLane implements relay.PairFlow.
func (f pairFlow) EachLane() []flow.Lane {
	all := f.Flow.EachLane()
	lanes := make([]flow.Lane, len(all))
	for i, l := range all {
		lanes[i] = flow.Lane{Local: flow.Address{AddrPort: l.Local}, BytesSent: l.Sent, BytesReceived: l.Received, RTT: units.Seconds(l.RTT), Leaving: l.Leaving}
	}
	return lanes
}

func toPairCounters(c pair.Counters) relay.PairCounters {
	return relay.PairCounters{BytesSent: c.Sent, BytesRetransmitted: c.Retransmitted, Retransmits: c.Retransmits}
}

func toPairEnd(e pair.End) relay.PairEnd {
	return relay.PairEnd{
		Reason:    e.Reason,
		Err:       e.Err,
		ByPeer:    e.ByPeer,
		BytesUp:   e.BytesUp,
		BytesDown: e.BytesDown,
		Target:    addressOrNone(e.Target),
		Resumes:   e.Resumes,
		Outage:    e.Outage,

		Lanes:             toPairCounters(e.Lanes),
		CongestionControl: e.CongestionControl,
	}
}

func addressOrNone(text string) netip.AddrPort {
	a, _ := netip.ParseAddrPort(text)
	return a
}

var (
	_ relay.Pairing  = (*pairing)(nil)
	_ relay.PairFlow = pairFlow{}
)
