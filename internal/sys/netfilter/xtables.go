package netfilter

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// The matches and targets of iptables, with the structs of the kernel's headers
// linux/netfilter/xt_*.h. Both iptables-legacy and iptables-nft have them.

// continuing are targets after which the next rule follows.
var continuing = []string{
	"AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT", "DSCP", "ECN", "HL", "HMARK", "IDLETIMER", "LED", "LOG", "MARK",
	"NFLOG", "NOTRACK", "RATEEST", "SECMARK", "SET", "TCPMSS", "TCPOPTSTRIP", "TEE", "TOS", "TRACE", "TTL",
}

// targetVerdict is nil for a target after which the next rule follows.
func targetVerdict(name string) *verdict {
	switch {
	case name == "REJECT" || name == "DROP":
		return &verdict{code: drop}
	case slices.Contains(continuing, name):
		return nil
	case slices.Contains([]string{"DNAT", "REDIRECT", "NETMAP", "SNAT", "MASQUERADE"}, name):
		return &verdict{unknown: translated}
	}
	return &verdict{unknown: "the target " + name}
}

// xtEntry is the condition of the header of an entry of iptables-legacy.
func (e *evaluation) xtEntry(b []byte) (condition, *verdict) {
	n := e.packet.addressBytes()
	names := 4 * n // after source, destination and their masks
	protocolAt := names + 4*unix.IFNAMSIZ
	const (
		inverseInput, inverseOutput, inverseSource, inverseTarget, inverseFragment, inverseProtocol = 1, 2, 8, 0x10, 0x20, 0x40

		fragment   = 1 // IPT_F_FRAG
		v6Protocol = 1 // IP6T_F_PROTO
	)
	protocol := binary.NativeEndian.Uint16(b[protocolAt:])
	flags, inverse := b[protocolAt+2], b[protocolAt+3]
	checksProtocol := protocol != 0
	if e.packet.isSix() {
		flags, inverse = b[protocolAt+3], b[protocolAt+4]
		checksProtocol = flags&v6Protocol != 0
	} else if flags&fragment != 0 && inverse&inverseFragment == 0 {
		return never, nil
	}
	if checksProtocol && (protocol == unix.IPPROTO_TCP || protocol == 0) == (inverse&inverseProtocol != 0) {
		return never, nil
	}
	return e.all(
		e.address(source, b[:n], b[2*n:3*n], inverse&inverseSource != 0),
		e.address(target, b[n:2*n], b[3*n:4*n], inverse&inverseTarget != 0),
		e.xtDevice(unix.NFT_META_IIFNAME, b[names:], inverse&inverseInput != 0),
		e.xtDevice(unix.NFT_META_OIFNAME, b[names+unix.IFNAMSIZ:], inverse&inverseOutput != 0),
	), nil
}

// all is the conjunction of conditions, which it must be able to write as one.
func (e *evaluation) all(conditions ...condition) (c condition) {
	c = always
	for _, next := range conditions {
		c = e.and(c, next)
	}
	return c
}

// and joins two conditions. Inverted ones become their complements, range by range.
func (e *evaluation) and(a, b condition) condition {
	a, b = e.straight(a), e.straight(b)
	var c condition
	for _, x := range a.terms {
		for _, y := range b.terms {
			if t, possible := e.both(x, y); possible {
				c.terms = append(c.terms, t)
			}
		}
	}
	return c
}

// straight writes a condition without an inversion.
func (e *evaluation) straight(c condition) condition {
	if !c.inverted {
		return c
	}
	if len(c.terms) == 0 {
		return condition{terms: []term{{}}}
	}
	// None of the terms: for each term, one of its constraints fails.
	result := condition{terms: []term{{}}}
	for _, t := range c.terms {
		var fails condition
		if t.unsure != "" {
			fails.terms = append(fails.terms, term{unsure: t.unsure})
		}
		for d, k := range t.of {
			if k.isFree() {
				continue
			}
			s, ok := e.rangesOf(k, d)
			if !ok {
				fails.terms = append(fails.terms, term{unsure: "a mask with many holes"})
				continue
			}
			if rest := one(number{}, lowBits(8*e.bytes(d))).subtract(s); len(rest) > 0 {
				fails.terms = append(fails.terms, within(d, rest).terms[0])
			}
		}
		result = e.and(result, fails)
	}
	return result
}

// address is an address under a mask.
func (e *evaluation) address(dimension int, value, mask []byte, inverted bool) condition {
	m, v := numberOf(mask), numberOf(value)
	if !v.and(m.not()).isZero() {
		return when(inverted) // no address under the mask is equal
	}
	if m.isZero() {
		return when(!inverted)
	}
	var t term
	t.of[dimension] = constraint{mask: m, value: v}
	return condition{terms: []term{t}, inverted: inverted}
}

// xtDevice compares the name of a device under a mask, which follows both names.
func (e *evaluation) xtDevice(key uint32, names []byte, inverted bool) condition {
	const maskAfter = 2 * unix.IFNAMSIZ
	mask := names[maskAfter : maskAfter+unix.IFNAMSIZ]
	if isZero(mask) {
		return when(!inverted)
	}
	cells := slices.Clone(e.meta(key))
	for i := range cells {
		cells[i].mask &= mask[i]
		cells[i].xor &= mask[i]
	}
	value := slices.Clone(names[:unix.IFNAMSIZ])
	for i := range value {
		value[i] &= mask[i]
	}
	t, possible := e.equal(cells, value)
	if !possible {
		return when(inverted)
	}
	return condition{terms: []term{t}, inverted: inverted}
}

// xtMatch is the condition of a match.
func (e *evaluation) xtMatch(x expression) condition {
	name, info, revision := x.text(unix.NFTA_MATCH_NAME), x.attributes[unix.NFTA_MATCH_INFO], x.number(unix.NFTA_MATCH_REV)
	unknown := maybe("the match " + name)
	short := func(n int) bool { return len(info) < n }
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(info[at:]) }
	half := func(at int) uint16 { return binary.NativeEndian.Uint16(info[at:]) }
	switch name {
	case "comment":
		return always
	case "udp", "udplite", "icmp", "icmp6", "sctp", "dccp", "ah", "esp":
		return never
	case "rt", "hbh", "dst", "frag", "mh": // headers that a first SYN does not have
		return never
	case "tcp":
		if short(12) {
			return unknown
		}
		return e.xtTCP(info)
	case "multiport":
		if short(48) || revision != 1 {
			return unknown
		}
		return e.xtMultiport(info)
	case "iprange":
		if short(65) || revision != 1 {
			return unknown
		}
		return e.xtRange(info)
	case "state":
		if short(4) {
			return unknown
		}
		return e.xtState(word(0), 1<<6)
	case "conntrack":
		if short(154) || revision < 1 || revision > 3 || revision == 3 && short(162) {
			return unknown
		}
		return e.xtConntrack(info, revision)
	case "mark":
		if short(9) || revision != 1 {
			return unknown
		}
		c := partly(native(e.packet.mark&word(4)), native(e.packet.markUnknown&word(4)), "the mark of the packet")
		return e.compare(uint32(min(info[8], 1)), c, info[:4]) // its inversion is NFT_CMP_NEQ
	case "pkttype":
		if short(8) {
			return unknown
		}
		return when((word(0) == hostPacket) == (word(4) == 0))
	case "addrtype":
		switch {
		case short(8) || !e.packet.exact:
			return unknown
		case revision == 0 && !short(12):
			return xtAddressType(half(0), half(2), word(4) != 0, word(8) != 0)
		case revision == 1 && word(4)&^3 == 0: // without a device
			return xtAddressType(half(0), half(2), word(4)&1 != 0, word(4)&2 != 0)
		}
	}
	return unknown
}

// xtAddressType knows addresses that are neither this host's nor a group's.
func xtAddressType(from, to uint16, inverseFrom, inverseTo bool) condition {
	const unicast = 1 << routeUnicast
	holds := func(types uint16, inverted bool) bool { return types == 0 || types&unicast != 0 != inverted }
	return when(holds(from, inverseFrom) && holds(to, inverseTo))
}

func portRange(first, last uint16) interval {
	return interval{small(uint64(first)), small(uint64(last))}
}

// ports is within, for ranges that may be the wrong way round and are then empty.
func ports(dimension int, inverted bool, all ...interval) condition {
	all = slices.DeleteFunc(all, func(r interval) bool { return r.last.less(r.first) })
	if len(all) == 0 {
		return when(inverted)
	}
	c := within(dimension, rangesOf(all))
	c.inverted = inverted
	return c
}

// xtTCP: struct xt_tcp has two source ports, two target ports, an option, a mask of flags,
// flags, inversions.
func (e *evaluation) xtTCP(b []byte) condition {
	const inverseSource, inverseTarget, inverseFlags = 1, 2, 4
	half := func(at int) uint16 { return binary.NativeEndian.Uint16(b[at:]) }
	option, mask, flags, inverse := b[8], b[9], b[10], b[11]
	c := e.all(
		ports(sourcePort, inverse&inverseSource != 0, portRange(half(0), half(2))),
		ports(targetPort, inverse&inverseTarget != 0, portRange(half(4), half(6))),
		when((synFlag&mask == flags) != (inverse&inverseFlags != 0)),
	)
	if option != 0 {
		c = e.and(c, maybe("a TCP option"))
	}
	return c
}

// xtMultiport: struct xt_multiport_v1 has flags, a count, 15 ports, for each whether it
// begins a range, and the inversion.
func (e *evaluation) xtMultiport(b []byte) condition {
	const most, rangesAt, inversionAt = 15, 32, 47
	var all []interval
	for i := 0; i < min(int(b[1]), most); i++ {
		first := binary.NativeEndian.Uint16(b[2+2*i:])
		last := first
		if b[rangesAt+i] != 0 && i+1 < most {
			i++
			last = binary.NativeEndian.Uint16(b[2+2*i:])
		}
		all = append(all, portRange(first, last))
	}
	inverted := b[inversionAt] != 0
	switch b[0] {
	case 0:
		return ports(sourcePort, inverted, all...)
	case 1:
		return ports(targetPort, inverted, all...)
	}
	either := condition{inverted: inverted}
	either.terms = append(ports(sourcePort, false, slices.Clone(all)...).terms, ports(targetPort, false, all...).terms...)
	return either
}

// xtRange: struct xt_iprange_mtinfo has four addresses and flags.
func (e *evaluation) xtRange(b []byte) condition {
	n := e.packet.addressBytes()
	flags := b[64]
	side := func(dimension, at int, flag byte) condition {
		if flags&flag == 0 {
			return always
		}
		return ports(dimension, flags&(flag<<4) != 0, interval{numberOf(b[at : at+n]), numberOf(b[at+16 : at+16+n])})
	}
	return e.and(side(source, 0, 1), side(target, 32, 2))
}

// xtState is a mask of states as iptables has them; untracked is the bit for packets that
// connection tracking does not see.
func (e *evaluation) xtState(mask, untracked uint32) condition {
	const stateNewBit = 1 << 3
	if e.packet.state == stateNew && e.packet.stateUnknown == 0 {
		return when(mask&stateNewBit != 0)
	}
	if e.tracked() == no {
		return when(mask&untracked != 0)
	}
	if a, b := mask&stateNewBit != 0, mask&untracked != 0; a == b {
		return when(a)
	}
	return maybe("whether connection tracking sees the packet")
}

// xtConntrack: struct xt_conntrack_mtinfo1 to 3 have eight addresses and masks, the times,
// protocol, ports, flags, inversions, states.
func (e *evaluation) xtConntrack(b []byte, revision uint32) condition {
	const (
		state = 1 << iota
		protocol
		originalSource
		originalTarget
		answerSource
		answerTarget
		status
		expires
		originalSourcePort
		originalTargetPort
		answerSourcePort
		answerTargetPort
		direction
		alias
	)
	half := func(at int) uint16 { return binary.NativeEndian.Uint16(b[at:]) }
	n := e.packet.addressBytes()
	flags, inverse := half(146), half(148)
	states, statuses := uint32(half(150)), uint32(half(152))
	if revision == 1 {
		states, statuses = uint32(b[150]), uint32(b[151])
	}
	c := always
	if flags&state != 0 {
		one := e.xtState(states, 1<<8)
		if inverse&state != 0 {
			one = one.not()
		}
		c = one
	}
	others := flags &^ (state | alias)
	if others == 0 {
		return c
	}
	switch e.tracked() {
	case no: // the kernel then looks at the state alone
		if flags&state == 0 {
			return never
		}
		return c
	case unsure:
		return e.and(c, maybe("whether connection tracking sees the packet"))
	}
	is := func(flag uint16, holds bool) {
		if flags&flag != 0 {
			c = e.and(c, when(holds == (inverse&flag == 0)))
		}
	}
	is(protocol, half(136) == unix.IPPROTO_TCP)
	is(direction, true)
	if flags&originalSource != 0 {
		c = e.and(c, e.address(source, b[0:n], b[16:16+n], inverse&originalSource != 0))
	}
	if flags&originalTarget != 0 {
		c = e.and(c, e.address(target, b[32:32+n], b[48:48+n], inverse&originalTarget != 0))
	}
	if flags&status != 0 {
		if statuses&^uint32(statusUnset) != 0 {
			c = e.and(c, maybe("connection tracking"))
		} else {
			is(status, false)
		}
	}
	if flags&(originalSourcePort|originalTargetPort) != 0 {
		if revision < 3 {
			c = e.and(c, maybe("connection tracking"))
		} else {
			if flags&originalSourcePort != 0 {
				c = e.and(c, ports(sourcePort, inverse&originalSourcePort != 0, portRange(half(138), half(154))))
			}
			if flags&originalTargetPort != 0 {
				c = e.and(c, ports(targetPort, inverse&originalTargetPort != 0, portRange(half(140), half(156))))
			}
		}
	}
	if flags&(answerSource|answerTarget|answerSourcePort|answerTargetPort|expires) != 0 {
		c = e.and(c, maybe("connection tracking"))
	}
	return c
}
