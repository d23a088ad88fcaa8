//go:build linux

package tcpinfo

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Connection is a TCP connection of this host as reported by sock_diag(7).
type Connection struct {
	Local, Remote     netip.AddrPort // without a zone; IPv4-mapped addresses are unmapped
	Cookie            uint64         // unique among the connections of this boot
	Inode             uint32         // of the socket, as in /proc/PID/fd; 0 if no program has it open
	UID               uint32         // of the socket's owner
	Interface         uint32         // index of the device it is bound to, or 0
	RecvQueue         uint32         // bytes not read by the program
	SendQueue         uint32         // bytes written and not acknowledged
	CongestionControl string
	Memory            Memory
	Info              Info
}

// Memory is a socket's kernel memory in bytes, including the overhead of
// packets (SK_MEMINFO). It is unknown unless Known is set.
type Memory struct {
	Known     bool
	RcvAlloc  uint32 // received data
	RcvBuf    uint32 // bound of RcvAlloc
	SndAlloc  uint32 // data in this host's queues below TCP
	SndBuf    uint32 // bound of SndQueued
	SndQueued uint32 // data written and not acknowledged
}

// StateSet is a set of states in the kernel's bit format.
type StateSet uint32

// States is the set of the given states.
func States(states ...State) StateSet {
	var set StateSet
	for _, s := range states {
		set |= 1 << s
	}
	return set
}

// Connections is the set of states with a tcp_info. It excludes TIME-WAIT, of
// which the kernel keeps only the addresses.
var Connections = States(Established, SynSent, SynReceived, FinWait1, FinWait2, CloseWait, LastAck, Closing)

// ErrNoConnection is returned if no connection has the addresses.
var ErrNoConnection = errors.New("there is no such connection")

// The layout of sock_diag's messages (linux/inet_diag.h, linux/sock_diag.h).
// Ports and addresses are in network byte order, other fields in native order.
const (
	diagRequestLen = 56 // struct inet_diag_req_v2
	diagMessageLen = 72 // struct inet_diag_msg

	// Offset of struct inet_diag_sockid in both.
	requestID = 8
	messageID = 4

	// Offsets in struct inet_diag_sockid.
	idSourcePort = 0
	idDestPort   = 2
	idSource     = 4
	idDest       = 20
	idInterface  = 36
	idCookie     = 40
	idLen        = 48

	attributeInfo       = 2 // INET_DIAG_INFO
	attributeCongestion = 4 // INET_DIAG_CONG
	attributeMemory     = 7 // INET_DIAG_SKMEMINFO
	attributeHeaderLen  = 4

	familyINET, familyINET6 = 2, 10
	protocolTCP             = 6
)

// diagRequest requests the TCP sockets of a family in the given states.
func diagRequest(family uint8, states StateSet) [diagRequestLen]byte {
	var b [diagRequestLen]byte
	b[0], b[1] = family, protocolTCP
	b[2] = 1<<(attributeInfo-1) | 1<<(attributeCongestion-1) | 1<<(attributeMemory-1)
	binary.NativeEndian.PutUint32(b[4:], uint32(states))
	return b
}

// diagRequestFor requests the connection with these addresses.
func diagRequestFor(local, remote netip.AddrPort) [diagRequestLen]byte {
	family := uint8(familyINET6)
	if local.Addr().Is4() && remote.Addr().Is4() {
		family = familyINET
	}
	b := diagRequest(family, Connections)
	id := b[requestID:]
	binary.BigEndian.PutUint16(id[idSourcePort:], local.Port())
	binary.BigEndian.PutUint16(id[idDestPort:], remote.Port())
	copy(id[idSource:idDest], local.Addr().AsSlice())
	copy(id[idDest:idInterface], remote.Addr().AsSlice())
	for i := range id[idCookie:idLen] {
		id[idCookie+i] = 0xff // any: INET_DIAG_NOCOOKIE
	}
	return b
}

// connectionParser parses connections in the kernel's messages.
type connectionParser struct {
	order binary.ByteOrder
	// names interns the names of congestion controls, so that a connection
	// costs no allocation.
	names map[string]string
	// bare are states whose sockets are included without their tcp_info, such as SYN-RECEIVED,
	// which have none.
	bare StateSet
}

// parse fills in c. It returns false for a malformed message, or one without
// tcp_info.
func (p *connectionParser) parse(b []byte, c *Connection) bool {
	if len(b) < diagMessageLen {
		return false
	}
	*c = Connection{}
	id := b[messageID : messageID+idLen]
	var ok bool
	if c.Local, ok = diagAddress(b[0], id[idSource:idDest], id[idSourcePort:]); !ok {
		return false
	}
	c.Remote, _ = diagAddress(b[0], id[idDest:idInterface], id[idDestPort:])
	c.Interface = p.order.Uint32(id[idInterface:])
	c.Cookie = uint64(p.order.Uint32(id[idCookie:])) | uint64(p.order.Uint32(id[idCookie+4:]))<<32
	c.RecvQueue = p.order.Uint32(b[56:])
	c.SendQueue = p.order.Uint32(b[60:])
	c.UID = p.order.Uint32(b[64:])
	c.Inode = p.order.Uint32(b[68:])

	found, state := false, State(b[1])
	for b = b[diagMessageLen:]; len(b) >= attributeHeaderLen; {
		length := int(p.order.Uint16(b))
		if length < attributeHeaderLen || length > len(b) {
			return false
		}
		value := b[attributeHeaderLen:length]
		switch p.order.Uint16(b[2:]) {
		case attributeInfo:
			c.Info, found = parse(value, p.order), true
		case attributeCongestion:
			c.CongestionControl = p.name(value)
		case attributeMemory:
			c.Memory = parseMemory(value, p.order)
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	if p.bare&States(state) != 0 {
		return true
	}
	return found && c.Info.Has(FieldState) && c.Info.State != Listen
}

// diagAddress parses an address of struct inet_diag_sockid.
func diagAddress(family uint8, address, port []byte) (netip.AddrPort, bool) {
	var a netip.Addr
	switch family {
	case familyINET:
		a = netip.AddrFrom4([4]byte(address))
	case familyINET6:
		a = netip.AddrFrom16([16]byte(address)).Unmap()
	default:
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)), true
}

// parseMemory parses an array of 32-bit values indexed by SK_MEMINFO_*.
func parseMemory(b []byte, order binary.ByteOrder) Memory {
	if len(b) < 6*4 {
		return Memory{}
	}
	return Memory{
		Known:     true,
		RcvAlloc:  order.Uint32(b[0*4:]),
		RcvBuf:    order.Uint32(b[1*4:]),
		SndAlloc:  order.Uint32(b[2*4:]),
		SndBuf:    order.Uint32(b[3*4:]),
		SndQueued: order.Uint32(b[5*4:]),
	}
}

// maxNames bounds the interned names: a kernel has a dozen congestion controls,
// and those loaded by BPF come and go.
const maxNames = 256

// name returns the text of an attribute up to its zero byte.
func (p *connectionParser) name(b []byte) string {
	for i, c := range b {
		if c == 0 {
			b = b[:i]
			break
		}
	}
	if known, ok := p.names[string(b)]; ok {
		return known
	}
	if p.names == nil || len(p.names) >= maxNames {
		p.names = map[string]string{}
	}
	name := string(b)
	p.names[name] = name
	return name
}
