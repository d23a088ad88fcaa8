package intercept

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// packet is a packet as it reaches the input chains.
type packet struct {
	family   family
	device   string
	index    uint32
	from, to netip.Addr
	port     uint16 // of the target
	mark     uint32
}

// dropper returns the input chain that surely drops a packet, whatever the parts of rules
// do that it does not understand.
func dropper(r reader, chains []foreignChain, p packet) (dropping *foreignChain) {
	var inputs []foreignChain
	for _, c := range chains {
		if c.base && c.hook == unix.NF_INET_LOCAL_IN && (c.family == unix.NFPROTO_INET || c.family == p.family.number) {
			inputs = append(inputs, c)
		}
	}
	slices.SortStableFunc(inputs, func(a, b foreignChain) int { return int(a.priority) - int(b.priority) })
	for _, c := range inputs {
		e := evaluation{reader: r, chains: chains, base: c, packet: p}
		result := e.chain(c, 0)
		if result&passes != 0 || result&falls != 0 && c.policy == nfAccept {
			continue
		}
		return &c
	}
	return nil
}

// outcomes are what may become of a packet.
type outcomes uint8

const (
	passes outcomes = 1 << iota
	drops
	falls // reaches the end of the chain
)

// matching is whether a rule matches.
type matching uint8

const (
	no matching = iota
	yes
	maybe // a part that is not understood
)

type evaluation struct {
	reader reader
	chains []foreignChain
	base   foreignChain
	packet packet
	// registers, as the kernel has them: 20 words of 4 bytes.
	data  [80]byte
	known [80]bool
}

// maxDepth bounds jumps, as the kernel does.
const maxDepth = 16

func (e *evaluation) chain(c foreignChain, depth int) (all outcomes) {
	if depth > maxDepth {
		return passes | drops
	}
	for _, rule := range c.rules {
		m, v := e.rule(rule)
		if m == no || v == nil {
			continue
		}
		result := falls
		switch {
		case v.code == nfAccept:
			result = passes
		case v.code == nfDrop:
			result = drops
		case v.unknown:
			result = passes | drops
		case v.code == unix.NFT_JUMP || v.code == unix.NFT_GOTO:
			i := slices.IndexFunc(e.chains, func(c foreignChain) bool {
				return c.family == e.base.family && c.table == e.base.table && c.name == v.chain
			})
			if i < 0 {
				continue
			}
			result = e.chain(e.chains[i], depth+1)
			if v.code == unix.NFT_JUMP && result&falls != 0 {
				all |= result &^ falls
				continue
			}
		case v.code != unix.NFT_RETURN:
			continue
		}
		all |= result
		if m == yes {
			return all
		}
	}
	return all | falls
}

// verdict is the end of a rule that matches.
type verdict struct {
	code    int32
	chain   string
	unknown bool
}

func verdictOf(data []byte) *verdict {
	a := parse(parse(data)[unix.NFTA_DATA_VERDICT])
	return &verdict{code: int32(a.number(unix.NFTA_VERDICT_CODE)), chain: a.text(unix.NFTA_VERDICT_CHAIN)}
}

// rule returns whether a rule matches, and its verdict; nil if it only counts or logs.
func (e *evaluation) rule(rule []foreignExpr) (m matching, v *verdict) {
	m = yes
	for _, x := range rule {
		one := yes
		switch x.name {
		case "meta":
			e.meta(x)
		case "payload":
			e.payload(x)
		case "ct":
			one = e.ct(x)
		case "immediate":
			if x.number(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
				v = verdictOf(x.attributes[unix.NFTA_IMMEDIATE_DATA])
			} else {
				e.store(x.number(unix.NFTA_IMMEDIATE_DREG), x.value(unix.NFTA_IMMEDIATE_DATA))
			}
		case "bitwise":
			e.bitwise(x)
		case "cmp":
			one = e.cmp(x)
		case "lookup":
			var found *verdict
			if one, found = e.lookup(x); found != nil {
				v = found
			}
		case "reject":
			v = &verdict{code: nfDrop}
		case "target":
			v = target(x.text(unix.NFTA_TARGET_NAME))
		case "match":
			one = e.match(x)
		case "counter", "log", "objref":
		default:
			one = maybe
			// Its register is not known any more; most have it as attribute 1 or 2.
			e.forget()
		}
		if one == no {
			return no, nil
		}
		if one == maybe {
			m = maybe
		}
	}
	return m, v
}

// target is the verdict of a target of iptables.
func target(name string) *verdict {
	switch name {
	case "REJECT", "DROP":
		return &verdict{code: nfDrop}
	case "LOG", "NFLOG", "MARK", "CONNMARK", "TRACE":
		return nil
	}
	return &verdict{unknown: true, code: unix.NFT_CONTINUE}
}

// place is the offset of a register.
func place(register uint32) int {
	if register >= unix.NFT_REG32_00 {
		return 16 + 4*int(register-unix.NFT_REG32_00)
	}
	return 16 * int(register)
}

func (e *evaluation) store(register uint32, value []byte) {
	at := place(register)
	for i := range 16 {
		if at+i < len(e.data) {
			e.data[at+i], e.known[at+i] = 0, value != nil
		}
	}
	if at < len(e.data) {
		copy(e.data[at:], value)
	}
}

func (e *evaluation) forget() { e.known = [len(e.known)]bool{} }

// load returns a value; ok is false if it is not known.
func (e *evaluation) load(register uint32, length int) (value []byte, ok bool) {
	at := place(register)
	if at+length > len(e.data) || slices.Contains(e.known[at:at+length], false) {
		return nil, false
	}
	return e.data[at : at+length], true
}

func (e *evaluation) meta(x foreignExpr) {
	if _, sets := x.attributes[unix.NFTA_META_SREG]; sets {
		return
	}
	var value []byte
	switch x.number(unix.NFTA_META_KEY) {
	case unix.NFT_META_IIFNAME:
		value = make([]byte, unix.IFNAMSIZ)
		copy(value, e.packet.device)
	case unix.NFT_META_IIF:
		value = native(e.packet.index)
	case unix.NFT_META_MARK:
		value = native(e.packet.mark)
	case unix.NFT_META_NFPROTO:
		value = []byte{e.packet.family.number}
	case unix.NFT_META_L4PROTO:
		value = []byte{unix.IPPROTO_TCP}
	case unix.NFT_META_PROTOCOL:
		protocol := uint16(unix.ETH_P_IP)
		if e.packet.family.bits == 128 {
			protocol = unix.ETH_P_IPV6
		}
		value = binary.BigEndian.AppendUint16(nil, protocol)
	}
	e.store(x.number(unix.NFTA_META_DREG), value)
}

// payload loads the parts of the packet that are known: addresses, protocol, port.
func (e *evaluation) payload(x foreignExpr) {
	f := e.packet.family
	offset, length := x.number(unix.NFTA_PAYLOAD_OFFSET), x.number(unix.NFTA_PAYLOAD_LEN)
	n := uint32(f.bits / 8)
	var whole []byte
	var at uint32
	switch base := x.number(unix.NFTA_PAYLOAD_BASE); {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && offset >= f.source:
		whole, at = append(e.packet.from.AsSlice(), e.packet.to.AsSlice()...), f.source
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && f.bits == 32 && offset == 9:
		whole, at = []byte{unix.IPPROTO_TCP}, 9
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == 2:
		whole, at = binary.BigEndian.AppendUint16(nil, e.packet.port), 2
	}
	if offset < at || int(offset-at+length) > len(whole) || n == 0 {
		e.store(x.number(unix.NFTA_PAYLOAD_DREG), nil)
		return
	}
	e.store(x.number(unix.NFTA_PAYLOAD_DREG), whole[offset-at:offset-at+length])
}

// ct loads the state of the packet, which is not tracked. It then has nothing else.
func (e *evaluation) ct(x foreignExpr) matching {
	const untracked = 1 << 6
	if _, sets := x.attributes[unix.NFTA_CT_SREG]; sets {
		return yes
	}
	if x.number(unix.NFTA_CT_KEY) != unix.NFT_CT_STATE {
		return no
	}
	e.store(x.number(unix.NFTA_CT_DREG), native(untracked))
	return yes
}

func (e *evaluation) bitwise(x foreignExpr) {
	mask, xor := x.value(unix.NFTA_BITWISE_MASK), x.value(unix.NFTA_BITWISE_XOR)
	length := int(x.number(unix.NFTA_BITWISE_LEN))
	value, ok := e.load(x.number(unix.NFTA_BITWISE_SREG), length)
	if !ok || len(mask) != length || len(xor) != length {
		e.store(x.number(unix.NFTA_BITWISE_DREG), nil)
		return
	}
	result := and(value, mask)
	for i := range result {
		result[i] ^= xor[i]
	}
	e.store(x.number(unix.NFTA_BITWISE_DREG), result)
}

func (e *evaluation) cmp(x foreignExpr) matching {
	want := x.value(unix.NFTA_CMP_DATA)
	value, ok := e.load(x.number(unix.NFTA_CMP_SREG), len(want))
	if !ok {
		return maybe
	}
	c := bytes.Compare(value, want)
	holds := false
	switch x.number(unix.NFTA_CMP_OP) {
	case unix.NFT_CMP_EQ:
		holds = c == 0
	case unix.NFT_CMP_NEQ:
		holds = c != 0
	case unix.NFT_CMP_LT:
		holds = c < 0
	case unix.NFT_CMP_LTE:
		holds = c <= 0
	case unix.NFT_CMP_GT:
		holds = c > 0
	case unix.NFT_CMP_GTE:
		holds = c >= 0
	}
	if holds {
		return yes
	}
	return no
}

// lookup looks a value up in a set, or a verdict in a map.
func (e *evaluation) lookup(x foreignExpr) (matching, *verdict) {
	unsure := func() (matching, *verdict) {
		if _, isMap := x.attributes[unix.NFTA_LOOKUP_DREG]; isMap {
			return maybe, &verdict{unknown: true, code: unix.NFT_CONTINUE}
		}
		return maybe, nil
	}
	elements, err := e.reader.elements(e.base.family, e.base.table, x.text(unix.NFTA_LOOKUP_SET))
	if err != nil {
		return unsure()
	}
	type member struct {
		key     []byte
		end     bool
		element attributes
	}
	var members []member
	for _, element := range elements {
		if _, concatenated := element[keyEnd]; concatenated {
			return unsure()
		}
		members = append(members, member{
			element.value(unix.NFTA_SET_ELEM_KEY), element.number(unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0, element,
		})
	}
	inverted := x.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	var found attributes
	if len(members) > 0 {
		value, ok := e.load(x.number(unix.NFTA_LOOKUP_SREG), len(members[0].key))
		if !ok {
			return unsure()
		}
		interval := slices.ContainsFunc(members, func(m member) bool { return m.end })
		slices.SortFunc(members, func(a, b member) int {
			if c := bytes.Compare(a.key, b.key); c != 0 {
				return c
			}
			if a.end { // one interval ends where the next begins
				return -1
			}
			return 1
		})
		for _, m := range members {
			switch c := bytes.Compare(m.key, value); {
			case c > 0:
			case interval && m.end:
				found = nil
			case interval || c == 0:
				found = m.element
			}
		}
	}
	if (found == nil) != inverted {
		return no, nil
	}
	if data, isMap := found[unix.NFTA_SET_ELEM_DATA]; isMap {
		if v := verdictOf(data); x.number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT {
			return yes, v
		}
		e.store(x.number(unix.NFTA_LOOKUP_DREG), parse(data)[unix.NFTA_DATA_VALUE])
	}
	return yes, nil
}

// match is a match of iptables.
func (e *evaluation) match(x foreignExpr) matching {
	info := x.attributes[unix.NFTA_MATCH_INFO]
	switch x.text(unix.NFTA_MATCH_NAME) {
	case "conntrack", "state":
		return no // the packet has no state but "untracked", for which hardly a rule asks
	case "comment":
		return yes
	case "tcp":
		// struct xt_tcp: two source ports, two destination ports, ..., inversions.
		const inversions, inverseDestination = 11, 2
		if len(info) > inversions {
			first, last := binary.NativeEndian.Uint16(info[4:]), binary.NativeEndian.Uint16(info[6:])
			inside := first <= e.packet.port && e.packet.port <= last
			if inside == (info[inversions]&inverseDestination != 0) {
				return no
			}
		}
	case "mark":
		// struct xt_mark_mtinfo1: mark, mask, inversion.
		if len(info) > 8 {
			holds := e.packet.mark&nativeNumber(info[4:8]) == nativeNumber(info[:4])
			if holds == (info[8] != 0) {
				return no
			}
			return yes
		}
	}
	return maybe
}

// keyEnd is NFTA_SET_ELEM_KEY_END, the end of an interval of concatenated values.
const keyEnd = 10
