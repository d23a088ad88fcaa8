package destination

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"longhaul/internal/words/ipprefix"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// hint is the remedy of an invalid destination.
const hint = "write a prefix like 203.0.113.0/24, an address, a host name, or default"

// Default is the destination of the default routes of both families.
const Default = "default"

// Parse parses a DEST of the command line: a prefix, an address, a host name, or
// default. A host name means all its addresses, default the prefixes of length 0 of
// both families.
func Parse(ctx context.Context, text string) ([]netip.Prefix, error) {
	return parse(ctx, text, net.DefaultResolver.LookupNetIP)
}

func parse(ctx context.Context, text string, lookup func(context.Context, string, string) ([]netip.Addr, error)) ([]netip.Prefix, error) {
	if text == Default {
		return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, nil
	}
	prefix, err := ipprefix.Parse(text)
	switch {
	case err == nil:
		return []netip.Prefix{prefix}, nil
	case !isHostName(text):
		if strings.Contains(text, "/") {
			return nil, err
		}
		return nil, remedy.New(fmt.Errorf("invalid destination %q", text), hint)
	}
	addresses, err := lookup(ctx, "ip", text)
	if err != nil {
		return nil, remedy.New(fmt.Errorf("resolve %s: %w", text, err), hint)
	}
	var prefixes []netip.Prefix
	for _, a := range addresses {
		a = a.Unmap().WithZone("")
		if p := netip.PrefixFrom(a, a.BitLen()); !slices.Contains(prefixes, p) {
			prefixes = append(prefixes, p)
		}
	}
	sorted.By(prefixes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return prefixes, nil
}

// isHostName reports whether a text can be the name of a host: it has a letter, and
// only letters, digits, hyphens, underscores and dots.
func isHostName(text string) bool {
	letter := false
	for _, r := range text {
		switch {
		case unicode.IsLetter(r):
			letter = true
		case unicode.IsDigit(r) || strings.ContainsRune("-_.", r):
		default:
			return false
		}
	}
	return letter && !strings.HasPrefix(text, "-") && !strings.Contains(text, "..")
}
