package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// warnOpen warns of a tunnel without allow that listens on a public address or
// a wildcard.
func (d *decoder) warnOpen(t Tunnel, listens []placedListen) {
	if len(t.Allow) > 0 || len(t.ProxyIn.Trusted) > 0 {
		return
	}
	var at *node
	var open, sources []string
	for _, l := range listens {
		if !reachedFromOutside(l.Addr) {
			continue
		}
		if at == nil {
			at = l.at
		}
		open = append(open, l.Listen.String())
		for _, p := range privateSources {
			if text := p.String(); (l.Addr == netip.IPv6Unspecified() || p.Addr().Is4() == l.Addr.Unmap().Is4()) && !slices.Contains(sources, text) {
				sources = append(sources, text)
			}
		}
	}
	if at == nil {
		return
	}
	line, everybody := "allow: ["+strings.Join(sources, ", ")+"]", "allow: [0.0.0.0/0, ::/0]"
	if at.at.Flag != "" {
		line, everybody = "--allow "+strings.Join(sources, ","), "--allow 0.0.0.0/0,::/0"
	}
	d.warnings = append(d.warnings, &Error{at.at,
		fmt.Sprintf("the tunnel %s listens on %s and has no allow: every host that reaches this one may use it",
			t.Name, strings.Join(open, " and ")),
		fmt.Sprintf("add %s, or the sources that you expect; %s is for everybody", line, everybody)})
}

// privateSources lists the private networks.
var privateSources = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("fd00::/8"),
}

// carrierNAT is shared by the customers of a provider (RFC 6598, section 7).
var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")

// reachedFromOutside reports whether a listening address is a wildcard or
// routed on the Internet.
func reachedFromOutside(a netip.Addr) bool {
	a = a.Unmap()
	return !a.IsLoopback() && !a.IsPrivate() && !a.IsLinkLocalUnicast() && !carrierNAT.Contains(a)
}
