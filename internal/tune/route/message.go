package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// message is a route of the kernel with all its attributes, known to us or not, so that
// a change of one keeps all others.
type message struct {
	header     unix.RtMsg
	attributes []attribute
}

type attribute struct {
	kind  uint16 // RTA_...
	value []byte
}

var errShort = errors.New("the kernel's description of a route is cut short")

func parseMessage(b []byte) (message, error) {
	if len(b) < unix.SizeofRtMsg {
		return message{}, errShort
	}
	attributes, err := parseAttributes(b[unix.SizeofRtMsg:])
	return message{header: nl.DeserializeRtMsg(b).RtMsg, attributes: attributes}, err
}

// parseAttributes refuses unpadded attributes, which the kernel never sends: nl's
// parser would panic on them.
func parseAttributes(b []byte) (all []attribute, err error) {
	if len(b) != align(len(b)) {
		return nil, errShort
	}
	parsed, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, errShort
	}
	for _, a := range parsed {
		kind := a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		all = append(all, attribute{kind, slices.Clone(a.Value)})
	}
	return all, nil
}

func align(n int) int { return (n + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1) }

func appendAttributes(b []byte, all []attribute) []byte {
	for _, a := range all {
		b = append(b, nl.NewRtAttr(int(a.kind), a.value).Serialize()...)
	}
	return b
}

// Len and Serialize make a message the data of a netlink request.
func (m message) Len() int { return len(m.Serialize()) }

func (m message) Serialize() []byte {
	header := nl.RtMsg{RtMsg: m.header}
	return appendAttributes(header.Serialize(), m.attributes)
}

func (m message) clone() message {
	m.attributes = slices.Clone(m.attributes)
	for i := range m.attributes {
		m.attributes[i].value = slices.Clone(m.attributes[i].value)
	}
	return m
}

// get returns the value of an attribute, nil if it is missing.
func (m message) get(kind uint16) []byte {
	for _, a := range m.attributes {
		if a.kind == kind {
			return a.value
		}
	}
	return nil
}

func (m message) uint32(kind uint16) uint32 {
	if v := m.get(kind); len(v) >= 4 {
		return binary.NativeEndian.Uint32(v)
	}
	return 0
}

// set replaces or adds an attribute, or removes it if the value is nil.
func (m *message) set(kind uint16, value []byte) {
	m.attributes = setAttribute(m.attributes, kind, value)
}

// setAttribute leaves at most one attribute of the kind, where the first was.
func setAttribute(all []attribute, kind uint16, value []byte) []attribute {
	set := value == nil
	all = slices.DeleteFunc(all, func(a attribute) bool {
		if a.kind != kind {
			return false
		}
		again := set
		set = true
		return again
	})
	if value == nil {
		return all
	}
	if i := slices.IndexFunc(all, func(a attribute) bool { return a.kind == kind }); i >= 0 {
		all[i].value = value
		return all
	}
	return append(all, attribute{kind, value})
}

// destination returns the prefix of the route.
func (m message) destination() (netip.Prefix, bool) {
	var address netip.Addr
	switch dst := m.get(unix.RTA_DST); {
	case dst == nil && m.header.Family == unix.AF_INET:
		address = netip.IPv4Unspecified()
	case dst == nil && m.header.Family == unix.AF_INET6:
		address = netip.IPv6Unspecified()
	default:
		var ok bool
		if address, ok = netip.AddrFromSlice(dst); !ok {
			return netip.Prefix{}, false
		}
	}
	prefix := netip.PrefixFrom(address, int(m.header.Dst_len))
	return prefix, prefix.IsValid()
}

func (m *message) setDestination(prefix netip.Prefix) {
	m.header.Dst_len = uint8(prefix.Bits())
	if prefix.Bits() == 0 {
		m.set(unix.RTA_DST, nil)
		return
	}
	m.set(unix.RTA_DST, prefix.Addr().AsSlice())
}

// table returns the routing table of the route.
func (m message) table() uint32 {
	if m.get(unix.RTA_TABLE) != nil {
		return m.uint32(unix.RTA_TABLE)
	}
	return uint32(m.header.Table)
}

// priority returns the route's metric: of two routes to one prefix the lower wins.
func (m message) priority() uint32 { return m.uint32(unix.RTA_PRIORITY) }

// rtaNHID is RTA_NH_ID, which x/sys does not have.
const rtaNHID = 30

// forKernel removes the attributes that the kernel sends but does not accept.
func (m *message) forKernel() {
	m.header.Flags &= unix.RTNH_F_ONLINK
	for _, kind := range []uint16{unix.RTA_CACHEINFO, unix.RTA_EXPIRES} {
		m.set(kind, nil)
	}
	if m.get(rtaNHID) != nil {
		// The next hop is a separate object, repeated here for old programs.
		for _, kind := range []uint16{unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_MULTIPATH} {
			m.set(kind, nil)
		}
		m.header.Flags = 0
	}
	// Each next hop of several begins with its length and its flags.
	for hops := m.get(unix.RTA_MULTIPATH); len(hops) >= unix.SizeofRtNexthop; {
		hops[2] &= unix.RTNH_F_ONLINK
		length := align(int(binary.NativeEndian.Uint16(hops)))
		if length < unix.SizeofRtNexthop || length > len(hops) {
			break
		}
		hops = hops[length:]
	}
}

// expires reports whether the route expires unless a router or a program renews it.
func (m message) expires() bool {
	if m.header.Protocol == unix.RTPROT_RA || m.get(unix.RTA_EXPIRES) != nil {
		return true
	}
	// struct rta_cacheinfo: clntref, lastuse, expires, ...
	info := m.get(unix.RTA_CACHEINFO)
	return m.header.Family == unix.AF_INET6 && len(info) >= 12 && binary.NativeEndian.Uint32(info[8:]) != 0
}

// familyOf returns the address family of a prefix.
func familyOf(prefix netip.Prefix) uint8 {
	if prefix.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// dump lists the unicast routes of the main table, of one family.
func dump(family uint8) ([]message, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	request.AddData(message{header: unix.RtMsg{Family: family, Table: unix.RT_TABLE_MAIN}})
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	var routes []message
	for _, answer := range answers {
		m, err := parseMessage(answer)
		if err != nil {
			return nil, err
		}
		_, ok := m.destination()
		if ok && m.table() == unix.RT_TABLE_MAIN && m.header.Type == unix.RTN_UNICAST && m.header.Flags&unix.RTM_F_CLONED == 0 && m.header.Tos == 0 {
			routes = append(routes, m)
		}
	}
	return routes, nil
}

// lookup asks the kernel which route a packet to an address takes.
func lookup(address netip.Addr) (message, error) {
	m := message{header: unix.RtMsg{Family: familyOf(netip.PrefixFrom(address, 0)), Dst_len: uint8(address.BitLen())}}
	m.set(unix.RTA_DST, address.AsSlice())
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_REQUEST)
	request.AddData(m)
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	if err != nil {
		return message{}, err
	}
	if len(answers) == 0 {
		return message{}, unix.ENETUNREACH
	}
	return parseMessage(answers[0])
}

// change sends a route to the kernel.
func change(kind, flags int, m message) error {
	m = m.clone()
	m.forKernel()
	request := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	request.AddData(m)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
