package pcap

import (
	"encoding/binary"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// packet is the content of a TCP packet.
type packet struct {
	at       int64 // ns since the capture's first packet
	src, dst netip.AddrPort

	seq, ack                              uint32
	syn, fin, rst, hasAck, push, ece, cwr bool
	window                                uint16 // from the header
	payload                               int    // bytes on the wire

	// Options. wscale is negative if missing.
	mss           int
	wscale        int
	sackPermitted bool
	timestamps    bool
	tsval, tsecr  uint32
	sack          [4]block
	sacks         int
	optionsCut    bool // some were not captured

	// To recognise a packet captured twice: IPv4 identification, and place of
	// the capture.
	ipID   uint16
	device int
}

// block is a range of sequence numbers.
type block struct{ start, end uint32 }

// space is the packet's advance of the sequence number (RFC 9293, section 3.4).
func (p *packet) space() int64 {
	n := int64(p.payload)
	if p.syn {
		n++
	}
	if p.fin {
		n++
	}
	return n
}

// verdict is the result of decoding a record.
type verdict uint8

const (
	isTCP verdict = iota
	notTCP
	isFragment
	headersCut
)

// decoder decodes packets. It reuses its layers.
type decoder struct {
	ethernet layers.Ethernet
	vlan     layers.Dot1Q
	sll      layers.LinuxSLL
	sll2     layers.LinuxSLL2
	ip4      layers.IPv4
	ip6      layers.IPv6
	skip     layers.IPv6ExtensionSkipper
	tcp      layers.TCP
}

// decode decodes a record up to its TCP header.
func (d *decoder) decode(r record, p *packet) verdict {
	*p = packet{wscale: -1, device: r.device}
	ip, v := d.link(r, p)
	if v != isTCP {
		return v
	}
	if len(ip) == 0 {
		return headersCut
	}
	wire := r.wire - (len(r.data) - len(ip)) // of the IP packet and what trails it
	var tcp []byte
	var src, dst netip.Addr
	var length int // of TCP's header and payload
	switch ip[0] >> 4 {
	case 4:
		if err := d.ip4.DecodeFromBytes(ip, gopacket.NilDecodeFeedback); err != nil {
			return headersCut
		}
		if d.ip4.Protocol != layers.IPProtocolTCP {
			return notTCP
		}
		if d.ip4.FragOffset > 0 || d.ip4.Flags&layers.IPv4MoreFragments != 0 {
			return isFragment
		}
		length = int(binary.BigEndian.Uint16(ip[2:]))
		if length == 0 { // longer than the field can express
			length = wire
		}
		tcp, length = d.ip4.Payload, length-len(d.ip4.Contents)
		src, dst = address(d.ip4.SrcIP), address(d.ip4.DstIP)
		p.ipID = d.ip4.Id
	case 6:
		// Linux sets length 0 without the jumbo option for its largest
		// super-packets. The decoder sets all fields before its error.
		if err := d.ip6.DecodeFromBytes(ip, gopacket.NilDecodeFeedback); err != nil && (len(ip) < 40 || d.ip6.Length != 0) {
			return headersCut
		}
		length = 40 + int(d.ip6.Length)
		if d.ip6.Length == 0 {
			length = wire
		}
		var before int
		if tcp, before, v = d.extensions(); v != isTCP {
			return v
		}
		length -= before
		src, dst = address(d.ip6.SrcIP), address(d.ip6.DstIP)
	default:
		return notTCP
	}
	if len(tcp) < 20 {
		return headersCut
	}
	return d.segment(tcp, length, src, dst, p)
}

func address(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// link returns the IP packet behind the link-layer headers.
func (d *decoder) link(r record, p *packet) ([]byte, verdict) {
	var kind layers.EthernetType
	var rest []byte
	switch r.link {
	case layers.LinkTypeRaw, linkRawBSD, linkRawOpenBSD, layers.LinkTypeIPv4, layers.LinkTypeIPv6:
		return r.data, isTCP
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		// The address family is in the capturing host's byte order and
		// numbering; the IP version is equivalent.
		if len(r.data) < 4 {
			return nil, headersCut
		}
		return r.data[4:], isTCP
	case layers.LinkTypeEthernet:
		if d.ethernet.DecodeFromBytes(r.data, gopacket.NilDecodeFeedback) != nil {
			return nil, headersCut
		}
		kind, rest = d.ethernet.EthernetType, d.ethernet.Payload
	case layers.LinkTypeLinuxSLL:
		if d.sll.DecodeFromBytes(r.data, gopacket.NilDecodeFeedback) != nil {
			return nil, headersCut
		}
		kind, rest = d.sll.EthernetType, d.sll.Payload
		p.device = int(d.sll.PacketType)
	case layers.LinkTypeLinuxSLL2:
		if d.sll2.DecodeFromBytes(r.data, gopacket.NilDecodeFeedback) != nil {
			return nil, headersCut
		}
		kind, rest = d.sll2.ProtocolType, d.sll2.Payload
		p.device = int(d.sll2.InterfaceIndex)<<8 | int(d.sll2.PacketType)
	}
	for kind == layers.EthernetTypeDot1Q || kind == layers.EthernetTypeQinQ {
		if d.vlan.DecodeFromBytes(rest, gopacket.NilDecodeFeedback) != nil {
			return nil, headersCut
		}
		kind, rest = d.vlan.Type, d.vlan.Payload
	}
	if kind != layers.EthernetTypeIPv4 && kind != layers.EthernetTypeIPv6 {
		return nil, notTCP
	}
	return rest, isTCP
}

// extensions skips IPv6 extension headers (RFC 8200, section 4). It returns the
// rest and the number of bytes before it.
func (d *decoder) extensions() (rest []byte, before int, v verdict) {
	next, rest, before := d.ip6.NextHeader, d.ip6.Payload, len(d.ip6.Contents)
	if first := d.ip6.HopByHop; first != nil { // the decoder has skipped that one
		next, before = first.NextHeader, before+first.ActualLength
	}
	for {
		switch next {
		case layers.IPProtocolTCP:
			return rest, before, isTCP
		case layers.IPProtocolIPv6Fragment:
			return nil, 0, isFragment
		case layers.IPProtocolIPv6HopByHop, layers.IPProtocolIPv6Routing, layers.IPProtocolIPv6Destination:
			if d.skip.DecodeFromBytes(rest, gopacket.NilDecodeFeedback) != nil {
				return nil, 0, headersCut
			}
			next, rest, before = d.skip.NextHeader, d.skip.Payload, before+len(d.skip.Contents)
		default:
			return nil, 0, notTCP
		}
	}
}

// segment parses the TCP header of a segment with at least 20 bytes.
func (d *decoder) segment(tcp []byte, length int, src, dst netip.Addr, p *packet) verdict {
	// If options are cut off, the decoder has set all fields before them.
	err := d.tcp.DecodeFromBytes(tcp, gopacket.NilDecodeFeedback)
	t := &d.tcp
	header := int(t.DataOffset) * 4
	if header < 20 || header > length {
		return headersCut
	}
	p.src, p.dst = netip.AddrPortFrom(src, uint16(t.SrcPort)), netip.AddrPortFrom(dst, uint16(t.DstPort))
	p.seq, p.ack, p.window = t.Seq, t.Ack, t.Window
	p.syn, p.fin, p.rst, p.hasAck, p.push, p.ece, p.cwr = t.SYN, t.FIN, t.RST, t.ACK, t.PSH, t.ECE, t.CWR
	p.payload = length - header
	if err != nil {
		p.optionsCut = true
		return isTCP
	}
	for _, o := range t.Options {
		v := o.OptionData
		switch {
		case o.OptionType == layers.TCPOptionKindMSS && len(v) == 2:
			p.mss = int(binary.BigEndian.Uint16(v))
		case o.OptionType == layers.TCPOptionKindWindowScale && len(v) == 1:
			p.wscale = min(int(v[0]), maxWScale)
		case o.OptionType == layers.TCPOptionKindSACKPermitted:
			p.sackPermitted = true
		case o.OptionType == layers.TCPOptionKindTimestamps && len(v) == 8:
			p.timestamps = true
			p.tsval, p.tsecr = binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])
		case o.OptionType == layers.TCPOptionKindSACK:
			for ; len(v) >= 8 && p.sacks < len(p.sack); v = v[8:] {
				p.sack[p.sacks] = block{binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])}
				p.sacks++
			}
		}
	}
	return isTCP
}

// maxWScale is the largest window scale (RFC 7323, section 2.3).
const maxWScale = 14
