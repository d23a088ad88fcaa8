package intercept

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"longhaul/internal/words/portrange"
	"longhaul/internal/words/sorted"
)

// Priorities of the chains, among those of other programs at the same hook.
const (
	// beforeConntrack is also before the raw table's.
	beforeConntrack = -310
	// afterAll is after the translation of addresses, with which an answer gets the
	// address of the relay's socket, and after filters that look up a packet's route
	// back with its mark, as firewalld's for IPv6.
	afterAll = 300
)

// tablePrefix begins the names of longhaul's tables. The name of a relay follows.
const tablePrefix = "longhaul-"

// chain is a chain of nftables.
type chain struct {
	name     string
	hook     *nftables.ChainHook // nil: other chains jump to it
	hookName string
	priority nftables.ChainPriority
	rules    []rule
}

// rule is a rule as the nft command takes it and as the kernel does.
type rule []statement

// statement is a part of a rule.
type statement struct {
	text string
	// kernel returns the expressions. It may add sets to the transaction.
	kernel func(t *transaction) []expr.Any
}

// ruleset is what a relay's table has.
type ruleset struct {
	table    string
	begun    []family // whose connections it takes, see begun.go
	counters []string
	chains   []chain
}

// newRuleset returns the rules for o:
//
//	divert   gives the first SYNs of clients to the listener, and keeps connection
//	         tracking off the clients' packets. It has a chain for each tunnel, and one
//	         for its SYNs.
//	take     remembers the SYNs that the listener gets, see begun.go
//	deliver  marks the packets of the relay's sockets, for the routing rule, and ICMP
//	         errors about them: on the way to the address of the client or target
//	answer   keeps connection tracking off the packets to the clients
//	refuse   refuses SYNs as their targets have, see mirror.go
//
// With the client's address as the source, both connections of a flow have the same
// addresses and ports. Connection tracking would take the two for one, and most of their
// packets for invalid. So it sees only the packets between relay and target.
//
// Every packet that the host forwards passes the first two. They begin with what dismisses
// most packets soonest.
func newRuleset(o Options) ruleset {
	r := ruleset{table: tablePrefix + o.Relay}
	divert := chain{name: "divert", hook: nftables.ChainHookPrerouting, hookName: "prerouting", priority: beforeConntrack}
	deliver := chain{name: "deliver", hook: nftables.ChainHookPrerouting, hookName: "prerouting", priority: afterAll}
	answer := chain{name: "answer", hook: nftables.ChainHookOutput, hookName: "output", priority: beforeConntrack}
	divert.rules = []rule{{isUDP, accept}}
	deliver.rules = []rule{{isUDP, accept}}
	if all := o.ports(); all != nil {
		divert.rules = append(divert.rules, rule{noneOf("dport", all), accept})
		if o.AnswerPorts && len(o.Dialers) == 0 {
			deliver.rules = append(deliver.rules, rule{noneOf("sport", all), noneOf("dport", all), accept})
		}
	}
	var tunnels []chain
	for _, f := range families {
		if slices.ContainsFunc(o.Tunnels, func(t Tunnel) bool { return f.in(t.To) }) {
			r.begun = append(r.begun, f)
			tunnels = append(tunnels, f.take())
		}
	}
	for _, t := range o.Tunnels {
		r.counters = append(r.counters, counterName(t.Name), bypassCounter(t.Name), signedCounter(t.Name))
		for _, f := range families {
			if !f.in(t.To) {
				continue
			}
			syns := chain{name: "syn-" + f.name + "-" + t.Name, rules: append(append([]rule{f.forget()}, f.divert(t)...), rule{ofTransparentSocket, notrack})}
			of := chain{name: f.name + "-" + t.Name, rules: []rule{
				{firstSYN, goTo(syns.name)},
				{ofTransparentSocket, notrack, accept},
				f.completes(t),
			}}
			tunnels = append(tunnels, syns, of)
			// A rule that names no addresses of one family names the family.
			from, to := f.ranges(t.From), f.ranges(t.To)
			clients := f.addresses("saddr", from, false)
			targets := f.addresses("daddr", to, clients != nil)
			divert.rules = append(divert.rules, join(
				device("iifname", expr.MetaKeyIIFNAME, t.Interface), f.match(len(clients)+len(targets) == 0), clients, targets,
				ports("dport", t.Ports), rule{jump(of.name)}))
			targets = f.addresses("saddr", to, false)
			clients = f.addresses("daddr", from, targets != nil)
			answer.rules = append(answer.rules, join(
				device("oifname", expr.MetaKeyOIFNAME, t.Interface), f.match(len(clients)+len(targets) == 0), targets, clients,
				ports("sport", t.Ports), rule{notFromThisHost, notrack}))
		}
	}
	for _, f := range families {
		if slices.ContainsFunc(o.Tunnels, func(t Tunnel) bool { return t.Mirror && f.in(t.To) }) {
			tunnels = append(tunnels, f.refusals())
		}
	}
	for _, name := range interfaces(o.Tunnels) {
		divert.rules = append(divert.rules, join(device("iifname", expr.MetaKeyIIFNAME, name),
			rule{isOneOf(icmp...), ofTransparentSocket, notrack}))
	}
	deliver.rules = append(deliver.rules, rule{isOneOf(append(icmp, tcp)...), ofTransparentSocket, setMark(o.mark())})
	for _, d := range o.Dialers {
		r.counters = append(r.counters, counterName(d.Name))
		for _, f := range families {
			if !f.in(d.To) {
				continue
			}
			targets := f.addresses("saddr", f.ranges(d.To), false)
			clients := f.addresses("daddr", f.ranges(d.From), targets != nil)
			deliver.rules = append(deliver.rules, join(f.match(len(clients)+len(targets) == 0), targets, clients,
				someOf("sport", d.Ports), rule{firstAnswer, ofTransparentSocket, countIn(counterName(d.Name))}))
		}
	}
	if len(o.Tunnels) == 0 {
		r.chains = []chain{deliver}
		return r
	}
	r.chains = append(tunnels, divert, deliver, answer)
	return r
}

// ports are those of all tunnels; nil: any port.
func (o Options) ports() (all []portrange.Range) {
	for _, t := range o.Tunnels {
		if len(mergePorts(t.Ports)) == 0 {
			return nil
		}
		all = append(all, t.Ports...)
	}
	return mergePorts(all)
}

func interfaces(tunnels []Tunnel) (names []string) {
	for _, t := range tunnels {
		if !slices.Contains(names, t.Interface) {
			names = append(names, t.Interface)
		}
	}
	return names
}

func counterName(tunnel string) string { return "connections-" + tunnel }

func bypassCounter(tunnel string) string { return "bypassed-" + tunnel }

func signedCounter(tunnel string) string { return "signed-" + tunnel }

func join(parts ...rule) rule { return slices.Concat(parts...) }

func (r rule) text() string {
	words := make([]string, len(r))
	for i, s := range r {
		words[i] = s.text
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// commands returns the arguments of nft that make the table.
func (r ruleset) commands() (lines []string) {
	table := "inet " + r.table
	lines = append(lines, "add table "+table)
	for _, f := range r.begun {
		lines = append(lines, fmt.Sprintf("add set %s %s %s", table, f.begun(), f.begunText()))
	}
	for _, c := range r.counters {
		lines = append(lines, fmt.Sprintf("add counter %s %s", table, c))
	}
	for _, c := range r.chains {
		line := fmt.Sprintf("add chain %s %s", table, c.name)
		if c.hook != nil {
			line += fmt.Sprintf(" { type filter hook %s priority %d ; policy accept ; }", c.hookName, c.priority)
		}
		lines = append(lines, line)
	}
	for _, c := range r.chains {
		for _, rule := range c.rules {
			lines = append(lines, fmt.Sprintf("add rule %s %s %s", table, c.name, rule.text()))
		}
	}
	return lines
}

// replace puts the ruleset in place of what the table of that name has, in one step.
// Counters go on, and so does the memory of the connections that have begun. With only, it
// leaves the rules of the other chains: of many tunnels they are thousands.
func (r ruleset) replace(only ...string) error {
	former, err := contentsOf(r.table)
	if err != nil {
		return err
	}
	t := newTransaction(r.table)
	t.addTable()
	chosen := func(chain string) bool { return len(only) == 0 || slices.Contains(only, chain) }
	if len(only) == 0 {
		t.flush()
	}
	stay := map[string]bool{} // chains
	for _, c := range r.chains {
		was, stands := former.chains[c.name]
		stay[c.name] = stands && was.is(c)
	}
	for name := range former.chains {
		if len(only) > 0 && chosen(name) {
			t.flushChain(name)
		}
	}
	for name := range former.chains {
		if !stay[name] {
			t.deleteChain(name)
		}
	}
	for _, name := range former.sets {
		if !slices.ContainsFunc(r.begun, func(f family) bool { return f.begun() == name }) {
			t.deleteSet(name)
		}
	}
	counters := map[string]bool{}
	for _, name := range r.counters {
		counters[name] = true
	}
	for name := range former.counters {
		if !counters[name] {
			t.deleteCounter(name)
		}
	}
	for _, f := range r.begun {
		if !slices.Contains(former.sets, f.begun()) {
			f.addBegun(t)
		}
	}
	for _, name := range r.counters {
		if _, stands := former.counters[name]; !stands {
			t.addCounter(name)
		}
	}
	for _, c := range r.chains {
		if !stay[c.name] {
			t.addChain(c)
		}
	}
	for _, c := range r.chains {
		if !chosen(c.name) {
			continue
		}
		for _, rule := range c.rules {
			t.addRule(c.name, rule, 0)
		}
	}
	return t.commit()
}

// update is replace for a table that is known: it touches what differs alone. A rule of the kernel takes
// thousandfold the time of a comparison. If nftables has another generation by now, it changes nothing
// and returns ERESTART.
func (r ruleset) update(was *Standing) error {
	t := newTransactionOf(r.table, was.generation)
	before, now := map[string]chain{}, map[string]bool{}
	for _, c := range was.want.chains {
		before[c.name] = c
	}
	type addition struct {
		chain string
		rule
		before uint64
	}
	var added []addition
	for _, c := range r.chains {
		now[c.name] = true
		old, handles := before[c.name].rules, was.rules[c.name]
		stay := common(old, c.rules)
		from := 0
		for i, one := range c.rules {
			if stay[i] < 0 {
				added = append(added, addition{c.name, one, 0})
				continue
			}
			for n := len(added) - 1; n >= 0 && added[n].chain == c.name && added[n].before == 0; n-- {
				added[n].before = handles[stay[i]].Handle
			}
			for ; from < stay[i]; from++ {
				t.deleteRule(c.name, handles[from].Handle)
			}
			from = stay[i] + 1
		}
		for ; from < len(old); from++ {
			t.deleteRule(c.name, handles[from].Handle)
		}
	}
	gone := func(c chain) bool { return !now[c.name] }
	for _, c := range was.want.chains {
		if gone(c) {
			t.flushChain(c.name)
		}
	}
	for _, c := range was.want.chains {
		if gone(c) {
			t.deleteChain(c.name)
		}
	}
	difference(was.want.begun, r.begun, func(f family) string { return f.begun() }, func(f family) { t.deleteSet(f.begun()) })
	difference(r.begun, was.want.begun, func(f family) string { return f.begun() }, func(f family) { f.addBegun(t) })
	difference(was.want.counters, r.counters, itself, t.deleteCounter)
	difference(r.counters, was.want.counters, itself, t.addCounter)
	difference(r.chains, was.want.chains, func(c chain) string { return c.name }, t.addChain)
	for _, a := range added {
		t.addRule(a.chain, a.rule, a.before)
	}
	if t.messages == 1 { // the beginning alone: the kernel would not ask for the generation
		if !was.isWhole() {
			return unix.ERESTART
		}
		return nil
	}
	return t.commit()
}

func itself(name string) string { return name }

// difference passes what others do not have.
func difference[T any](all, others []T, name func(T) string, each func(T)) {
	has := make(map[string]bool, len(others))
	for _, o := range others {
		has[name(o)] = true
	}
	for _, one := range all {
		if !has[name(one)] {
			each(one)
		}
	}
}

// common finds rules that stay: for each new rule the place of an equal old one, in the same order; -1
// for a rule without an equal one.
func common(old, now []rule) (places []int) {
	places = make([]int, len(now))
	var at map[string][]int // of old, by text
	next := 0
	for i, r := range now {
		places[i] = -1
		if next < len(old) && r.equal(old[next]) { // as most
			places[i], next = next, next+1
			continue
		}
		if at == nil {
			at = make(map[string][]int, len(old))
			for i, r := range old {
				at[r.text()] = append(at[r.text()], i)
			}
		}
		for _, place := range at[r.text()] {
			if place >= next {
				places[i], next = place, place+1
				break
			}
		}
	}
	return places
}

// equal reports whether two rules have the same text, which is all of them.
func (r rule) equal(other rule) bool {
	return slices.EqualFunc(r, other, func(a, b statement) bool { return a.text == b.text })
}

// contents are what a table of longhaul's has beside its rules.
type contents struct {
	chains   map[string]formerChain
	sets     []string
	counters map[string]expr.Counter
}

// formerChain is a chain of a table of longhaul's.
type formerChain struct {
	base     bool
	hook     nftables.ChainHook
	priority nftables.ChainPriority
	drops    bool // by its policy, which another program has set
}

// is reports whether a chain can stay as the chain c of its name.
func (f formerChain) is(c chain) bool {
	return f.base == (c.hook != nil) && !f.drops &&
		(!f.base || f.hook == *c.hook && f.priority == c.priority)
}

// contentsOf reads a table; none has no contents.
func contentsOf(table string) (all contents, err error) {
	if all.counters, err = counters(table); err != nil || all.counters == nil {
		return all, err
	}
	conn, err := nftables.New()
	if err != nil {
		return all, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return all, fmt.Errorf("list the chains of %s: %w", table, err)
	}
	all.chains = map[string]formerChain{}
	for _, c := range chains {
		if c.Table.Name != table {
			continue
		}
		f := formerChain{base: c.Hooknum != nil && c.Priority != nil}
		if f.base {
			f.hook, f.priority = *c.Hooknum, *c.Priority
			f.drops = c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		}
		all.chains[c.Name] = f
	}
	sets, err := conn.GetSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: table})
	if err != nil {
		return all, fmt.Errorf("list the sets of %s: %w", table, err)
	}
	for _, s := range sets {
		if !s.Anonymous {
			all.sets = append(all.sets, s.Name)
		}
	}
	return all, nil
}

// deleteTable removes a table, in one step.
func deleteTable(name string) error {
	t := newTransaction(name)
	t.addTable() // or its deletion would fail
	t.deleteTable()
	return t.commit()
}

// plain is a statement with the same expressions in every transaction.
func plain(text string, all ...expr.Any) statement {
	return statement{text, func(*transaction) []expr.Any { return all }}
}

func equal(data ...byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func native(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

var (
	l4tcp = []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(unix.IPPROTO_TCP)}
	isTCP = plain("meta l4proto tcp", l4tcp...)
	isUDP = plain("meta l4proto udp", &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(unix.IPPROTO_UDP))

	firstSYN    = flags(beginOrEnd, beginOrEndMask, "syn", 0x02)
	firstAnswer = flags(beginOrEnd, beginOrEndMask, "syn | ack", 0x12)

	notToThisHost = plain("fib daddr type != local", &expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, notLocal)
	// Answers of this host's own servers have one of its addresses.
	notFromThisHost = plain("fib saddr type != local", &expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true}, notLocal)
	notLocal        = &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native(unix.RTN_LOCAL)}

	ofTransparentSocket = plain("socket transparent 1", &expr.Socket{Key: expr.SocketKeyTransparent, Register: 1}, equal(1))

	notrack = plain("notrack", &expr.Notrack{})
	accept  = plain("accept", &expr.Verdict{Kind: expr.VerdictAccept})
	drop    = plain("drop", &expr.Verdict{Kind: expr.VerdictDrop})
)

// The flags that begin or end a connection.
const (
	beginOrEnd     = "fin | syn | rst | ack"
	beginOrEndMask = 0x17
)

// flags matches TCP segments that have the flags in bits, and no others of those in mask.
func flags(of string, mask byte, words string, bits byte) statement {
	return plain(fmt.Sprintf("tcp flags & (%s) == %s", of, words), append(slices.Clip(l4tcp),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		equal(bits))...)
}

// protocol is a protocol in the words of nft.
type protocol struct {
	word   string
	number byte
}

var (
	tcp  = protocol{"tcp", unix.IPPROTO_TCP}
	icmp = []protocol{{"icmp", unix.IPPROTO_ICMP}, {"icmpv6", unix.IPPROTO_ICMPV6}}
)

// isOneOf matches packets of the protocols.
func isOneOf(protocols ...protocol) statement {
	words := make([]string, len(protocols))
	elements := make([]nftables.SetElement, len(protocols))
	for i, p := range protocols {
		words[i], elements[i].Key = p.word, []byte{p.number}
	}
	return statement{"meta l4proto " + setText(words), func(t *transaction) []expr.Any {
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, t.set(nftables.TypeInetProto, elements, false)}
	}}
}

func jump(to string) statement {
	return plain("jump "+to, &expr.Verdict{Kind: expr.VerdictJump, Chain: to})
}

func countIn(counter string) statement {
	return plain("counter name "+counter, &expr.Objref{Type: int(nftables.ObjTypeCounter), Name: counter})
}

func setMark(bit uint32) statement {
	return plain(fmt.Sprintf("meta mark set meta mark or %#x", bit),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(^bit), Xor: native(bit)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1})
}

func device(word string, key expr.MetaKey, name string) rule {
	var padded [unix.IFNAMSIZ]byte
	copy(padded[:], name)
	return rule{plain(fmt.Sprintf("%s %q", word, name), &expr.Meta{Key: key, Register: 1}, equal(padded[:]...))}
}

// family is an address family in the words of nft.
type family struct {
	name, word string // "ipv4", "ip"
	number     byte   // NFPROTO_IPV4
	rtnl       int    // AF_INET
	loopback   netip.Addr
	bits       int
	source     uint32 // offset of the source address in a packet; the destination follows
	set        nftables.SetDatatype
}

var families = []family{
	{"ipv4", "ip", unix.NFPROTO_IPV4, unix.AF_INET, netip.AddrFrom4([4]byte{127, 0, 0, 1}), 32, 12, nftables.TypeIPAddr},
	{"ipv6", "ip6", unix.NFPROTO_IPV6, unix.AF_INET6, netip.IPv6Loopback(), 128, 8, nftables.TypeIP6Addr},
}

// in reports whether one of the prefixes is of the family.
func (f family) in(prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().BitLen() == f.bits })
}

// match is the match of the family itself, if nothing else in the rule implies it.
func (f family) match(needed bool) rule {
	s := f.expressions()
	if !needed {
		return nil
	}
	return rule{plain("meta nfproto "+f.name, s...)}
}

func (f family) expressions() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(f.number)}
}

func (f family) port(t Tunnel) uint16 { return f.choose(t.ListenPort, t.ListenPort6) }

func (f family) holdPort(t Tunnel) uint16 { return f.choose(t.HoldPort, t.HoldPort6) }

func (f family) choose(four, six uint16) uint16 {
	if f.bits == 32 {
		return four
	}
	return six
}

// tproxy ends the rule if nobody listens at the port.
func (f family) tproxy(port uint16, planned string) statement {
	text := planned // before the relay listens
	if port != 0 {
		text = fmt.Sprint(port)
	}
	address := f.loopback.String()
	if f.loopback.Is6() {
		address = "[" + address + "]"
	}
	return plain(fmt.Sprintf("tproxy %s to %s:%s", f.word, address, text),
		&expr.Immediate{Register: 1, Data: f.loopback.AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.TProxy{Family: f.number, TableFamily: byte(nftables.TableFamilyINet), RegAddr: 1, RegPort: 2})
}

// addressRange is an inclusive range of addresses.
type addressRange struct{ first, last netip.Addr }

func (r addressRange) text(bits int) string {
	if r.first == r.last {
		return r.first.String()
	}
	first, last := r.first.AsSlice(), r.last.AsSlice()
	n := 0 // leading bits that both have
	for n < bits && (first[n/8]^last[n/8])&(0x80>>(n%8)) == 0 {
		n++
	}
	if p := netip.PrefixFrom(r.first, n); p.Masked().Addr() == r.first && lastOf(p) == r.last {
		return p.String()
	}
	return r.first.String() + "-" + r.last.String()
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// ranges returns the family's prefixes as disjoint ranges that do not touch: nft merges
// others. It returns nothing if they are all addresses.
func (f family) ranges(prefixes []netip.Prefix) (merged []addressRange) {
	var all []addressRange
	for _, p := range prefixes {
		if p.Addr().BitLen() == f.bits {
			all = append(all, addressRange{p.Masked().Addr(), lastOf(p)})
		}
	}
	sorted.By(all, func(a, b addressRange) int { return a.first.Compare(b.first) })
	for _, r := range all {
		if n := len(merged); n > 0 && (!merged[n-1].last.Less(r.first) || merged[n-1].last.Next() == r.first) {
			if merged[n-1].last.Less(r.last) {
				merged[n-1].last = r.last
			}
			continue
		}
		merged = append(merged, r)
	}
	if len(merged) == 1 && !merged[0].first.Prev().IsValid() && !merged[0].last.Next().IsValid() {
		return nil
	}
	return merged
}

// addresses matches one of the ranges; an empty rule matches all. matched: the rule has matched
// the family already.
func (f family) addresses(which string, ranges []addressRange, matched bool) rule {
	if len(ranges) == 0 {
		return nil
	}
	length := uint32(f.bits / 8)
	offset := f.source
	if which == "daddr" {
		offset += length
	}
	texts := make([]string, len(ranges))
	var elements []nftables.SetElement
	if ranges[0].first != netip.PrefixFrom(ranges[0].first, 0).Masked().Addr() {
		elements = append(elements, nftables.SetElement{Key: make([]byte, length), IntervalEnd: true})
	}
	for i, r := range ranges {
		texts[i] = r.text(f.bits)
		elements = append(elements, nftables.SetElement{Key: r.first.AsSlice()})
		if next := r.last.Next(); next.IsValid() {
			elements = append(elements, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
		}
	}
	return rule{{
		fmt.Sprintf("%s %s %s", f.word, which, setText(texts)),
		func(t *transaction) []expr.Any {
			load := []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}}
			if !matched {
				load = append(f.expressions(), load...)
			}
			if len(ranges) > 1 {
				return append(load, t.set(f.set, elements, true))
			}
			return append(load, between(ranges[0].first.AsSlice(), ranges[0].last.AsSlice())...)
		},
	}}
}

// between matches a value of register 1 from first to last.
func between(first, last []byte) []expr.Any {
	if slices.Equal(first, last) {
		return []expr.Any{equal(first...)}
	}
	// A prefix is written as such, for listings.
	mask := make([]byte, len(first))
	for i := range mask {
		mask[i] = ^(first[i] ^ last[i])
	}
	if isPrefix(mask) && slices.Equal(and(first, mask), first) && slices.Equal(and(last, mask), first) {
		return []expr.Any{
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
			equal(first...),
		}
	}
	return []expr.Any{
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: first},
		&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: last},
	}
}

func isPrefix(mask []byte) bool {
	seenZero := false
	for i := range len(mask) * 8 {
		one := mask[i/8]&(0x80>>(i%8)) != 0
		if one && seenZero {
			return false
		}
		seenZero = seenZero || !one
	}
	return true
}

func and(a, b []byte) []byte {
	r := make([]byte, len(a))
	for i := range a {
		r[i] = a[i] & b[i]
	}
	return r
}

// setText is a set with more than one element in braces, as nft lists it.
func setText(elements []string) string {
	if len(elements) == 1 {
		return elements[0]
	}
	return "{ " + strings.Join(elements, ", ") + " }"
}

const lastPort = 1<<16 - 1

// mergePorts returns disjoint ranges that do not touch, nothing if they are all ports.
func mergePorts(ranges []portrange.Range) (merged []portrange.Range) {
	all := slices.Clone(ranges)
	sorted.By(all, func(a, b portrange.Range) int { return int(a.First) - int(b.First) })
	for _, r := range all {
		if n := len(merged); n > 0 && int(r.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, r.Last)
			continue
		}
		merged = append(merged, r)
	}
	if len(merged) == 1 && merged[0].First <= 1 && merged[0].Last == lastPort {
		return nil
	}
	return merged
}

// ports matches TCP packets with one of the ports.
func ports(which string, ranges []portrange.Range) rule {
	if some := someOf(which, ranges); some != nil {
		return some
	}
	return rule{isTCP}
}

// someOf is ports, or nothing if they are all ports.
func someOf(which string, ranges []portrange.Range) rule {
	ranges = mergePorts(ranges)
	if len(ranges) == 0 {
		return nil
	}
	return rule{matchPorts(which, ranges, false)}
}

// mostSinglePorts bounds the ports that noneOf looks up one by one.
const mostSinglePorts = 64

// noneOf matches TCP packets with none of the ports, which are merged. The kernel finds a
// range in a set more slowly than a value: a few ports are values. With more, it compares
// with the range that has them all.
func noneOf(which string, ranges []portrange.Range) statement {
	if len(ranges) > 1 {
		var single []portrange.Range
		for _, r := range ranges {
			for port := int(r.First); port <= int(r.Last) && len(single) <= mostSinglePorts; port++ {
				single = append(single, portrange.Range{First: uint16(port), Last: uint16(port)})
			}
		}
		if len(single) > mostSinglePorts {
			single = []portrange.Range{{First: ranges[0].First, Last: ranges[len(ranges)-1].Last}}
		}
		ranges = single
	}
	return matchPorts(which, ranges, true)
}

// matchPorts matches TCP packets whose port is in one of the ranges, or in none of them.
func matchPorts(which string, ranges []portrange.Range, none bool) statement {
	offset := uint32(0)
	if which == "dport" {
		offset = 2
	}
	is, op := "", expr.CmpOpEq
	if none {
		is, op = "!= ", expr.CmpOpNeq
	}
	key := func(port int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(port)) }
	texts := make([]string, len(ranges))
	interval := slices.ContainsFunc(ranges, func(r portrange.Range) bool { return r.First != r.Last })
	var elements []nftables.SetElement
	if interval && ranges[0].First > 0 {
		elements = append(elements, nftables.SetElement{Key: key(0), IntervalEnd: true})
	}
	for i, r := range ranges {
		texts[i] = r.String()
		elements = append(elements, nftables.SetElement{Key: key(int(r.First))})
		if interval && r.Last < lastPort {
			elements = append(elements, nftables.SetElement{Key: key(int(r.Last) + 1), IntervalEnd: true})
		}
	}
	return statement{
		fmt.Sprintf("tcp %s %s%s", which, is, setText(texts)),
		func(t *transaction) []expr.Any {
			load := append(slices.Clip(l4tcp), &expr.Payload{
				DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2,
			})
			if len(ranges) > 1 {
				lookup := t.set(nftables.TypeInetService, elements, interval)
				lookup.Invert = none
				return append(load, lookup)
			}
			first, last := key(int(ranges[0].First)), key(int(ranges[0].Last))
			switch {
			case ranges[0].First == ranges[0].Last:
				return append(load, &expr.Cmp{Op: op, Register: 1, Data: first})
			case none:
				return append(load, &expr.Range{Op: op, Register: 1, FromData: first, ToData: last})
			}
			return append(load,
				&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: first},
				&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: last})
		},
	}
}
