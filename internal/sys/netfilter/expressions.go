package netfilter

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	routeUnicast = unix.RTN_UNICAST
	hostPacket   = 0 // PACKET_HOST
)

// expression is the condition of an expression, and its verdict if it has one. It changes
// the registers.
func (e *evaluation) expression(x expression, r *registers) (condition, *verdict) {
	switch x.name {
	case "counter", "log", "notrack", "flow_offload", "last", "secmark", "dup":
	case "meta":
		if !x.has(unix.NFTA_META_SREG) {
			r.store(x.number(unix.NFTA_META_DREG), e.meta(x.number(unix.NFTA_META_KEY)))
		}
	case "payload":
		return always, e.payload(x, r)
	case "ct":
		return e.conntrack(x, r), nil
	case "bitwise":
		bitwise(x, r)
	case "byteorder":
		byteorder(x, r)
	case "fib":
		r.store(x.number(unix.NFTA_FIB_DREG), e.fib(x))
	case "cmp":
		data := x.value(unix.NFTA_CMP_DATA)
		return e.compare(x.number(unix.NFTA_CMP_OP), r.load(x.number(unix.NFTA_CMP_SREG), len(data)), data), nil
	case "range":
		return e.inRange(x, r), nil
	case "match":
		return e.xtMatch(x), nil
	case "entry":
		return e.xtEntry(x.entry)
	case "limit", "quota", "connlimit":
		return maybe("the " + x.name), nil
	case "dynset":
		return maybe("a set that packets change"), nil
	case "objref":
		return objectReference(x)
	case "exthdr":
		return extraHeader(x, r), nil
	case "numgen":
		r.forget("the number of the packet")
	case "hash":
		r.forget("a hash of the packet")
	case "socket":
		r.forget("the socket of the packet")
		return maybe("the socket of the packet"), nil
	case "rt":
		r.forget("the route of the packet")
		return maybe("the route of the packet"), nil
	case "xfrm":
		r.forget("IPsec")
		return maybe("IPsec"), nil
	case "osf":
		r.forget("the system of the client")
	default:
		r.forget("the expression " + x.name)
		return maybe("the expression " + x.name), nil
	}
	return always, nil
}

// extraHeader is the condition of a TCP option, or of a header that a first SYN does not
// have: an extension of IPv6, an option of IPv4, of SCTP or DCCP.
func extraHeader(x expression, r *registers) condition {
	const (
		dreg, flags, operation = 1, 5, 6 // NFTA_EXTHDR_DREG, FLAGS, OP
		present                = 1       // NFT_EXTHDR_F_PRESENT
		tcpOption              = 1       // NFT_EXTHDR_OP_TCPOPT
	)
	switch {
	case x.number(operation) == tcpOption:
		r.forget("a TCP option")
		if !x.has(dreg) { // it is removed or set
			return always
		}
		return maybe("a TCP option")
	case x.number(flags)&present != 0:
		r.store(x.number(dreg), constant([]byte{0}))
		return always
	}
	return never
}

// objectReference is a named counter or limit.
func objectReference(x expression) (condition, *verdict) {
	const (
		counter = 1 + iota
		quota
		helper
		limit
		connlimit
		tunnel
		timeout
		secmark
		expectation
		synproxy
	)
	name := x.text(unix.NFTA_OBJREF_IMM_NAME)
	switch x.number(unix.NFTA_OBJREF_IMM_TYPE) {
	case counter, helper, tunnel, timeout, secmark, expectation:
		return always, nil
	case quota:
		return maybe("the quota " + name), nil
	case limit:
		return maybe("the limit " + name), nil
	case connlimit:
		return maybe("the limit of connections " + name), nil
	case synproxy:
		return always, &verdict{unknown: "the SYN proxy"}
	}
	return maybe("a map of objects"), nil
}

func (e *evaluation) inRange(x expression, r *registers) condition {
	from, to := x.value(unix.NFTA_RANGE_FROM_DATA), x.value(unix.NFTA_RANGE_TO_DATA)
	if len(from) == 0 || len(from) != len(to) {
		return never
	}
	c := condition{inverted: x.number(unix.NFTA_RANGE_OP) == 1} // NFT_RANGE_NEQ
	if t, possible := e.between(r.load(x.number(unix.NFTA_RANGE_SREG), len(from)), from, to); possible {
		c.terms = []term{t}
	}
	return c
}

// Keys of meta that x/sys does not have.
const (
	metaInputKind  = 26
	metaOutputKind = 27
)

func (e *evaluation) meta(key uint32) []cell {
	p := e.packet
	switch key {
	case unix.NFT_META_IIFNAME:
		return constant(p.in.paddedName())
	case unix.NFT_META_IIF:
		return constant(native(p.in.index))
	case unix.NFT_META_IIFGROUP:
		return constant(native(p.in.group))
	case unix.NFT_META_IIFTYPE:
		return constant(binary.NativeEndian.AppendUint16(nil, p.in.kind))
	case unix.NFT_META_OIFNAME, unix.NFT_META_OIF, unix.NFT_META_OIFGROUP, unix.NFT_META_OIFTYPE:
		return e.outputDevice(key)
	case unix.NFT_META_MARK:
		return partly(native(p.mark), native(p.markUnknown), "the mark of the packet")
	case unix.NFT_META_NFPROTO:
		return constant([]byte{p.family})
	case unix.NFT_META_L4PROTO:
		return constant([]byte{unix.IPPROTO_TCP})
	case unix.NFT_META_PROTOCOL:
		return constant(binary.BigEndian.AppendUint16(nil, e.etherType()))
	case unix.NFT_META_PKTTYPE:
		return constant([]byte{hostPacket})
	case metaInputKind, metaOutputKind:
		return unknown(16, "the kind of a device")
	case unix.NFT_META_LEN:
		return unknown(4, "the length of the packet")
	case unix.NFT_META_SKUID, unix.NFT_META_SKGID, unix.NFT_META_CGROUP:
		return unknown(4, "the socket of the packet")
	}
	return unknown(16, "the metadata of the packet")
}

func (e *evaluation) etherType() uint16 {
	if e.packet.isSix() {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

const whichOutput = "the device that the packet leaves by"

func (e *evaluation) outputDevice(key uint32) []cell {
	d := e.packet.out
	switch {
	case e.packet.hook == unix.NF_INET_LOCAL_IN: // it has none: the kernel has an empty name
		switch key {
		case unix.NFT_META_OIFNAME:
			return constant(make([]byte, unix.IFNAMSIZ))
		case unix.NFT_META_OIF:
			return constant(native(0))
		}
		return unknown(4, whichOutput)
	case d == nil && key == unix.NFT_META_OIFNAME:
		return unknown(unix.IFNAMSIZ, whichOutput)
	case d == nil && key == unix.NFT_META_OIFTYPE:
		return unknown(2, whichOutput)
	case d == nil:
		return unknown(4, whichOutput)
	case key == unix.NFT_META_OIFNAME:
		return constant(d.paddedName())
	case key == unix.NFT_META_OIF:
		return constant(native(d.index))
	case key == unix.NFT_META_OIFGROUP:
		return constant(native(d.group))
	}
	return constant(binary.NativeEndian.AppendUint16(nil, d.kind))
}

// payload loads a part of the packet. A rule that rewrites addresses or ports makes
// unknown what becomes of the packet.
func (e *evaluation) payload(x expression, r *registers) *verdict {
	base, offset, length := x.number(unix.NFTA_PAYLOAD_BASE), int(x.number(unix.NFTA_PAYLOAD_OFFSET)), int(x.number(unix.NFTA_PAYLOAD_LEN))
	if length > 16 || offset > 1<<16 {
		length, offset = min(length, 16), min(offset, 1<<16)
	}
	cells := make([]cell, length)
	for i := range cells {
		cells[i] = e.packetByte(base, offset+i)
	}
	if !x.has(unix.NFTA_PAYLOAD_SREG) {
		r.store(x.number(unix.NFTA_PAYLOAD_DREG), cells)
		return nil
	}
	if slices.ContainsFunc(cells, func(c cell) bool { return c.mask != 0xff || c.dimension != noDimension }) {
		return &verdict{unknown: "a packet that the rule rewrites"}
	}
	return nil
}

// packetByte is a byte of a first SYN, without IP options.
func (e *evaluation) packetByte(base uint32, at int) cell {
	known := func(v, unknownBits byte, what string) cell {
		return cell{dimension: noDimension, xor: v &^ unknownBits, mask: unknownBits, unknown: what}
	}
	of := func(dimension, index int) cell {
		return cell{dimension: int8(dimension), index: int8(index), mask: 0xff}
	}
	n := e.packet.addressBytes()
	switch base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		addresses := 12
		if e.packet.isSix() {
			addresses = 8
		}
		switch {
		case at >= addresses && at < addresses+n:
			return of(source, at-addresses)
		case at >= addresses+n && at < addresses+2*n:
			return of(target, at-addresses-n)
		case e.packet.isSix() && at == 0:
			return known(0x60, 0x0f, "the traffic class of the packet")
		case e.packet.isSix() && at == 6, !e.packet.isSix() && at == 9:
			return known(unix.IPPROTO_TCP, 0, "")
		case !e.packet.isSix() && at == 0:
			return known(0x45, 0, "")
		case !e.packet.isSix() && at == 6: // it is no fragment
			return known(0, 0xc0, "the flags of the packet")
		case !e.packet.isSix() && at == 7:
			return known(0, 0, "")
		}
		return known(0, 0xff, "the header of the packet")
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		switch {
		case at < 2:
			return of(sourcePort, at)
		case at < 4:
			return of(targetPort, at-2)
		case at == 13:
			return known(synFlag, 0, "")
		}
		return known(0, 0xff, "the TCP header of the packet")
	}
	return known(0, 0xff, "the packet outside its headers")
}

const synFlag = 0x02

// conntrack loads what connection tracking knows of the first packet of a connection. Of a
// packet that it does not see, it knows that.
func (e *evaluation) conntrack(x expression, r *registers) condition {
	if x.has(unix.NFTA_CT_SREG) {
		return always
	}
	to := x.number(unix.NFTA_CT_DREG)
	if x.number(unix.NFTA_CT_KEY) == unix.NFT_CT_STATE {
		r.store(to, partly(native(e.packet.state), native(e.packet.stateUnknown), "whether connection tracking sees the packet"))
		return always
	}
	switch e.tracked() {
	case no:
		return never
	case unsure:
		r.forget("whether connection tracking sees the packet")
		return maybe("whether connection tracking sees the packet")
	}
	n := e.packet.addressBytes()
	original := true
	if b, ok := x.attributes[unix.NFTA_CT_DIRECTION]; ok {
		original = len(b) == 1 && b[0] == 0
	}
	cells := unknown(16, "connection tracking")
	switch key := x.number(unix.NFTA_CT_KEY); {
	case key == unix.NFT_CT_DIRECTION:
		cells = constant([]byte{0})
	case key == unix.NFT_CT_STATUS:
		cells = partly(native(0), native(^uint32(statusUnset)), "connection tracking")
	case key == unix.NFT_CT_MARK:
		cells = unknown(4, "the mark of the connection")
	case key == unix.NFT_CT_L3PROTOCOL:
		cells = constant([]byte{e.packet.family})
	case key == unix.NFT_CT_PROTOCOL:
		cells = constant([]byte{unix.IPPROTO_TCP})
	case !original:
	case key == unix.NFT_CT_SRC || key == unix.NFT_CT_SRC_IP && n == 4 || key == unix.NFT_CT_SRC_IP6 && n == 16:
		cells = dimensionCells(source, n)
	case key == unix.NFT_CT_DST || key == unix.NFT_CT_DST_IP && n == 4 || key == unix.NFT_CT_DST_IP6 && n == 16:
		cells = dimensionCells(target, n)
	case slices.Contains([]uint32{unix.NFT_CT_SRC_IP, unix.NFT_CT_DST_IP, unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6}, key):
		return never // of the other family
	case key == unix.NFT_CT_PROTO_SRC:
		cells = dimensionCells(sourcePort, 2)
	case key == unix.NFT_CT_PROTO_DST:
		cells = dimensionCells(targetPort, 2)
	}
	r.store(to, cells)
	return always
}

// statusUnset are bits of ct status that the first packet of a connection cannot have:
// expected, seen-reply, assured, confirmed, snat, dnat, dying.
const statusUnset = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<9

type certainty uint8

const (
	no certainty = iota
	yes
	unsure
)

// tracked is whether connection tracking sees the packets.
func (e *evaluation) tracked() certainty {
	switch {
	case e.packet.stateUnknown != 0:
		return unsure
	case e.packet.state == stateUntracked:
		return no
	}
	return yes
}

func bitwise(x expression, r *registers) {
	mask, xor := x.value(unix.NFTA_BITWISE_MASK), x.value(unix.NFTA_BITWISE_XOR)
	length := int(min(x.number(unix.NFTA_BITWISE_LEN), 64))
	cells := slices.Clone(r.load(x.number(unix.NFTA_BITWISE_SREG), length))
	const operation = 6 // NFTA_BITWISE_OP; 0: NFT_BITWISE_MASK_XOR
	if len(mask) != length || len(xor) != length || x.number(operation) != 0 {
		r.store(x.number(unix.NFTA_BITWISE_DREG), unknown(length, "an operation on bits"))
		return
	}
	for i := range cells {
		c := &cells[i]
		c.mask &= mask[i]
		c.xor = c.xor&mask[i] ^ xor[i]
		if c.mask == 0 { // whatever it was
			*c = cell{dimension: noDimension, xor: c.xor}
		} else if c.dimension == noDimension {
			c.xor &^= c.mask
		}
	}
	r.store(x.number(unix.NFTA_BITWISE_DREG), cells)
}

// byteorder swaps the bytes of each part: of constants, for comparisons by size.
func byteorder(x expression, r *registers) {
	length, size := int(min(x.number(unix.NFTA_BYTEORDER_LEN), 64)), int(x.number(unix.NFTA_BYTEORDER_SIZE))
	cells := slices.Clone(r.load(x.number(unix.NFTA_BYTEORDER_SREG), length))
	isLittleEndian := binary.NativeEndian.Uint16([]byte{1, 0}) == 1
	if (size == 2 || size == 4 || size == 8) && isLittleEndian {
		for part := range slices.Chunk(cells, size) {
			slices.Reverse(part)
		}
	}
	r.store(x.number(unix.NFTA_BYTEORDER_DREG), cells)
}

// fib knows the type of an address that is neither this host's nor a group's.
func (e *evaluation) fib(x expression) []cell {
	const addressType = 3 // NFT_FIB_RESULT_ADDRTYPE
	flags := x.number(unix.NFTA_FIB_FLAGS)
	if e.packet.exact && x.number(unix.NFTA_FIB_RESULT) == addressType && (flags == unix.NFTA_FIB_F_DADDR || flags == unix.NFTA_FIB_F_SADDR) {
		return constant(native(routeUnicast))
	}
	return unknown(16, "what the routes say of the packet (fib)")
}
