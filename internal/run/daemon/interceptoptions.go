package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"longhaul/internal/carry/intercept"
	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
)

// InterceptOptions are what a relay of that name intercepts with a configuration. The
// ports of its listeners are not known before it listens.
func InterceptOptions(relayName string, c *config.Config) intercept.Options {
	o := intercept.Options{Relay: relayName, Mark: c.Interception.Mark, Table: c.Interception.Table, AnswerPorts: true}
	for _, t := range c.Tunnels {
		switch {
		case t.Intercept.Enabled():
			o.Tunnels = append(o.Tunnels, intercept.Tunnel{Name: t.Name, Interface: t.Intercept.Interface,
				From: t.Intercept.From, To: t.Intercept.To, Ports: t.Intercept.Ports, PastForwardRules: t.Intercept.PastForwardRules,
				Mirror: t.Refuse == config.RefuseMirror, SourceRelay: t.Source != config.SourceClient})
			o.AnswerPorts = o.AnswerPorts && t.LeadsAsDialed() // else flows lead elsewhere
		case t.Source == config.SourceClient:
			o.Dialers = append(o.Dialers, intercept.Dialer{Name: t.Name,
				From: t.Original.From, To: t.Original.To, Ports: t.Original.Ports})
		}
	}
	return o
}

// DeniedTargets says, for each tunnel that dials what clients of another relay dialed, which
// addresses of this host are among its targets. Flows to them are denied.
func DeniedTargets(c *config.Config) (notes []error) {
	var own []netip.Addr
	for _, t := range c.Tunnels {
		if !t.Original.Enabled() || t.Original.LocalTargets {
			continue
		}
		if own == nil {
			own = OwnAddresses()
		}
		denied := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool {
			return !slices.ContainsFunc(t.Original.To, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
		})
		if len(denied) == 0 {
			continue
		}
		note := fmt.Sprintf("original of tunnel %s contains %s, an address of this host", t.Name, denied[0].Unmap())
		if more := len(denied) - 1; more > 0 {
			note += fmt.Sprintf(", and %d more", more)
		}
		notes = append(notes, remedy.New(errors.New(note+": flows to it are denied"), "local_targets: true in original allows them"))
	}
	return notes
}

// OwnAddresses lists the addresses of this host's interfaces.
func OwnAddresses() (own []netip.Addr) {
	all, _ := net.InterfaceAddrs() // a flow that leads back is reset all the same
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, prefix.Addr())
		}
	}
	return own
}
