package daemon

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"longhaul/internal/cc"
	"longhaul/internal/config"
	"longhaul/internal/destination"
	"longhaul/internal/mss"
	"longhaul/internal/route"
)

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
	for _, name := range c.CongestionControls() {
		if !slices.Contains(own, name) {
			continue
		}
		result, err := host.Load(ctx, name, name)
		switch {
		case errors.Is(err, cc.ErrTaken): // a kernel module's: that one is used
		case err != nil && cc.IsAvailable(name): // loaded before, by somebody who may
		case err != nil:
			log.Warn("cannot load a congestion control", "name", name, "error", err)
		case result.Outcome != cc.Already:
			log.Info("loaded a congestion control", "name", name, "undo", "longhaul cc unload "+name)
		}
	}
}

// HostChanges are what longhaul has changed on this host, by whichever command.
// What this process may not see is left out.
type HostChanges struct {
	CongestionControls []string        `json:"congestion_controls,omitempty"` // loaded
	Routes             []route.Setting `json:"routes,omitempty"`              // of this network namespace
	MSS                []mss.Rule      `json:"mss,omitempty"`                 // of this network namespace
}

// FindHostChanges looks for them.
func FindHostChanges() (h HostChanges) {
	if names, err := cc.NewHost().LoadedNames(); err == nil {
		h.CongestionControls = names
	}
	if settings, err := destination.NewHost().Routes.Settings(); err == nil {
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
