package daemon

import (
	"longhaul/internal/config"
	"longhaul/internal/intercept"
)

// InterceptOptions are what a relay of that name intercepts with a configuration. The
// ports of its listeners are not known before it listens.
func InterceptOptions(relayName string, c *config.Config) intercept.Options {
	o := intercept.Options{Relay: relayName, Mark: c.Interception.Mark, Table: c.Interception.Table}
	for _, t := range c.Tunnels {
		if !t.Intercept.Enabled() {
			continue
		}
		one := intercept.Tunnel{Name: t.Name, Interface: t.Intercept.Interface, From: t.Intercept.From, To: t.Intercept.To}
		for _, p := range t.Intercept.Ports {
			one.Ports = append(one.Ports, intercept.PortRange{First: p.Low, Last: p.High})
		}
		o.Tunnels = append(o.Tunnels, one)
	}
	return o
}
