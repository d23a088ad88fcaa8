package top

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Filter selects connections. The zero value selects all.
type Filter struct {
	text  string
	terms []term
}

// term is one word of a filter: the connection matches if any of it does.
type term struct {
	text   []byte       // in lower case: part of an address, a process's name or a cause
	prefix netip.Prefix // either address is in it
	port   uint16       // either port
	pid    int
	isPort bool
}

// ParseFilter parses words that must all match: an address or a prefix
// (10.0.0.0/8), a port (:22), a number, which is a port or a PID, or a part of
// an address, of the process's name or of the cause.
func ParseFilter(text string) (Filter, error) {
	f := Filter{text: text}
	for _, word := range strings.Fields(text) {
		t, err := parseTerm(strings.ToLower(word))
		if err != nil {
			return Filter{}, err
		}
		f.terms = append(f.terms, t)
	}
	return f, nil
}

func parseTerm(word string) (term, error) {
	if digits, isPort := strings.CutPrefix(word, ":"); isPort && isNumber(digits) {
		port, err := strconv.ParseUint(digits, 10, 16)
		if err != nil {
			return term{}, fmt.Errorf("invalid port %q", word)
		}
		return term{port: uint16(port), isPort: true}, nil
	}
	if isNumber(word) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return term{}, fmt.Errorf("invalid port or PID %q", word)
		}
		return term{pid: n, port: uint16(n), isPort: n < 1<<16}, nil
	}
	if addr, err := netip.ParseAddr(strings.Trim(word, "[]")); err == nil {
		addr = addr.Unmap().WithZone("")
		return term{prefix: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	if address, _, ok := strings.Cut(word, "/"); ok {
		if _, err := netip.ParseAddr(address); err == nil {
			prefix, err := netip.ParsePrefix(word)
			if err != nil {
				return term{}, fmt.Errorf("invalid prefix %q", word)
			}
			return term{prefix: prefix.Masked()}, nil
		}
	}
	return term{text: []byte(word)}, nil
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// String returns the filter's words.
func (f Filter) String() string { return f.text }

// Matches reports whether the filter selects a connection.
func (f Filter) Matches(c *Connection) bool {
	for i := range f.terms {
		if !f.terms[i].matches(c) {
			return false
		}
	}
	return true
}

func (t *term) matches(c *Connection) bool {
	switch {
	case t.isPort && (c.Local.Port() == t.port || c.Remote.Port() == t.port):
		return true
	case t.pid != 0 && c.Process.PID == t.pid:
		return true
	case t.prefix.IsValid():
		return t.prefix.Contains(c.Local.Addr()) || t.prefix.Contains(c.Remote.Addr())
	case t.text == nil:
		return false
	}
	var room [64]byte
	return bytes.Contains(c.Remote.AppendTo(room[:0]), t.text) ||
		bytes.Contains(c.Local.AppendTo(room[:0]), t.text) ||
		bytes.Contains(bytes.ToLower(append(room[:0], c.Process.Command...)), t.text) ||
		bytes.Contains(append(room[:0], c.Cause()...), t.text)
}
