package pcap

import (
	"encoding/binary"
	"net/netip"
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
	header, flags := int(tcp[12]>>4)*4, tcp[13]
	if header < 20 || header > length {
		return malformed
	}
	p.src = netip.AddrPortFrom(d.src, binary.BigEndian.Uint16(tcp))
	p.dst = netip.AddrPortFrom(d.dst, binary.BigEndian.Uint16(tcp[2:]))
	p.seq, p.ack, p.window = binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:]), binary.BigEndian.Uint16(tcp[14:])
	p.fin, p.syn, p.rst, p.push = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	p.hasAck, p.ece, p.cwr = flags&16 != 0, flags&64 != 0, flags&128 != 0
	p.payload = length - header
	if p.optionsCut = header > len(tcp); !p.optionsCut {
		p.options(tcp[20:header])
	}
	return isTCP
}

// options reads the options of TCP, as a host does: up to one with an invalid length.
func (p *packet) options(b []byte) {
	for len(b) > 0 {
		kind := optionKind(b[0])
		if kind == optionEnd {
			return
		}
		if kind == optionNop {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return
		}
		if isPlain(kind, b[1]) {
			p.option(kind, b[2:b[1]])
		}
		b = b[b[1]:]
	}
}

func (p *packet) option(kind optionKind, v []byte) {
	switch kind {
	case optionMSS:
		p.mss = int(binary.BigEndian.Uint16(v))
	case optionWindowScale:
		p.wscale = min(int(v[0]), maxWScale)
	case optionSACKPermitted:
		p.sackPermitted = true
	case optionTimestamps:
		p.timestamps = true
		p.tsval, p.tsecr = binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])
	case optionSACK:
		for ; len(v) >= 8 && p.sacks < len(p.sack); v = v[8:] {
			p.sack[p.sacks] = block{binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])}
			p.sacks++
		}
	}
}

// maxWScale is the largest window scale (RFC 7323, section 2.3).
const maxWScale = 14
