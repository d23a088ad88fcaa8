package pcap

import (
	"encoding/binary"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// packet is the content of a TCP packet.
type packet struct {
	at       int64 // ns since table.origin
	behind   int64 // how much earlier it is than one before it in the file, ns
	epoch    int   // number of changes of the clock before it
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

	// To recognise a packet captured twice: IPv4 identification, hops left, and
	// place of the capture.
	ipID    uint16
	ttl     uint8
	device  int
	network network
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
	malformed
)

// segment parses a TCP header.
func (d *decoder) segment(p *packet) verdict {
	tcp, length := d.rest(), d.end-d.at
	if len(tcp) < 20 {
		_, v := d.short()
		return v
	}
	// If options are cut off, the decoder has set all fields before them.
	err := d.tcp.DecodeFromBytes(tcp, gopacket.NilDecodeFeedback)
	t := &d.tcp
	header := int(t.DataOffset) * 4
	if header < 20 || header > length {
		return malformed
	}
	p.src, p.dst = netip.AddrPortFrom(d.src, uint16(t.SrcPort)), netip.AddrPortFrom(d.dst, uint16(t.DstPort))
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
		case o.OptionType == layers.TCPOptionKindSACK && isPlain(o.OptionType, o.OptionLength):
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
