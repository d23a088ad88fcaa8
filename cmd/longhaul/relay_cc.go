package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"longhaul/internal/cc"
	"longhaul/internal/config"
	"longhaul/internal/route"
)

// namedCC are the congestion controls that a configuration names, each once.
func namedCC(c *config.Config) []string {
	var names []string
	for _, tunnel := range c.Tunnels {
		if tunnel.Transport == config.TransportKernel {
			continue
		}
		for _, name := range []string{tunnel.LAN.CongestionControl, tunnel.WAN.CongestionControl} {
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// loadNamedCC loads those of longhaul's congestion controls that the tunnels
// name. What cannot be loaded is the tunnels' lack, which they report with
// what they use instead; here is said why. Nothing is unloaded: other programs
// may have come to use it.
func loadNamedCC(ctx context.Context, host *cc.Host, c *config.Config, log *slog.Logger) {
	own, err := host.Names()
	if err != nil {
		log.Error("cannot see longhaul's congestion controls", "error", err)
		return
	}
	for _, name := range namedCC(c) {
		if !slices.Contains(own, name) {
			continue
		}
		result, err := host.Load(ctx, name, name)
		switch {
		case errors.Is(err, cc.ErrTaken): // a kernel module's: that one is used
		case err != nil && isAvailable(name): // loaded before, by somebody who may
		case err != nil:
			log.Warn("cannot load a congestion control", "name", name, "error", err)
		case result.Outcome != cc.Already:
			log.Info("loaded a congestion control", "name", name, "undo", "longhaul cc unload "+name)
		}
	}
}

func isAvailable(name string) bool {
	available, err := cc.Available()
	return err == nil && slices.Contains(available, name)
}

// hostChanges are what longhaul has changed on this host, by whichever command.
// What this process may not see is left out.
type hostChanges struct {
	CongestionControls []string    `json:"congestion_controls,omitempty"` // loaded
	Routes             []route.Use `json:"routes,omitempty"`              // of this network namespace
}

func findHostChanges() (h hostChanges) {
	if names, err := cc.NewHost().LoadedNames(); err == nil {
		h.CongestionControls = names
	}
	if uses, err := routeTable().CongestionControlUses(); err == nil {
		h.Routes = uses
	}
	return h
}

func (h hostChanges) write(w io.Writer) {
	if len(h.CongestionControls) > 0 {
		fmt.Fprintf(w, "loaded: congestion control %s\n  undo: longhaul cc unload\n", strings.Join(h.CongestionControls, ", "))
	}
	for _, use := range h.Routes {
		fmt.Fprintf(w, "changed: route to %s uses %s\n  undo: longhaul cc use --to %[1]s --undo\n", use.Prefix, use.Algorithm)
	}
}
