//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"longhaul/internal/cc"
	"longhaul/internal/check"
	"longhaul/internal/config"
	"longhaul/internal/control"
	"longhaul/internal/relay"
)

// daemon is the running `longhaul relay`.
//
//	load → control socket → listen → READY ─┬─ SIGHUP: reload, all or nothing
//	                                        └─ SIGTERM, SIGINT: drain → exit
type daemon struct {
	env   *env
	path  string        // of the configuration; empty where flags describe the tunnel
	flags []config.Flag // of the command line

	log     *slog.Logger
	level   *slog.LevelVar
	writer  *asyncWriter
	flows   *flowLog
	manager *serviceManager
	relay   *relay.Relay
	legs    *transports
	checks  *checks
	started time.Time

	mu         sync.Mutex // guards what follows: status reads it from elsewhere
	config     *config.Config
	lastReload *reloadFact
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

	if d.config, err = loader().Load(ctx, d.path, d.flags...); err != nil {
		return err
	}
	d.openLog()
	defer d.writer.close(2 * time.Second)
	d.manager = newServiceManager(d.log)

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
	d.relay, err = relay.New(relay.Options{
		Tunnels:           tunnels,
		Workers:           workers,
		HalfCloseTimeout:  d.config.HalfCloseTimeout,
		ResetDrainTimeout: d.config.ResetDrainTimeout,
		MemoryLimitBytes:  int64(d.config.MemoryLimit),
		Log:               d.log,
		OnFlows:           d.flows.add,
		LegStats:          d.flows.wanted,
	})
	if err != nil {
		return err
	}
	defer d.relay.Close()

	server, err := d.openControl(ctx)
	if err != nil {
		return err
	}
	if server != nil {
		defer server.Close()
	}
	if err := d.relay.Start(); err != nil {
		return err
	}
	for _, s := range sockets {
		s.file.Close() // the relay has its own descriptors of them
	}
	for _, t := range d.config.Tunnels {
		d.log.Info("listening", "tunnel", t.Name, "listen", join(t.Listen), "forward", join(t.Forward))
	}
	d.checks.keep()
	defer d.checks.close()
	d.manager.ready(d.statusLine())
	d.log.Info("relay started", "version", version(), "pid", os.Getpid(), "tunnels", len(d.config.Tunnels), "workers", d.relay.Snapshot().Workers)

	stopBeat := d.heartbeat()
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
		}
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
	direct := newLogger(d.env.stderr, d.config.Log.Format, d.level)
	d.writer = newAsyncWriter(d.env.stderr, func(n uint64) {
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
// the usual one cannot be had, the relay does without: forwarding matters more.
func (d *daemon) openControl(ctx context.Context) (*control.Server, error) {
	path := d.config.ControlSocket
	if path == config.Off {
		return nil, nil
	}
	asked := path != ""
	if !asked {
		path = control.DefaultPath(d.env.getenv)
	}
	l, err := control.Listen(ctx, path)
	switch {
	case err == nil:
		return control.Serve(l, d.log, control.Handlers{Status: func() any { return d.status() }, Do: d.do}), nil
	case asked || errors.Is(err, control.ErrInUse):
		return nil, err
	}
	d.log.Warn("longhaul status is not available", "error", err, "remedy", "give a path with --control-socket, or off")
	return nil, nil
}

// reload takes the configuration up again. A bad one changes nothing.
func (d *daemon) reload(ctx context.Context) {
	d.manager.reloading()
	defer func() { d.manager.ready(d.statusLine()) }()

	fact := &reloadFact{At: time.Now()}
	before := d.config
	after, err := loader().Load(ctx, d.path, d.flags...)
	var tunnels []relay.Tunnel
	if err == nil {
		loadNamedCC(ctx, cc.NewHost(), after, d.log)
		tunnels, err = d.legs.translate(after)
	}
	if err == nil {
		err = d.checks.equip(after, tunnels)
	}
	if err == nil {
		err = d.relay.Reload(tunnels)
	}
	if err != nil {
		fact.Error = err.Error()
		var bad config.Errors
		if !errors.As(err, &bad) {
			d.log.Error("reload failed, the old configuration stays", "error", err)
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
	d.checks.keep()
	d.relay.SetMemoryLimit(int64(after.MemoryLimit))
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
	if len(fact.NeedsRestart) > 0 {
		d.log.Warn("some changed settings wait for a restart", "settings", strings.Join(fact.NeedsRestart, ","))
	}
}

// drain stops accepting and lets the flows finish, until the deadline or a
// second signal.
func (d *daemon) drain(signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if d.config.DrainTimeout >= 0 {
		deadline, end := context.WithTimeout(ctx, d.config.DrainTimeout)
		defer end()
		ctx = deadline
	}
	d.manager.stopping("draining, " + plural(int(d.relay.Snapshot().FlowsNow), "flow") + " left")

	type result struct {
		left int
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		left, err := d.relay.Drain(ctx)
		ended <- result{left, err}
	}()
	extend := time.NewTicker(drainExtension / 3)
	defer extend.Stop()
	for {
		select {
		case r := <-ended:
			if r.left > 0 {
				d.log.Warn("stopped, flows were reset", "flows", r.left)
				return &exitError{fmt.Errorf("%s did not end in time and were reset", plural(r.left, "flow")), exitDrained}
			}
			if r.err != nil && !errors.Is(r.err, context.DeadlineExceeded) && !errors.Is(r.err, context.Canceled) {
				return r.err
			}
			d.log.Info("stopped, every flow had ended")
			return nil
		case sig := <-signals:
			if sig != syscall.SIGHUP {
				d.log.Warn("a second signal ends the drain", "signal", sig.String())
				cancel()
			}
		case <-extend.C:
			d.manager.extend()
		}
	}
}

// heartbeat tells systemd's watchdog that the event loops answer, and keeps
// the status line current. The returned function ends it.
func (d *daemon) heartbeat() (stop func()) {
	interval := 10 * time.Second
	if d.manager.watchdog > 0 {
		interval = d.manager.watchdog / 2
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		// A loop that is stuck holds the question up as well: then no beat is
		// sent, and systemd acts.
		var answer chan string
		for {
			select {
			case <-done:
				return
			case line := <-answer:
				answer = nil
				d.manager.status(line)
				if d.manager.watchdog > 0 {
					d.manager.alive()
				}
			case <-tick.C:
				if answer == nil {
					answer = make(chan string, 1)
					go func(answer chan<- string) { answer <- d.statusLine() }(answer)
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// statusLine is what `systemctl status` shows. It asks every event loop.
func (d *daemon) statusLine() string {
	s := d.relay.Snapshot()
	line := plural(len(s.Tunnels), "tunnel") + ", " + plural(int(s.FlowsNow), "flow")
	if s.Draining {
		line = "draining, " + plural(int(s.FlowsNow), "flow") + " left"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.lastReload; r != nil && !r.OK {
		line += ", last reload: failed: " + firstLine(r.Error)
	}
	return line
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// relayStatus is the JSON of GET /v1/status: facts about the process and what
// the relay is doing.
type relayStatus struct {
	Version         string         `json:"version"`
	GoVersion       string         `json:"go_version"`
	PID             int            `json:"pid"`
	StartedAt       time.Time      `json:"started_at"`
	UptimeSeconds   float64        `json:"uptime_seconds"`
	ConfigFile      string         `json:"config_file,omitempty"`
	LastReload      *reloadFact    `json:"last_reload"` // null: never reloaded
	Lacks           []lack         `json:"lacks"`
	Host            hostChanges    `json:"host_changes"`
	LogLinesDropped uint64         `json:"log_lines_dropped"`
	Process         processFact    `json:"process"`
	Checks          []check.Report `json:"checks"` // the last of each tunnel
	relay.Snapshot
}

func (d *daemon) status() relayStatus {
	s := relayStatus{
		Version:         version(),
		GoVersion:       runtime.Version(),
		PID:             os.Getpid(),
		StartedAt:       d.started,
		UptimeSeconds:   time.Since(d.started).Seconds(),
		ConfigFile:      d.path,
		Lacks:           d.legs.lacks(),
		Host:            findHostChanges(),
		LogLinesDropped: d.writer.total.Load(),
		Process:         ownProcess(),
		Checks:          d.checks.reports(),
		Snapshot:        d.relay.Snapshot(),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.LastReload = d.lastReload
	return s
}
