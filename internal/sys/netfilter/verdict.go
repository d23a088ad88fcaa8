package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/portrange"
	"longhaul/internal/words/printable"
)

// Outcome is what the rules do with connections.
type Outcome string

// Outcomes. PartlyRejected is certain of some connections, and says nothing about the
// others.
const (
	Accepted       Outcome = "accepted"
	PartlyRejected Outcome = "partly rejected"
	Rejected       Outcome = "rejected"
	CannotTell     Outcome = "cannot tell"
)

// Verdict is what the rules do with connections, and which rule does it.
type Verdict struct {
	Outcome Outcome `json:"outcome"`
	// Chain has the rule that rejects, or that the outcome depends on; it is nil if there
	// is none. Rule is the place of the rule from 1, and 0 for the policy of the chain.
	Chain  *ChainName `json:"chain,omitempty"`
	Rule   int        `json:"rule,omitempty"`
	Handle uint64     `json:"handle,omitempty"` // of nftables
	// Why is what the outcome depends on, if it cannot be told.
	Why string `json:"why,omitempty"`
	// Example is a connection that is rejected, or of which it cannot be told.
	Example *Connection `json:"example,omitempty"`
	// Show is the command that lists the chain.
	Show string `json:"show,omitempty"`
	// Base is the chain of the hook from which a packet comes to Chain.
	Base *ChainName `json:"-"`
}

// Connection is a connection of a client to a target.
type Connection struct {
	From     netip.Addr `json:"from"`
	FromPort uint16     `json:"from_port,omitempty"` // 0: any
	To       netip.Addr `json:"to"`
	ToPort   uint16     `json:"to_port"`
}

// String is "10.1.0.2:* > 10.2.0.3:80".
func (c Connection) String() string {
	port := "*"
	if c.FromPort != 0 {
		port = strconv.Itoa(int(c.FromPort))
	}
	host := c.From.String()
	if c.From.Is6() {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("%s:%s > %s", host, port, netip.AddrPortFrom(c.To, c.ToPort))
}

// String is the verdict on one line.
func (v Verdict) String() string {
	at := ""
	if v.Chain != nil {
		at = "the policy of " + v.Chain.String()
		if v.Rule > 0 {
			handle := ""
			if v.Handle > 0 {
				handle = fmt.Sprintf(" (handle %d)", v.Handle)
			}
			at = fmt.Sprintf("rule %d%s of %s", v.Rule, handle, v.Chain)
		}
	}
	switch {
	case v.Outcome == PartlyRejected && v.Example != nil:
		return fmt.Sprintf("%s: %s by %s", v.Outcome, v.Example, at)
	case v.Outcome == Rejected:
		return fmt.Sprintf("%s by %s", v.Outcome, at)
	case v.Outcome == CannotTell && at != "":
		return fmt.Sprintf("%s: %s depends on %s", v.Outcome, at, v.Why)
	case v.Why != "":
		return fmt.Sprintf("%s: %s", v.Outcome, v.Why)
	}
	return string(v.Outcome)
}

// Flows are TCP connections of clients behind an interface.
type Flows struct {
	Interface string
	From      []netip.Prefix // without one of the family: everybody behind the interface
	To        []netip.Prefix
	Ports     []portrange.Range // empty: all
}

// maxDevices bounds the devices that packets may leave by, of which each is looked at.
const maxDevices = 64

// Forward returns what the chains of the forward hook do with the flows of a family,
// NFPROTO_IPV4 or NFPROTO_IPV6, on their way to their targets. Flows that do not arrive,
// or that this host does not forward, do not count: from addresses that are routed
// elsewhere, to this host's addresses and to those without a route.
func (r *Ruleset) Forward(family byte, f Flows) (Verdict, error) {
	devices, in, err := r.devicesWith(f.Interface)
	if err != nil {
		return Verdict{}, err
	}
	ways, err := r.routing(family)
	if err != nil {
		return Verdict{}, err
	}
	if master := devices[in.master]; master != nil && master.isVRF {
		ways.exact = false
	}
	p := packet{family: family, hook: unix.NF_INET_FORWARD, in: in, markUnknown: ^uint32(0), state: stateNew, exact: ways.exact}
	if r.untracks {
		p.stateUnknown = stateNew | stateUntracked
	}
	all := one(number{}, lowBits(8*p.addressBytes()))
	flows := box{
		source: all, target: prefixRanges(f.To, family).subtract(ways.local),
		targetPort: portRanges(f.Ports), sourcePort: one(small(1), small(1<<16-1)),
	}
	if from := prefixRanges(f.From, family); len(from) > 0 {
		flows[source] = from
	}
	flows[source] = flows[source].subtract(ways.local)
	if ways.exact {
		flows[source] = flows[source].intersect(rangesOf(append(slices.Clone(ways.by[in.index]), ways.by[0]...)))
	}
	if len(flows[source]) == 0 {
		return Verdict{Outcome: CannotTell, Why: "no clients of the tunnel are routed by " + f.Interface}, nil
	}
	left := map[uint32]ranges{0: flows[target]} // targets by the device that packets leave by
	if ways.exact {
		left = ways.by
		if !r.asksOutput() || len(left) > maxDevices {
			var any []interval
			for _, s := range left {
				any = append(any, s...)
			}
			left = map[uint32]ranges{0: rangesOf(any)}
		}
	}
	w := weighing{region: flows, isSix: p.isSix()}
	work := 0
	for _, index := range sortedKeys(left) {
		b := flows
		if b[target] = flows[target].intersect(left[index]); len(b[target]) == 0 || len(b[targetPort]) == 0 {
			continue
		}
		untouched, others := r.untranslated(p, b)
		w.add(others)
		p.out = devices[index]
		e := newEvaluation(r, p, b)
		e.work = work
		all := e.hook(untouched)
		work = e.work
		w.add(all)
		w.add(e.samples(all))
	}
	v := w.verdict()
	if v.Outcome == Accepted && r.unseen != "" {
		return Verdict{Outcome: CannotTell, Why: r.unseen}, nil
	}
	return v, nil
}

// untranslated leaves out flows whose targets a rule may translate before they are
// forwarded, or that end there.
func (r *Ruleset) untranslated(p packet, flows box) (boxes []box, others []judged) {
	p.hook, p.out = unix.NF_INET_PRE_ROUTING, nil
	for _, j := range newEvaluation(r, p, flows).hook([]box{flows}) {
		if j.may == passes {
			boxes = append(boxes, j.box)
		} else {
			others = append(others, j)
		}
	}
	return boxes, others
}

// maxSamples bounds the flows that samples looks at.
const maxSamples = 16

// samples looks at single flows where there were too many ranges for all of them.
func (e *evaluation) samples(all []judged) (found []judged) {
	n := 0
	for _, j := range all {
		if j.unsure.what != tooMany || n == maxSamples {
			continue
		}
		n++
		flow := j.box
		flow[source], flow[target] = single(host(j.box[source])), single(host(j.box[target]))
		flow[targetPort], flow[sourcePort] = single(j.box[targetPort][0].first), single(j.box[sourcePort][0].first)
		e.work = 0
		found = append(found, e.hook([]box{flow})...)
	}
	return found
}

func single(v number) ranges { return one(v, v) }

var errNoDevice = errors.New("no such interface")

func sortedKeys(m map[uint32]ranges) (keys []uint32) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// routing reads where packets go, once.
func (r *Ruleset) routing(family byte) (ways routing, err error) {
	ways, known := r.ways[family]
	if !known {
		if ways, err = settled(func() (routing, error) { return readRouting(family) }); err == nil {
			r.ways[family] = ways
		}
	}
	return ways, err
}

// devicesWith reads the devices, once, of which one has to have a name.
func (r *Ruleset) devicesWith(name string) (all map[uint32]*device, one *device, err error) {
	if r.devices == nil {
		if r.devices, err = settled(readDevices); err != nil {
			return nil, nil, err
		}
	}
	all = r.devices
	for _, d := range all {
		if d.name == name {
			return all, d, nil
		}
	}
	return nil, nil, fmt.Errorf("find the interface %s: %w", name, errNoDevice)
}

func prefixRanges(prefixes []netip.Prefix, family byte) ranges {
	var all []interval
	for _, p := range prefixes {
		if p.Addr().Is4() == (family == unix.NFPROTO_IPV4) {
			all = append(all, prefixRange(p))
		}
	}
	return rangesOf(all)
}

// portRanges leaves out port 0, which no connection has.
func portRanges(of []portrange.Range) ranges {
	all := one(small(1), small(1<<16-1))
	if len(of) == 0 {
		return all
	}
	var some []interval
	for _, r := range of {
		some = append(some, portRange(r.First, r.Last))
	}
	return all.intersect(rangesOf(some))
}

// asksOutput reports whether a rule of any chain may ask for the device that packets leave
// by.
func (r *Ruleset) asksOutput() bool {
	for _, c := range r.Chains {
		for _, rule := range c.Rules {
			if slices.ContainsFunc(rule.expressions, expression.asksOutput) {
				return true
			}
		}
	}
	return false
}

func (x expression) asksOutput() bool {
	switch x.name {
	case "entry":
		return true
	case "meta":
		key := x.number(unix.NFTA_META_KEY)
		return key == unix.NFT_META_OIF || key == unix.NFT_META_OIFNAME || key == unix.NFT_META_OIFGROUP || key == unix.NFT_META_OIFTYPE
	}
	return false
}

// Packet is a client's first packet to a relay on this host, which connection tracking
// does not see.
type Packet struct {
	Interface string
	From, To  netip.Addr
	Port      uint16 // of the target
	Mark      uint32 // bits that are set; others may be
}

// Input returns what the chains of the input hook do with a packet.
func (r *Ruleset) Input(p Packet) (Verdict, error) {
	_, in, err := r.devicesWith(p.Interface)
	if err != nil {
		return Verdict{}, err
	}
	of := packet{
		family: unix.NFPROTO_IPV4, hook: unix.NF_INET_LOCAL_IN, in: in,
		mark: p.Mark, markUnknown: ^p.Mark, state: stateUntracked, exact: true,
	}
	if p.To.Is6() {
		of.family = unix.NFPROTO_IPV6
	}
	b := box{
		source: single(addressNumber(p.From)), target: single(addressNumber(p.To)),
		targetPort: single(small(uint64(p.Port))), sourcePort: one(small(1), small(1<<16-1)),
	}
	e := newEvaluation(r, of, b)
	w := weighing{region: b, isSix: of.isSix()}
	w.add(e.hook([]box{b}))
	return w.verdict(), nil
}

// weighing makes one verdict of the fates of flows.
type weighing struct {
	region             box
	isSix              bool
	passes             bool
	rejected, doubtful *judged
}

func (w *weighing) add(all []judged) {
	for i, j := range all {
		switch {
		case j.may == passes:
			w.passes = true
		case j.may == drops && w.rejected == nil:
			w.rejected = &all[i]
		case j.may != drops && w.doubtful == nil:
			w.doubtful = &all[i]
		}
	}
}

func (w *weighing) verdict() Verdict {
	var v Verdict
	switch {
	case w.rejected != nil:
		v = w.at(w.rejected.by, w.rejected)
		if v.Outcome = Rejected; w.passes || w.doubtful != nil {
			v.Outcome = PartlyRejected
		}
	case w.doubtful != nil:
		v = w.at(w.doubtful.unsure.spot, w.doubtful)
		v.Outcome, v.Why = CannotTell, printable.String(w.doubtful.unsure.what)
	case w.passes:
		v.Outcome = Accepted
	default:
		v.Outcome, v.Why = CannotTell, "no route leads to the targets of the tunnel"
	}
	return v
}

func (w *weighing) at(s spot, j *judged) (v Verdict) {
	if s.chain != nil {
		v.Chain, v.Show = &s.chain.ChainName, s.chain.Show()
	}
	if s.rule != nil {
		v.Rule, v.Handle = s.rule.number, s.rule.handle
	}
	if j.base != nil {
		v.Base = &j.base.ChainName
	}
	v.Example = &Connection{
		From: host(j.box[source]).address(w.isSix), To: host(j.box[target]).address(w.isSix), ToPort: uint16(j.box[targetPort][0].first.lo),
	}
	if !j.box[sourcePort].equal(w.region[sourcePort]) {
		v.Example.FromPort = uint16(j.box[sourcePort][0].first.lo)
	}
	return v
}

// host is an address for an example: not the first of a prefix, which is no host's.
func host(s ranges) number {
	for _, r := range s {
		if r.first != r.last {
			return r.first.next()
		}
	}
	return s[0].first
}
