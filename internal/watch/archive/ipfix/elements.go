package ipfix

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"unicode/utf8"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive"
)

// record is what one record of IPFIX has: a row, seen in one direction or in both.
type record struct {
	*archive.Row
	source, destination         netip.Prefix // invalid: not known, or not for the collector
	sourcePort, destinationPort uint16       // 0: the same
	octets, reverseOctets       int64
	direction                   string // of a record with one direction: up or down
}

// of fills in the record of a row; down is the way to the client.
func (r *record) of(row *archive.Row, biflow, down bool) {
	r.Row = row
	r.source, r.sourcePort, r.octets = row.ClientPrefix(), row.ClientPort(), max(row.BytesUp, 0)
	r.destination, r.destinationPort, r.reverseOctets = netip.Prefix{}, row.Target.Port(), max(row.BytesDown, 0)
	if addr := row.Target.Addr().WithZone("").Unmap(); addr.IsValid() {
		r.destination = netip.PrefixFrom(addr, addr.BitLen())
	}
	switch {
	case biflow:
		r.direction = ""
	case down:
		r.direction = "down"
		r.source, r.destination = r.destination, r.source
		r.sourcePort, r.destinationPort = r.destinationPort, r.sourcePort
		r.octets, r.reverseOctets = r.reverseOctets, r.octets
	default:
		r.direction = "up"
	}
}

// shape says which elements a record has. There is a template for each.
type shape uint8

const (
	ipv6         shape = 1 << iota // an address of it is IPv6
	clientLeg                      // it has the figures of the leg to the client
	targetLeg                      // and of the leg to the target
	oneDirection                   // it is not a biflow
	shapes
)

// template is the ID of the shape's template. The first that may be used is 256 (RFC 7011, section 3.3.2).
func (s shape) template() uint16 { return 256 + uint16(s) }

// shape is that of a record. With one direction it has the leg on which its data were sent, so that
// sums over records are right.
func (r *record) shape() (s shape) {
	if r.source.IsValid() && r.source.Addr().Is6() || r.destination.IsValid() && r.destination.Addr().Is6() {
		s |= ipv6
	}
	if r.ClientLeg.BytesRetransmitted >= 0 && r.direction != "up" {
		s |= clientLeg
	}
	if r.TargetLeg.BytesRetransmitted >= 0 && r.direction != "down" {
		s |= targetLeg
	}
	if r.direction != "" {
		s |= oneDirection
	}
	return s
}

// field is an element in a record.
type field struct {
	enterprise uint32 // 0: a standard element
	id         uint16
	length     uint16                           // octets, or variable
	put        func(b []byte, r *record) []byte // appends the value
	name       string                           // of a private element: the column's
	kind       dataType                         // of a private element
	semantics  uint8                            // of a private element (RFC 5610, section 3.6)
	units      uint16                           // of a private element (RFC 5610, section 3.7)
}

// variable is the length of an element that has its length with its value (RFC 7011, section 7).
const variable = 65535

// dataType is an abstract data type (RFC 5610, section 3.1).
type dataType uint8

const (
	octetArray dataType = 0
	unsigned32 dataType = 3
	unsigned64 dataType = 4
	text       dataType = 13
)

// Semantics and units of RFC 5610.
const (
	quantity, totalCounter, identifier = 1, 2, 4
	octetsUnit, microsecondsUnit       = 2, 7
)

// fields are the elements of a shape, in their order.
func (s shape) fields() []field {
	all := []field{
		{id: 152, length: 8, put: func(b []byte, r *record) []byte { // flowStartMilliseconds
			return binary.BigEndian.AppendUint64(b, uint64(max(r.Start.UnixMilli(), 0)))
		}},
		{id: 153, length: 8, put: func(b []byte, r *record) []byte { // flowEndMilliseconds
			return binary.BigEndian.AppendUint64(b, uint64(max(r.End.UnixMilli(), 0)))
		}},
	}
	if s&ipv6 != 0 {
		all = append(all,
			field{id: 27, length: 16, put: func(b []byte, r *record) []byte { return put6(b, r.source) }},              // sourceIPv6Address
			field{id: 28, length: 16, put: func(b []byte, r *record) []byte { return put6(b, r.destination) }},         // destinationIPv6Address
			field{id: 29, length: 1, put: func(b []byte, r *record) []byte { return append(b, bits6(r.source)) }},      // sourceIPv6PrefixLength
			field{id: 30, length: 1, put: func(b []byte, r *record) []byte { return append(b, bits6(r.destination)) }}) // destinationIPv6PrefixLength
	} else {
		all = append(all,
			field{id: 8, length: 4, put: func(b []byte, r *record) []byte { return put4(b, r.source) }},                // sourceIPv4Address
			field{id: 12, length: 4, put: func(b []byte, r *record) []byte { return put4(b, r.destination) }},          // destinationIPv4Address
			field{id: 9, length: 1, put: func(b []byte, r *record) []byte { return append(b, bits4(r.source)) }},       // sourceIPv4PrefixLength
			field{id: 13, length: 1, put: func(b []byte, r *record) []byte { return append(b, bits4(r.destination)) }}) // destinationIPv4PrefixLength
	}
	all = append(all,
		field{id: 7, length: 2, put: func(b []byte, r *record) []byte { // sourceTransportPort
			return binary.BigEndian.AppendUint16(b, r.sourcePort)
		}},
		field{id: 11, length: 2, put: func(b []byte, r *record) []byte { // destinationTransportPort
			return binary.BigEndian.AppendUint16(b, r.destinationPort)
		}},
		field{id: 4, length: 1, put: func(b []byte, _ *record) []byte { return append(b, 6) }}, // protocolIdentifier: TCP
		field{id: 1, length: 8, put: func(b []byte, r *record) []byte { // octetDeltaCount
			return binary.BigEndian.AppendUint64(b, uint64(r.octets))
		}},
	)
	if s&oneDirection == 0 {
		all = append(all, field{enterprise: reverseEnterprise, id: 1, length: 8, put: func(b []byte, r *record) []byte { // reverseOctetDeltaCount
			return binary.BigEndian.AppendUint64(b, uint64(r.reverseOctets))
		}})
	}
	all = append(all,
		field{id: 136, length: 1, put: func(b []byte, r *record) []byte { return append(b, endReason(r.Reason)) }}, // flowEndReason
		field{id: 148, length: 8, put: func(b []byte, r *record) []byte { // flowId
			return binary.BigEndian.AppendUint64(b, uint64(r.ID))
		}},
	)
	for _, p := range private {
		if p.shape == 0 || s&p.shape != 0 {
			all = append(all, p.field)
		}
	}
	return all
}

// private are longhaul's own elements. Their numbers stay as they are.
var private = []struct {
	shape shape // the records that have it; 0: all
	about string
	field
}{
	{0, "with relay and flowId the key of a record", number(1, "epoch", 8, identifier, 0, func(r *record) uint64 { return uint64(r.Epoch) })},
	{0, "UUID of the flow, the same at every relay", field{enterprise: enterprise, id: 2, length: 16, name: "name", kind: octetArray, semantics: identifier,
		put: func(b []byte, r *record) []byte { return append(b, r.Name[:]...) }}},
	{0, "the relay that made the record", word(3, "relay", maxRelay, func(r *record) string { return r.Relay })},
	{0, "its site", word(4, "relay_site", maxWord, func(r *record) string { return r.OwnSite })},
	{0, "the tunnel that took the flow", word(5, "tunnel", maxWord, func(r *record) string { return r.Tunnel })},
	{0, "site of the other relay of a pair", word(6, "site", maxWord, func(r *record) string { return r.Site })},
	{0, "what limited the flow most of the time", word(7, "cause", maxWord, func(r *record) string { return string(r.Cause) })},
	{0, "why the flow ended", word(8, "reason", maxWord, func(r *record) string { return string(r.Reason) })},
	{oneDirection, "up to the target or down to the client", word(9, "direction", maxWord, func(r *record) string { return r.direction })},
	{clientLeg, "least RTT to the client, 0: unknown", minRTT(10, "client_min_rtt_us", func(r *record) *flow.LegRecord { return &r.ClientLeg })},
	{clientLeg, "sent to the client again", retransmitted(11, "client_bytes_retransmitted", func(r *record) *flow.LegRecord { return &r.ClientLeg })},
	{targetLeg, "least RTT to the target, 0: unknown", minRTT(12, "target_min_rtt_us", func(r *record) *flow.LegRecord { return &r.TargetLeg })},
	{targetLeg, "sent to the target again", retransmitted(13, "target_bytes_retransmitted", func(r *record) *flow.LegRecord { return &r.TargetLeg })},
}

// Bounds of texts in octets, so that a record fits into a message over UDP.
const (
	maxRelay = 254 // the most of a text whose length is one octet
	maxWord  = 128
)

func number(id uint16, name string, length uint16, semantics uint8, units uint16, value func(*record) uint64) field {
	f := field{enterprise: enterprise, id: id, length: length, name: name, kind: unsigned64, semantics: semantics, units: units}
	f.put = func(b []byte, r *record) []byte { return binary.BigEndian.AppendUint64(b, value(r)) }
	if length == 4 {
		f.kind = unsigned32
		f.put = func(b []byte, r *record) []byte {
			return binary.BigEndian.AppendUint32(b, uint32(min(value(r), 1<<32-1)))
		}
	}
	return f
}

func minRTT(id uint16, name string, leg func(*record) *flow.LegRecord) field {
	return number(id, name, 4, quantity, microsecondsUnit, func(r *record) uint64 { return uint64(max(leg(r).MinRTT.Duration().Microseconds(), 0)) })
}

func retransmitted(id uint16, name string, leg func(*record) *flow.LegRecord) field {
	return number(id, name, 8, totalCounter, octetsUnit, func(r *record) uint64 { return uint64(leg(r).BytesRetransmitted) })
}

func word(id uint16, name string, most int, value func(*record) string) field {
	return field{enterprise: enterprise, id: id, length: variable, name: name, kind: text, put: func(b []byte, r *record) []byte {
		return putText(b, value(r), most)
	}}
}

// putText appends a text of at most 254 octets with its length. What is no UTF-8 is replaced.
func putText(b []byte, s string, most int) []byte {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") // without a character that is cut
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	return append(append(b, byte(len(s))), s...)
}

func put4(b []byte, p netip.Prefix) []byte {
	var a [4]byte
	if p.IsValid() {
		a = p.Addr().As4()
	}
	return append(b, a[:]...)
}

func bits4(p netip.Prefix) byte { return byte(max(p.Bits(), 0)) }

// put6 appends an IPv4 address as RFC 4291, section 2.5.5.2, maps it into IPv6.
func put6(b []byte, p netip.Prefix) []byte {
	var a [16]byte
	if p.IsValid() {
		a = p.Addr().As16()
	}
	return append(b, a[:]...)
}

func bits6(p netip.Prefix) byte {
	if p.IsValid() && p.Addr().Is4() {
		return byte(96 + p.Bits())
	}
	return byte(max(p.Bits(), 0))
}

// endReason is a flowEndReason (RFC 5102, section 5.11.3).
func endReason(r flow.EndReason) byte {
	const idle, ended, forced, noResources = 1, 3, 4, 5
	switch r {
	case flow.EndIdle, flow.EndHalfClosed, flow.EndClientTimeout, flow.EndTargetTimeout, flow.EndTargetUnreached, flow.EndWANLost:
		return idle
	case flow.EndDrain, flow.EndDenied, flow.EndFlowLimit, flow.EndRateLimit, flow.EndBadProxyHeader, flow.EndLoop, flow.EndNoHop,
		flow.EndPairDown, flow.EndPeerRestarted, flow.EndDamaged:
		return forced
	case flow.EndStalled, flow.EndShed, flow.EndNoResources, flow.EndNoLocalPort:
		return noResources
	}
	return ended
}
