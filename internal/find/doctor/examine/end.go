package examine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"longhaul/internal/words/remedy"
)

// End is one end of connections. The zero value is any end.
type End struct {
	Addresses []netip.Addr // of the host; empty: any
	Port      uint16       // 0: any
	text      string       // as the user wrote it
}

// EndOf returns an end with one address and a port, each of which may be zero. An
// unspecified address is any.
func EndOf(a netip.AddrPort) End {
	e := End{Port: a.Port()}
	if a.Addr().IsValid() && !a.Addr().IsUnspecified() {
		e.Addresses = []netip.Addr{a.Addr().Unmap()}
	}
	return e
}

// ParseEnd parses HOST, HOST:PORT, :PORT or a port. HOST is an address, in brackets if
// it is of IPv6 and a port follows, or a name, which stands for all its addresses.
func ParseEnd(ctx context.Context, text string) (End, error) {
	e := End{text: text}
	if port, err := strconv.ParseUint(text, 10, 16); err == nil && port > 0 {
		e.Port, e.text = uint16(port), ":"+text
		return e, nil
	}
	host, service := text, ""
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		host = strings.Trim(text, "[]")
	} else if strings.Contains(text, ":") {
		if host, service, err = net.SplitHostPort(text); err != nil {
			return End{}, invalidEnd(text)
		}
		port, err := strconv.ParseUint(service, 10, 16)
		if err != nil || port == 0 {
			return End{}, invalidEnd(text)
		}
		e.Port = uint16(port)
	}
	if host == "" {
		if e.Port == 0 {
			return End{}, invalidEnd(text)
		}
		return e, nil
	}
	if address, err := netip.ParseAddr(host); err == nil {
		e.Addresses = EndOf(netip.AddrPortFrom(address, 0)).Addresses
		return e, nil
	}
	if strings.ContainsAny(host, " /[]") || strings.Trim(host, "0123456789.") == "" {
		return End{}, invalidEnd(text)
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return End{}, &UnresolvedError{host, err}
	}
	for _, a := range addresses {
		if a = a.Unmap(); !slices.Contains(e.Addresses, a) {
			e.Addresses = append(e.Addresses, a)
		}
	}
	return e, nil
}

func invalidEnd(text string) error {
	return remedy.New(fmt.Errorf("invalid end %q", text),
		"write it like db.example.net:5432, 203.0.113.9, [2001:db8::9]:5432, :5432 or 5432")
}

// UnresolvedError reports that a host's name has no address.
type UnresolvedError struct {
	Host string
	Err  error
}

func (e *UnresolvedError) Error() string {
	return fmt.Sprintf("find the address of %s: %v", e.Host, e.Err)
}

func (e *UnresolvedError) Unwrap() error { return e.Err }

// isAny reports whether every end matches.
func (e End) isAny() bool { return len(e.Addresses) == 0 && e.Port == 0 }

func (e End) matches(a netip.AddrPort) bool {
	return (len(e.Addresses) == 0 || slices.Contains(e.Addresses, a.Addr().Unmap())) && (e.Port == 0 || e.Port == a.Port())
}

// String names the end as the user wrote it.
func (e End) String() string {
	switch {
	case e.text != "":
		return e.text
	case len(e.Addresses) == 0:
		return ":" + strconv.Itoa(int(e.Port))
	case e.Port == 0:
		return e.Addresses[0].String()
	}
	return netip.AddrPortFrom(e.Addresses[0], e.Port).String()
}
