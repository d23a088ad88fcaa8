package daemon

import (
	"longhaul/internal/config"
	"longhaul/internal/intercept"
)

// InterceptOptions are what a relay of that name intercepts with a configuration. The
// ports of its listeners are not known before it listens.
func InterceptOptions(relayName string, c *config.Config) intercept.Options {
	o := intercept.Options{Relay: relayName, Mark: c.Interception.Mark, Table: c.Interception.Table, AnswerPorts: true}
	for _, t := range c.Tunnels {
		switch {
		case t.Intercept.Enabled():
			o.Tunnels = append(o.Tunnels, intercept.Tunnel{Name: t.Name, Interface: t.Intercept.Interface,
				From: t.Intercept.From, To: t.Intercept.To, Ports: t.Intercept.Ports,
				Mirror: t.Refuse == config.RefuseMirror, SourceRelay: t.Source != config.SourceClient})
			o.AnswerPorts = o.AnswerPorts && len(t.Forward) == 0 // else flows lead elsewhere
		case t.Source == config.SourceClient:
			o.Dialers = append(o.Dialers, intercept.Dialer{Name: t.Name,
				From: t.Original.From, To: t.Original.To, Ports: t.Original.Ports})
		}
	}
	return o
}
