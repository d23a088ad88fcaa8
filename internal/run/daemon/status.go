package daemon

import (
	"context"
	"errors"
	"net/http"
	"os"
	"runtime"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/transport"
	"longhaul/internal/sys/resources"
	"longhaul/internal/words/display"
)

// statusLine returns the line for `systemctl status`. It waits for every event loop.
func (d *daemon) statusLine() string {
	// After an error the loops have ended: nothing to wait for.
	_, _ = d.relay.Responsive(context.Background())
	tunnels, draining := d.relay.Tunnels()
	flows := display.Plural(int(d.relay.FlowsNow()), "flow")
	line := display.Plural(tunnels, "tunnel") + ", " + flows
	if draining {
		line = "draining, " + flows + " left"
	}
	if r := d.life.lastReload(); r != nil && !r.OK {
		line += ", last reload: failed: " + display.FirstLine(r.Error)
	}
	return line
}

// Status is the JSON of GET /v1/status: facts about the process and the relay.
type Status struct {
	Name            string             `json:"name,omitempty"` // empty: the control socket is outside the usual directory
	Version         string             `json:"version"`
	GoVersion       string             `json:"go_version"`
	PID             int                `json:"pid"`
	StartedAt       time.Time          `json:"started_at"`
	UptimeSeconds   float64            `json:"uptime_seconds"`
	ConfigFile      string             `json:"config_file,omitempty"`
	LastReload      *Reload            `json:"last_reload"`            // null: never reloaded
	Confirmation    *Confirmation      `json:"confirmation,omitempty"` // of a reload --confirm that is not confirmed
	Lacks           []transport.Lack   `json:"lacks"`
	Host            HostChanges        `json:"host_changes"`
	LogLinesDropped uint64             `json:"log_lines_dropped"`
	Process         resources.Process  `json:"process"`
	Resources       *resources.State   `json:"resources"`
	ReplacedBy      int                `json:"replaced_by,omitempty"` // the process that has taken over from this one
	OlderProcesses  []OlderProcess     `json:"older_processes"`       // that still have flows
	Integrity       []integrity.Report `json:"checks"`                // last of each tunnel
	History         *History           `json:"history"`               // null: no history, and no sinks
	Pairs           *flow.Pairs        `json:"pairs"`                 // null: no tunnel is paired
	Missing         []string           `json:"missing"`               // parts that were not known in time
	// Waiting lists addresses of HTTP and of the dashboard that this host does not have, and their TLS
	// files that cannot be used.
	Waiting  []flow.HostProblem `json:"waiting,omitempty"`
	Restored map[string]int64   `json:"restored_total"` // of the host's state, by part: set again after other programs removed it
	Fights   int64              `json:"fights_total"`   // with programs that kept removing it
	relay.Snapshot
}

// status waits at most statusPatience for its parts.
func (d *daemon) status() Status {
	late := time.NewTimer(statusPatience)
	defer late.Stop()
	return d.statusUntil(late.C)
}

// statusUntil returns a status with the parts that are known in time. Without that of the event
// loops, the tunnels are those of an overview.
func (d *daemon) statusUntil(late <-chan time.Time) Status {
	s := Status{
		Name:            d.control.name(),
		Version:         d.Version,
		GoVersion:       runtime.Version(),
		PID:             os.Getpid(),
		StartedAt:       d.started,
		UptimeSeconds:   time.Since(d.started).Seconds(),
		ConfigFile:      d.ConfigFile,
		Lacks:           []transport.Lack{},
		LogLinesDropped: d.output.total.Load(),
		Process:         resources.Own(),
		OlderProcesses:  []OlderProcess{},
		Integrity:       []integrity.Report{},
		Snapshot:        d.states.overview(),
	}
	parts := d.slowParts.collect(late)
	ask(parts, partLacks, d.legs.lacks, func(v []transport.Lack) { s.Lacks = v })
	ask(parts, partHost, FindHostChanges, func(v HostChanges) { s.Host = v })
	ask(parts, partOlder, func() []OlderProcess { return d.past.older.ask(context.Background()) }, func(v []OlderProcess) { s.OlderProcesses = v })
	ask(parts, partChecks, d.integrity.reports, func(v []integrity.Report) { s.Integrity = v })
	ask(parts, partHistory, d.history.status, func(v *History) { s.History = v })
	ask(parts, partPairs, d.pairs.status, func(v *flow.Pairs) { s.Pairs = v })
	ask(parts, partFlows, d.states.snapshot, func(v relay.Snapshot) { s.Snapshot = v })
	s.Missing = append([]string{}, parts.wait()...)
	s.Restored, s.Fights = d.rules.view().counts()
	for _, site := range d.keeper.sites {
		s.Waiting = append(s.Waiting, site.lacks()...)
	}
	state := d.shedder.monitor.State()
	s.Resources = &state
	d.life.mu.Lock()
	defer d.life.mu.Unlock()
	s.LastReload, s.Confirmation = d.life.reload, d.life.confirmation.status()
	if d.life.stage == replaced {
		s.ReplacedBy = d.life.successor
	}
	return s
}

// readiness returns the readiness of the daemon's relay.
func (d *daemon) readiness() *readiness {
	return &readiness{overview: d.states.overview, responsive: d.relay.Responsive}
}

// readinessOverHTTP answers for the tunnels. A successor may take over between a
// request and its answer. The answer then gives the state at the handover: the
// successor serves the tunnels while this process drains.
func (d *daemon) readinessOverHTTP() *readiness {
	r := d.readiness()
	// Load balancers may send any Host or none; a browser always sends one.
	r.showsReasons = func(r *http.Request) bool { return r.Host == "" || d.http.names.asked(r) }
	r.overview = func() relay.Snapshot {
		now := d.states.overview()
		if then := d.atHandOver.Load(); then != nil { // set before the relay drains
			return *then
		}
		return now
	}
	r.responsive = func(ctx context.Context) (time.Duration, error) {
		took, err := d.relay.Responsive(ctx)
		if errors.Is(err, relay.ErrClosed) && d.atHandOver.Load() != nil {
			err = nil
		}
		return took, err
	}
	return r
}
