package receiver

import (
	"encoding/binary"

	"longhaul/internal/sys/checksum"
)

const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
	flagURG
	flagECE
	flagCWR
)

const (
	ipHeaderBytes  = 20
	tcpHeaderBytes = 20
	protocolTCP    = 6
	ecnCE          = 3

	optionEnd           = 0
	optionNone          = 1
	optionMSS           = 2
	optionWindowScale   = 3
	optionSACKPermitted = 4
	optionSACK          = 5
)

// segment is what a receiver needs of a TCP segment.
type segment struct {
	from, to      endpoint
	seq           uint32
	flags         byte
	isCE          bool // congestion experienced (RFC 3168)
	sackPermitted bool
	data          []byte
}

// parse parses an IPv4 packet with a TCP segment. Its checksums are the kernel's own.
func parse(p []byte) (s segment, ok bool) {
	if len(p) < ipHeaderBytes || p[0]>>4 != 4 || p[9] != protocolTCP {
		return s, false
	}
	header, total := int(p[0]&15)*4, int(binary.BigEndian.Uint16(p[2:]))
	if header < ipHeaderBytes || total > len(p) || total < header+tcpHeaderBytes {
		return s, false
	}
	copy(s.from.address[:], p[12:])
	copy(s.to.address[:], p[16:])
	s.isCE = p[1]&3 == ecnCE
	tcp := p[header:total]
	s.from.port, s.to.port = binary.BigEndian.Uint16(tcp), binary.BigEndian.Uint16(tcp[2:])
	s.seq, s.flags = binary.BigEndian.Uint32(tcp[4:]), tcp[13]
	dataAt := int(tcp[12]>>4) * 4
	if dataAt < tcpHeaderBytes || dataAt > len(tcp) {
		return s, false
	}
	s.sackPermitted = hasOption(tcp[tcpHeaderBytes:dataAt], optionSACKPermitted)
	s.data = tcp[dataAt:]
	return s, true
}

// hasOption reports whether an option of a kind is among options.
func hasOption(options []byte, kind byte) bool {
	for len(options) > 0 && options[0] != optionEnd {
		if options[0] == kind {
			return true
		}
		length := 1
		if options[0] != optionNone {
			if len(options) < 2 || options[1] < 2 {
				return false
			}
			length = int(options[1])
		}
		options = options[min(length, len(options)):]
	}
	return false
}

// synOptions are the options of a SYN-ACK.
func synOptions(sack bool) []byte {
	options := binary.BigEndian.AppendUint16([]byte{optionMSS, 4}, mss)
	options = append(options, optionNone, optionWindowScale, 3, windowScale)
	if sack {
		options = append(options, optionNone, optionNone, optionSACKPermitted, 2)
	}
	return options
}

// sackOption is the option with SACK blocks (RFC 2018); nothing without blocks.
func sackOption(firstByte uint32, blocks []span) []byte {
	if len(blocks) == 0 {
		return nil
	}
	options := []byte{optionNone, optionNone, optionSACK, byte(2 + 8*len(blocks))}
	for _, b := range blocks {
		options = binary.BigEndian.AppendUint32(options, firstByte+uint32(b.from))
		options = binary.BigEndian.AppendUint32(options, firstByte+uint32(b.to))
	}
	return options
}

// build makes a packet without data. The options have a multiple of 4 bytes.
func build(from, to endpoint, seq, ack uint32, flags byte, options []byte) []byte {
	p := make([]byte, ipHeaderBytes+tcpHeaderBytes+len(options))
	p[0] = 4<<4 | ipHeaderBytes/4
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	p[8], p[9] = 64, protocolTCP
	copy(p[12:], from.address[:])
	copy(p[16:], to.address[:])
	binary.BigEndian.PutUint16(p[10:], checksum.Of(p[:ipHeaderBytes]))
	tcp := p[ipHeaderBytes:]
	binary.BigEndian.PutUint16(tcp, from.port)
	binary.BigEndian.PutUint16(tcp[2:], to.port)
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = byte((tcpHeaderBytes+len(options))/4)<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], window)
	copy(tcp[tcpHeaderBytes:], options)
	binary.BigEndian.PutUint16(tcp[16:], checksum.Of(pseudoHeader(p), tcp))
	return p
}

// pseudoHeader is the header over which TCP's checksum goes too (RFC 9293, section 3.1).
func pseudoHeader(p []byte) []byte {
	pseudo := append(make([]byte, 0, 12), p[12:20]...)
	pseudo = append(pseudo, 0, protocolTCP)
	return binary.BigEndian.AppendUint16(pseudo, uint16(len(p)-ipHeaderBytes))
}
