package main

import (
	"log/slog"
	"slices"
	"sync"

	"longhaul/internal/config"
	"longhaul/internal/relay"
)

// lack is something that a tunnel's legs would need of this host, and do
// without.
type lack struct {
	Tunnel string `json:"tunnel"`
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}

// transports makes the socket settings of the tunnels' legs, and keeps those
// of tunnels whose settings a reload does not change.
type transports struct {
	log *slog.Logger

	mu sync.Mutex
}

func newTransports(log *slog.Logger) *transports { return &transports{log: log} }

// translate turns a configuration into the relay's own terms.
func (t *transports) translate(c *config.Config) ([]relay.Tunnel, error) {
	var out []relay.Tunnel
	for _, tun := range c.Tunnels {
		rt := relay.Tunnel{
			Name:              tun.Name,
			Listen:            tun.Addresses(),
			Allow:             slices.Clone(tun.Allow),
			MaxFlows:          tun.MaxFlows,
			NewFlowsPerSecond: tun.NewFlowsPerSecond,
			ConnectTimeout:    tun.ConnectTimeout,
			IdleTimeout:       tun.IdleTimeout,
			ProxyIn:           relay.ProxyIn{Required: tun.ProxyIn.Required, Trusted: slices.Clone(tun.ProxyIn.Trusted)},
			ProxyOut:          relay.ProxyVersion(tun.ProxyOut),
		}
		for _, f := range tun.Forward {
			rt.Forward = append(rt.Forward, relay.Target{Host: f.Host, Port: f.Ports.Low})
		}
		out = append(out, rt)
	}
	return out, nil
}

func (t *transports) keep(*config.Config) {}
func (t *transports) announce()           {}
func (t *transports) lacks() []lack       { return []lack{} }
