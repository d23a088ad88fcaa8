package daemon

import (
	"context"
	"errors"
	"log/slog"

	"longhaul/internal/run/config"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/tune/destination"
	"longhaul/internal/tune/mss"
	"longhaul/internal/tune/route"
)

// loadNamedCC loads longhaul's congestion controls that the tunnels name. It logs why
// one does not load; the tunnels report the lack and their fallback. It unloads
// nothing: other programs may use the algorithms by now.
func loadNamedCC(ctx context.Context, host *cc.Host, c *config.Config, log *slog.Logger) {
	for _, name := range c.CongestionControls() {
		if !host.IsOwn(name) {
			continue
		}
		result, err := host.Load(ctx, name, name)
		switch {
		case errors.Is(err, cc.ErrTaken): // by a kernel module: the tunnels use that
		case err != nil && cc.IsAvailable(name): // already loaded by a privileged process
		case err != nil:
			log.Warn("cannot load a congestion control", "name", name, "error", err)
		case result.Outcome != cc.Already:
			log.Info("loaded a congestion control", "name", name, "undo", "longhaul cc unload "+name+" --yes")
		}
	}
}

// HostChanges are longhaul's changes of this host, by any command. Changes that this
// process may not read are left out.
type HostChanges struct {
	CongestionControls []string        `json:"congestion_controls,omitempty"` // loaded
	Routes             []route.Setting `json:"routes,omitempty"`              // of this network namespace
	MSS                []mss.Rule      `json:"mss,omitempty"`                 // of this network namespace
}

// FindHostChanges reads longhaul's changes of this host.
func FindHostChanges() (h HostChanges) {
	if names, err := cc.NewHost(ledger.By{}).LoadedNames(); err == nil {
		h.CongestionControls = names
	}
	if settings, err := destination.NewHost(ledger.By{}).Routes.Settings(); err == nil {
		h.Routes = settings
	}
	if rules, err := mss.NewHost(ledger.By{}).List(); err == nil {
		for _, r := range rules {
			if r.Action != "" {
				h.MSS = append(h.MSS, r.Rule)
			}
		}
	}
	return h
}
