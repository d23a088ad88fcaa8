//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"longhaul/internal/cc"
	"longhaul/internal/config"
	"longhaul/internal/mss"
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

// mayUse says whether a program of this user may choose an algorithm.
func mayUse(name string) bool {
	if os.Geteuid() == 0 {
		return isAvailable(name)
	}
	allowed, err := cc.Allowed()
	return err == nil && slices.Contains(allowed, name)
}

// hostChanges are what longhaul has changed on this host, by whichever command.
// What this process may not see is left out.
type hostChanges struct {
	CongestionControls []string        `json:"congestion_controls,omitempty"` // loaded
	Routes             []route.Setting `json:"routes,omitempty"`              // of this network namespace
	MSS                []mss.Rule      `json:"mss,omitempty"`                 // of this network namespace
}

func findHostChanges() (h hostChanges) {
	if names, err := cc.NewHost().LoadedNames(); err == nil {
		h.CongestionControls = names
	}
	if settings, err := routeTable().Settings(); err == nil {
		h.Routes = settings
	}
	if rules, err := mss.NewHost().Show(false); err == nil {
		for _, r := range rules {
			if r.Action != "" {
				h.MSS = append(h.MSS, r.Rule)
			}
		}
	}
	return h
}

func (h hostChanges) write(w io.Writer) {
	if len(h.CongestionControls) > 0 {
		fmt.Fprintf(w, "loaded: congestion control %s\n  undo: longhaul cc unload\n", strings.Join(h.CongestionControls, ", "))
	}
	for _, s := range h.Routes {
		fmt.Fprintf(w, "changed: the route to %s has %s\n  undo: longhaul route undo %[1]s\n", s.Prefix, metricsText(s.Values()))
	}
	for _, r := range h.MSS {
		fmt.Fprintf(w, "changed: MSS on %s, %s\n  undo: longhaul mss clear --dev %[1]s\n", r.Device, ruleText(r))
	}
}
