package proxyproto

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"
)

const prefixV1 = "PROXY "

// The protocol words of version 1, each with the byte that must follow it, and
// the valid bytes of its addresses and ports.
var protocolsV1 = []struct {
	word     string
	alphabet string // empty: the rest of the line is ignored
}{
	{"TCP4 ", "0123456789. "},
	{"TCP6 ", "0123456789abcdefABCDEF:. "},
	{"UNKNOWN ", ""},
	{"UNKNOWN\r", ""},
}

func parseV1(buf []byte) (Header, int, error) {
	line := buf[:min(len(buf), MaxLenV1)]
	end := bytes.Index(line, []byte("\r\n"))
	if end < 0 {
		if err := checkPartialV1(line); err != nil {
			return Header{}, 0, err
		}
		if len(line) == MaxLenV1 {
			return Header{}, 0, malformed("no end of line within %d bytes", MaxLenV1)
		}
		return Header{}, 0, ErrIncomplete
	}
	if err := checkPartialV1(line[:end+1]); err != nil {
		return Header{}, 0, err
	}
	h, err := parseLineV1(string(line[:end]))
	if err != nil {
		return Header{}, 0, err
	}
	return h, end + len("\r\n"), nil
}

// checkPartialV1 refuses a line as soon as it cannot become a header. So the
// caller does not wait for a client that speaks another protocol.
func checkPartialV1(line []byte) error {
	s := string(line)
	if !compatible(s, prefixV1) {
		return malformed("the line does not begin with %q", prefixV1)
	}
	if len(s) <= len(prefixV1) {
		return nil
	}
	s = s[len(prefixV1):]
	for _, p := range protocolsV1 {
		if !compatible(s, p.word) {
			continue
		}
		if p.alphabet == "" || len(s) <= len(p.word) {
			return nil
		}
		rest := strings.TrimSuffix(s[len(p.word):], "\r")
		if i := strings.IndexFunc(rest, func(r rune) bool { return !strings.ContainsRune(p.alphabet, r) }); i >= 0 {
			return malformed("byte %#02x among the addresses", rest[i])
		}
		return nil
	}
	return malformed("unknown protocol: want TCP4, TCP6 or UNKNOWN")
}

// compatible reports whether one of the strings begins with the other.
func compatible(s, word string) bool {
	n := min(len(s), len(word))
	return s[:n] == word[:n]
}

// parseLineV1 parses a whole line without its CR LF, after checkPartialV1.
func parseLineV1(line string) (Header, error) {
	fields := strings.Split(line, " ")
	if len(fields) >= 2 && fields[1] == "UNKNOWN" {
		return Header{Version: 1, Local: true}, nil
	}
	if len(fields) != 6 {
		return Header{}, malformed("%d words instead of 6, separated by one space", len(fields))
	}
	v4 := fields[1] == "TCP4"
	source, err := parseAddrV1(fields[2], fields[4], v4)
	if err != nil {
		return Header{}, err
	}
	destination, err := parseAddrV1(fields[3], fields[5], v4)
	if err != nil {
		return Header{}, err
	}
	return Header{Version: 1, Source: source, Destination: destination}, nil
}

func parseAddrV1(address, port string, v4 bool) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(address)
	if err != nil || a.Is4() != v4 {
		return netip.AddrPort{}, malformed("invalid address %q for the protocol", address)
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil || (port[0] == '0' && len(port) > 1) {
		return netip.AddrPort{}, malformed("invalid port %q", port)
	}
	return plain(netip.AddrPortFrom(a, uint16(p))), nil
}

func appendV1(dst []byte, h Header) []byte {
	if h.Local {
		return append(dst, prefixV1+"UNKNOWN\r\n"...)
	}
	source, destination, v4 := sameFamily(h.Source.Addr(), h.Destination.Addr())
	if v4 {
		dst = append(dst, prefixV1+"TCP4 "...)
	} else {
		dst = append(dst, prefixV1+"TCP6 "...)
	}
	dst = append(source.AppendTo(dst), ' ')
	dst = append(destination.AppendTo(dst), ' ')
	dst = append(strconv.AppendUint(dst, uint64(h.Source.Port()), 10), ' ')
	dst = strconv.AppendUint(dst, uint64(h.Destination.Port()), 10)
	return append(dst, "\r\n"...)
}
