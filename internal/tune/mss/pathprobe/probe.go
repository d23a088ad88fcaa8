// Package pathprobe raises the MSS if packets of that size cross the path, and removes
// the rule when they no longer do.
//
// No kernel raises an MSS, since that may stall every connection. So a raise needs proof: an answer to a packet
// of that size. Routers' messages are a hint and never the verdict: a filter may drop them, and an attacker may
// forge them.
//
// It combines [mss] for rules with [pathmtu] for probes. Neither imports the other.
package pathprobe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/pathmtu"
	"longhaul/internal/tune/mss"
	"longhaul/internal/words/remedy"
)

// ErrNoHost reports a rule without a host to probe.
var ErrNoHost = errors.New("raising the MSS needs a host there that answers probes")

// Probe is the part of a path that can be probed from here.
type Probe struct {
	Address netip.Addr
	From    bool // data comes from there; else it goes there
	Bytes   int  // of the IP packets
}

// Choose returns the host to probe for a rule, and the direction. Without an address
// it is the rule's single host, or the error is [ErrNoHost].
func Choose(rule mss.Rule, address netip.Addr) (*Probe, error) {
	p := &Probe{Address: address.Unmap()}
	single := func(prefix netip.Prefix) bool {
		return prefix.IsValid() && prefix.IsSingleIP() && !isLocal(prefix.Addr())
	}
	switch {
	case p.Address.IsValid():
	case single(rule.To):
		p.Address = rule.To.Addr()
	case single(rule.From):
		p.Address = rule.From.Addr()
	default:
		return nil, ErrNoHost
	}
	switch {
	case isLocal(p.Address):
		return nil, remedy.New(fmt.Errorf("%s is this host itself", p.Address), "probe a host at the other end of the path")
	case rule.To.IsValid() && rule.To.Contains(p.Address):
	case rule.From.IsValid() && rule.From.Contains(p.Address):
		p.From = true
	case rule.To.IsValid() || rule.From.IsValid():
		return nil, remedy.New(fmt.Errorf("%s is in none of the rule's prefixes", p.Address),
			"probe a host in the rule's prefix")
	}
	p.Bytes = rule.PacketBytes()
	if p.Address.Is6() {
		p.Bytes = max(p.Bytes, rule.MSS+ipv6Headers)
	}
	return p, nil
}

// The headers that an MSS does not count: IP's without extensions, and TCP's.
const (
	ipv4Headers = 20 + 20
	ipv6Headers = 40 + 20
)

// String returns the destination of the packets: "to 203.0.113.9".
func (p *Probe) String() string {
	if p.From {
		return fmt.Sprintf("here from %s", p.Address)
	}
	return fmt.Sprintf("to %s", p.Address)
}

// isLocal reports whether an address is one of this host's.
func isLocal(address netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == address {
				return true
			}
		}
	}
	return false
}

// run sends the packets.
func (p *Probe) run(ctx context.Context) (pathmtu.Result, error) {
	if p.From {
		return pathmtu.From(ctx, p.Address, p.Bytes, pathmtu.Options{})
	}
	return pathmtu.Toward(ctx, p.Address, p.Bytes, pathmtu.Options{})
}

// require returns an error unless the path carries the size.
func (p *Probe) require(ctx context.Context) error {
	result, err := p.run(ctx)
	var lacking *kernel.ErrUnsupported
	if errors.As(err, &lacking) {
		return remedy.New(err, "add --no-probe to skip the probe")
	}
	if err != nil {
		return err
	}
	switch result.Verdict {
	case pathmtu.Carries:
		return nil
	case pathmtu.Silent:
		return remedy.New(fmt.Errorf("%s does not answer, so it is unknown whether the path carries %d bytes",
			p.Address, p.Bytes),
			"probe another host with --probe ADDRESS, or add --no-probe")
	}
	less := "the size that the path carries is unknown: try a smaller value"
	if result.MTU > 0 {
		headers := ipv4Headers
		if p.Address.Is6() {
			headers = ipv6Headers
		}
		less = fmt.Sprintf("the path carries %d, so use at most %d", result.MTU, result.MTU-headers)
	}
	return remedy.New(fmt.Errorf("packets of %d bytes do not get %s", p.Bytes, p), less)
}
