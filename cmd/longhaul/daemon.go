//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"longhaul/internal/cc"
	"longhaul/internal/check"
	"longhaul/internal/config"
	"longhaul/internal/control"
	"longhaul/internal/display"
	"longhaul/internal/handover"
	"longhaul/internal/monitor"
	"longhaul/internal/monitor/history"
	"longhaul/internal/relay"
	"longhaul/internal/remedy"
	"longhaul/internal/resources"
	"longhaul/internal/transport"
)

// daemon is the running `longhaul relay`.
//
//	load → control socket → listen → READY ─┬─ SIGHUP: reload, all or nothing
//	                                        ├─ upgrade: another process follows → drain → exit
//	                                        └─ SIGTERM, SIGINT: drain → exit
type daemon struct {
	env   *env
	path  string        // of the configuration; empty where flags describe the tunnel
	flags []config.Flag // of the command line

	log     *slog.Logger
	level   *slog.LevelVar
	writer  *asyncWriter
	flows   *flowLog
	monitor *monitor.Monitor
	metrics http.Handler
	history *historian
	states  map[string]tunnelSince // of tunnels, as the monitor saw them
	glances atomic.Int64           // of short flows' legs, that may be taken until the next sample
	manager *serviceManager
	relay   *relay.Relay
	legs    *transports
	shedder *shedder
	web     *web
	names   httpNames // of http_listen
	pages   *dashboard
	checks  *checks
	started time.Time

	logTo   io.Writer
	program string          // what an upgrade starts
	server  *control.Server // nil: nobody can ask
	socket  string          // its path

	predecessor *handover.Predecessor // while this process gets ready to follow another
	inherited   inheritance
	elders      elders

	upgrades  chan upgradeRequest
	finishing chan finishRequest
	ending    chan struct{} // closed once the relay stops
	waits     atomic.Int32  // for flows to end

	// atHandOver is what the relay was when another process took over, nil before.
	atHandOver atomic.Pointer[relay.Snapshot]

	mu         sync.Mutex // guards what follows: status reads it from elsewhere
	config     *config.Config
	lastReload *reloadFact
	stage      stage
	successor  int // the process that has taken over
	replacedAt time.Time
	within     time.Duration // of the flows that stayed behind; negative: no bound
	endsAt     time.Time     // when flows are reset; zero: never
}

// reloadFact is how the last reload went.
type reloadFact struct {
	At           time.Time `json:"at"`
	OK           bool      `json:"ok"`
	Error        string    `json:"error,omitempty"`
	Added        []string  `json:"added,omitempty"`
	Changed      []string  `json:"changed,omitempty"`
	Removed      []string  `json:"removed,omitempty"`
	Unchanged    int       `json:"unchanged"`
	NeedsRestart []string  `json:"needs_restart,omitempty"` // changed settings that wait for one
}

// run works until a signal has stopped it. ctx ending is a signal, too.
func (d *daemon) run(ctx context.Context) (err error) {
	d.started = time.Now()
	// Before anything is announced, so that no signal is lost.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	// A log reader that has gone away must not end the relay with it.
	signal.Ignore(syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGPIPE)

	d.program, d.logTo = startedAs(), display.Raw(d.env.stderr)
	d.upgrades, d.finishing, d.ending = make(chan upgradeRequest), make(chan finishRequest), make(chan struct{})
	if err := d.follow(ctx); err != nil {
		return err
	}
	defer d.predecessor.Close()
	if d.config, err = loader().Load(ctx, d.path, d.flags...); err != nil {
		return err
	}
	d.openLog()
	defer d.writer.close(2 * time.Second)
	d.manager = newServiceManager(d.log)
	d.manager.silent = d.predecessor != nil

	workers := d.config.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	// One more than there are loops: where every one of the scheduler's places
	// belongs to a loop that waits for events, its monitor takes them away
	// each time, and each wakeup costs some 40 µs more.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), workers+1))

	sockets, err := inheritedSockets()
	if err != nil {
		return err
	}
	inherited, err := matchSockets(sockets, d.config.Tunnels)
	if err != nil {
		return err
	}
	d.flows = newFlowLog(d.log)
	defer d.flows.close()
	host := cc.NewHost()
	d.legs = newTransports(host, d.log)
	defer d.legs.budgets.close()
	loadNamedCC(ctx, host, d.config, d.log)
	tunnels, err := d.legs.translate(d.config)
	if err != nil {
		return err
	}
	d.legs.keep()
	d.checks = newChecks(d.log)
	if err := d.checks.equip(d.config, tunnels); err != nil {
		return err
	}
	for i := range tunnels {
		tunnels[i].Inherited = inherited[tunnels[i].Name]
	}
	d.history = newHistorian(d.log, d.env.getenv)
	defer d.history.close()
	d.monitor = d.newMonitor()
	defer d.monitor.Close()
	d.pages = newDashboard(d.log, d.monitor)
	defer d.pages.close()
	d.relay, err = relay.New(relay.Options{
		Tunnels:           tunnels,
		Workers:           workers,
		HalfCloseTimeout:  d.config.HalfCloseTimeout,
		ResetDrainTimeout: d.config.ResetDrainTimeout,
		MemoryLimitBytes:  int64(d.config.MemoryLimit),
		StallTimeout:      d.config.StallTimeout,
		Log:               d.log,
		OnFlows:           d.flowsEnded,
		LegStats:          d.legsWanted,
		Listeners:         d.handedOver(),
		Drained:           d.inherited.Drained,
		Hops:              d.inherited.Hops,
		Names:             d.inherited.Names,
	})
	if err != nil {
		return err
	}
	defer d.relay.Close()
	d.shedder = newShedder(d.relay, d.log, d.config.Limits)
	defer d.shedder.monitor.Close()

	d.names.set(d.config.HTTPNames)
	d.web = newWeb(d.log, d.withMetrics(d.readinessOverHTTP().handler()))
	defer d.web.close()
	if d.predecessor != nil {
		d.web.handed, d.pages.handed = d.predecessor.Sockets, d.predecessor.Sockets
	}
	pages, err := d.web.prepare(ctx, d.config.HTTPListen)
	if err != nil {
		return err
	}
	defer pages.abandon()
	dashboard, err := d.pages.prepare(ctx, d.config.Dashboard)
	if err != nil {
		return err
	}
	defer dashboard.abandon()
	if err := d.openControl(ctx, d.readiness().handler()); err != nil {
		return err
	}
	if d.server != nil {
		defer d.server.Close()
	}
	if err := d.introduce(ctx); err != nil {
		return err
	}
	if err := d.relay.Start(); err != nil {
		return err
	}
	d.history.apply(d.config.History)
	d.pages.readHistory(d.history.state())
	if monitoring {
		d.monitor.Start()
	}
	pages.apply()
	dashboard.apply()
	for _, s := range sockets {
		s.file.Close() // the relay has its own descriptors of them
	}
	for _, t := range d.config.Tunnels {
		d.log.Info("listening", "tunnel", t.Name, "listen", join(t.Listen), "forward", join(t.Forward))
	}
	d.warn()
	d.takeOver(ctx)
	d.checks.keep()
	defer d.checks.close()
	d.manager.ready(d.statusLine())
	d.log.Info("relay started", "version", version(), "pid", os.Getpid(), "tunnels", len(d.config.Tunnels), "workers", workers)

	stopBeat := d.manager.heartbeat(d.statusLine)
	defer stopBeat()
	for {
		select {
		case <-ctx.Done():
			return d.drain(signals)
		case sig := <-signals:
			if sig != syscall.SIGHUP {
				d.log.Info("stopping", "signal", sig.String())
				return d.drain(signals)
			}
			d.reload(ctx)
		case r := <-d.upgrades:
			done, stop := d.upgrade(ctx, signals, r)
			switch {
			case done && stop != nil:
				_ = syscall.Kill(d.successor, stop.(syscall.Signal)) // it was for the service
				return d.outlive(signals)
			case done:
				return d.outlive(signals)
			case stop != nil:
				d.log.Info("stopping", "signal", stop.String())
				return d.drain(signals)
			}
		}
	}
}

// warn logs what the configuration has that is seldom meant.
func (d *daemon) warn() {
	for _, w := range d.config.Warnings {
		d.log.Warn(w.Problem, "at", w.At.String(), "remedy", w.Fix)
	}
}

func join[T fmt.Stringer](all []T) string {
	words := make([]string, len(all))
	for i, v := range all {
		words[i] = v.String()
	}
	return strings.Join(words, " ")
}

// openLog begins to log to stderr, without ever waiting for it.
func (d *daemon) openLog() {
	d.level = new(slog.LevelVar)
	d.setLevel(d.config.Log.Level)
	direct := newLogger(d.logTo, d.config.Log.Format, d.level)
	d.writer = newAsyncWriter(d.logTo, func(n uint64) {
		direct.Warn("log lines were dropped: the log was not read fast enough", "lines", n)
	})
	d.log = newLogger(d.writer, d.config.Log.Format, d.level)
}

func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func (d *daemon) setLevel(name string) {
	var l slog.Level
	// The configuration admits only names that slog knows.
	_ = l.UnmarshalText([]byte(name))
	d.level.Set(l)
}

// openControl opens the control socket. Where nobody asked for a place and
// the usual one cannot be had, the relay takes one of its own, or does without:
// forwarding matters more.
func (d *daemon) openControl(ctx context.Context, checks http.Handler) error {
	if d.config.ControlSocket == config.Off {
		return nil
	}
	path, asked := d.controlSocket()
	listen := control.Listen
	if d.predecessor != nil && path == d.inherited.ControlSocket {
		listen = control.ListenAside
	}
	l, err := listen(ctx, path)
	if errors.Is(err, control.ErrInUse) && !asked {
		path = control.PathIn(filepath.Dir(path), control.OwnName())
		if l, err = control.Listen(ctx, path); err == nil {
			d.log.Info("another relay has the usual control socket, this one is named for its process", "name", control.OwnName(), "control_socket", path)
		}
	}
	switch {
	case err == nil:
		handlers := control.Handlers{Status: func() any { return d.status() }, Do: d.do}
		for _, target := range healthTargets {
			handlers.More = append(handlers.More, control.Endpoint{Pattern: target, Handler: checks})
		}
		d.socket = path
		d.server = control.Serve(l, d.log, handlers)
		return nil
	case asked:
		return err
	}
	d.log.Warn("longhaul status is not available", "error", err, "remedy", "give a path with --control-socket, or off")
	return nil
}

// controlSocket is where the control socket is to be, and whether the
// configuration says so. A relay that took a name of its own passes it on to the
// one that follows.
func (d *daemon) controlSocket() (path string, asked bool) {
	dir := control.Directory(d.env.getenv)
	switch {
	case d.config.ControlSocket != "":
		return d.config.ControlSocket, true
	case d.config.Name != "":
		return control.PathIn(dir, d.config.Name), true
	case control.IsOwnName(control.NameIn(dir, d.inherited.ControlSocket)):
		return d.inherited.ControlSocket, false
	}
	return control.PathIn(dir, control.DefaultName), false
}

// reload takes the configuration up again. A bad one changes nothing.
func (d *daemon) reload(ctx context.Context) {
	d.log.Info("reloading", "signal", syscall.SIGHUP.String())
	d.manager.reloading("reloading")
	defer func() { d.manager.ready(d.statusLine()) }()

	fact := &reloadFact{At: time.Now()}
	before := d.config
	after, err := loader().Load(ctx, d.path, d.flags...)
	var tunnels []relay.Tunnel
	if err == nil {
		loadNamedCC(ctx, cc.NewHost(), after, d.log)
		tunnels, err = d.legs.translate(after)
	}
	var pages *webChange
	if err == nil {
		err = d.checks.equip(after, tunnels)
	}
	if err == nil {
		pages, err = d.web.prepare(ctx, after.HTTPListen)
	}
	var dashboard *dashboardChange
	if err == nil {
		if dashboard, err = d.pages.prepare(ctx, after.Dashboard); err != nil {
			pages.abandon()
		}
	}
	if err == nil {
		if err = d.relay.Reload(tunnels); err != nil {
			pages.abandon()
			dashboard.abandon()
		}
	}
	if err != nil {
		fact.Error = remedy.Line(err)
		var bad config.Errors
		if !errors.As(err, &bad) {
			attributes := []any{"error", err}
			if fix := remedy.Of(err); fix != "" {
				attributes = append(attributes, "hint", fix)
			}
			d.log.Error("reload failed, the old configuration stays", attributes...)
		}
		for _, e := range bad {
			d.log.Error("reload failed, the old configuration stays", "at", e.At.String(), "error", e.Problem, "hint", e.Fix)
		}
		d.mu.Lock()
		d.lastReload = fact
		d.mu.Unlock()
		return
	}
	d.legs.keep()
	d.names.set(after.HTTPNames)
	pages.apply()
	dashboard.apply()
	d.checks.keep()
	d.relay.SetMemoryLimit(int64(after.MemoryLimit))
	d.shedder.setLimits(after.Limits)
	d.history.apply(after.History)
	d.pages.readHistory(d.history.state())
	changes := config.Diff(before, after)
	fact.OK = true
	fact.Added, fact.Changed, fact.Removed, fact.Unchanged = changes.Added, changes.Changed, changes.Removed, len(changes.Unchanged)
	fact.NeedsRestart = config.NeedsRestart(before, after)
	d.setLevel(after.Log.Level)
	d.mu.Lock()
	d.config, d.lastReload = after, fact
	d.mu.Unlock()

	d.log.Info("reloaded",
		"added", strings.Join(changes.Added, ","), "changed", strings.Join(changes.Changed, ","),
		"removed", strings.Join(changes.Removed, ","), "unchanged", len(changes.Unchanged))
	d.warn()
	if len(fact.NeedsRestart) > 0 {
		d.log.Warn("some changed settings wait for a restart", "settings", strings.Join(fact.NeedsRestart, ","))
	}
}

// statusLine is what `systemctl status` shows. It waits for every event loop.
func (d *daemon) statusLine() string {
	// An error says that the loops have ended, and there is nothing to wait for.
	_, _ = d.relay.Responsive(context.Background())
	s := d.relay.Overview()
	line := display.Plural(len(s.Tunnels), "tunnel") + ", " + display.Plural(int(s.FlowsNow), "flow")
	if s.Draining {
		line = "draining, " + display.Plural(int(s.FlowsNow), "flow") + " left"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.lastReload; r != nil && !r.OK {
		line += ", last reload: failed: " + display.FirstLine(r.Error)
	}
	return line
}

// relayStatus is the JSON of GET /v1/status: facts about the process and what
// the relay is doing.
type relayStatus struct {
	Name            string            `json:"name,omitempty"` // empty: its control socket is elsewhere
	Version         string            `json:"version"`
	GoVersion       string            `json:"go_version"`
	PID             int               `json:"pid"`
	StartedAt       time.Time         `json:"started_at"`
	UptimeSeconds   float64           `json:"uptime_seconds"`
	ConfigFile      string            `json:"config_file,omitempty"`
	LastReload      *reloadFact       `json:"last_reload"` // null: never reloaded
	Lacks           []transport.Lack  `json:"lacks"`
	Host            hostChanges       `json:"host_changes"`
	LogLinesDropped uint64            `json:"log_lines_dropped"`
	Process         resources.Process `json:"process"`
	Resources       *resources.State  `json:"resources"`
	ReplacedBy      int               `json:"replaced_by,omitempty"` // the process that has taken over from this one
	OlderProcesses  []elderFact       `json:"older_processes"`       // that finish their flows
	Checks          []check.Report    `json:"checks"`                // the last of each tunnel
	History         *history.State    `json:"history"`               // null: no records are kept
	relay.Snapshot
}

func (d *daemon) status() relayStatus {
	s := relayStatus{
		Name:            control.NameIn(control.Directory(d.env.getenv), d.socket),
		Version:         version(),
		GoVersion:       runtime.Version(),
		PID:             os.Getpid(),
		StartedAt:       d.started,
		UptimeSeconds:   time.Since(d.started).Seconds(),
		ConfigFile:      d.path,
		Lacks:           d.legs.lacks(),
		Host:            findHostChanges(),
		LogLinesDropped: d.writer.total.Load(),
		Process:         resources.Own(),
		OlderProcesses:  d.elders.ask(context.Background()),
		Checks:          d.checks.reports(),
		History:         d.history.state(),
		Snapshot:        d.relay.Snapshot(),
	}
	if d.shedder != nil {
		state := d.shedder.monitor.State()
		s.Resources = &state
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.LastReload = d.lastReload
	if d.stage == replaced {
		s.ReplacedBy = d.successor
	}
	return s
}

// readiness answers for the daemon's relay.
func (d *daemon) readiness() *readiness {
	return &readiness{
		overview:   d.relay.Overview,
		responsive: d.relay.Responsive,
		tight:      func() []resources.Resource { return d.shedder.monitor.State().Tight },
	}
}

// readinessOverHTTP answers for the tunnels. A check that this process has accepted, and
// answers only when another has taken over, is about what was handed over: that this
// process drains says nothing of the tunnels, which the other serves.
func (d *daemon) readinessOverHTTP() *readiness {
	r := d.readiness()
	// Load balancers may ask in any name or none; a browser always names one.
	r.telling = func(r *http.Request) bool { return r.Host == "" || d.names.asked(r) }
	r.overview = func() relay.Snapshot {
		now := d.relay.Overview()
		if then := d.atHandOver.Load(); then != nil { // it is set before the relay drains
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
