// Package daemon runs `longhaul relay`: it starts, reloads, hands over to a newer
// process, drains and ends a relay, with everything that a configuration sets up. A
// list of parts holds that; start and reload walk the same list.
package daemon

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/handover"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/usable"
	"longhaul/internal/run/config"
	"longhaul/internal/run/control"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/watch/monitor"
)

// Options are a daemon's settings from its command line.
type Options struct {
	ConfigFile string        // empty if flags describe the tunnel
	Flags      []config.Flag // they override the file
	Loader     config.Loader
	Version    string    // of the program
	Stderr     io.Writer // of the log; a file, if an upgrade shall pass it on
	Getenv     func(string) string

	// ReadablePath is where a configured key, token or certificate can be read
	// now: systemd hands it over under another name than root has it.
	ReadablePath func(path string) string
}

// daemon is a running relay.
//
//	load → prepare parts → commit → READY ─┬─ SIGHUP, reload: all or nothing
//	                                       ├─ upgrade: another process follows → drain → exit
//	                                       └─ SIGTERM, SIGINT, stop: drain → exit
type daemon struct {
	Options

	log       *slog.Logger
	level     *slog.LevelVar
	writer    *asyncWriter
	flows     *flowLog
	monitor   *monitor.Monitor
	history   *historyKeeper
	glances   atomic.Int64 // reads of short flows' legs left until the next sample
	manager   *serviceManager
	relay     *relay.Relay
	legs      *transports
	shedder   *shedder
	http      *httpSite
	names     httpNames // of http_listen
	pages     *dashboard
	integrity *integrityChecks
	pairs     *pairs
	rules     *interception
	keeper    *hostKeeper
	judge     *usable.Judge
	deciding  sync.Mutex
	decided   time.Time // guarded by deciding
	started   time.Time
	parts     []part

	activated []inheritedSocket // by systemd, until tunnels claim them

	logTo   io.Writer
	program string          // path that an upgrade starts
	server  *control.Server // nil: no control socket
	socket  string          // its path

	controlOpened bool // or given up: no second attempt

	predecessor *handover.Predecessor // while this process prepares to succeed it
	inherited   inheritance
	older       olderProcesses
	slowParts   slowParts // of the status

	upgrades  chan upgradeRequest
	reloads   chan reloadRequest
	finishing chan finishRequest
	ending    chan struct{} // closed when the relay stops
	waits     atomic.Int32  // for flows to end

	// atHandOver is the relay's state when another process took over, nil before.
	atHandOver atomic.Pointer[relay.Snapshot]

	mu         sync.Mutex // guards the fields below, which status reads from other goroutines
	config     *config.Config
	lastReload *Reload
	stage      stage
	successor  int // the process that has taken over
	replacedAt time.Time
	within     time.Duration // for the flows left here; negative: no bound
	endsAt     time.Time     // when flows are reset; zero: never
}

// Run runs the relay until a signal or the end of ctx stops it. It returns nil if
// every flow had ended, and an [UndrainedError] if not.
func Run(ctx context.Context, o Options) error {
	d := &daemon{Options: o, started: time.Now()}
	// Before any announcement, so that no signal is lost.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	// The relay must survive the end of its log's reader.
	signal.Ignore(syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGPIPE)

	d.program, d.logTo = startedAs(), o.Stderr
	d.upgrades, d.reloads = make(chan upgradeRequest), make(chan reloadRequest)
	d.finishing, d.ending = make(chan finishRequest), make(chan struct{})
	if err := d.follow(ctx); err != nil {
		return err
	}
	defer d.predecessor.Close()
	var err error
	if d.config, err = o.Loader.Load(ctx, o.ConfigFile, o.Flags...); err != nil {
		return err
	}
	d.openLog()
	defer d.writer.close(2 * time.Second)
	if d.activated, err = inheritedSockets(); err != nil {
		return err
	}
	closeAll := d.assemble()
	defer closeAll()
	return d.serve(ctx, signals)
}

// assemble makes the daemon's parts without a configuration. The returned function
// closes them.
func (d *daemon) assemble() (closeAll func()) {
	var closers []func()
	closing := func(f func()) { closers = append(closers, f) }

	d.manager = newServiceManager(d.log)
	d.manager.silent = d.predecessor != nil
	d.flows = newFlowLog(d.log)
	closing(d.flows.close)
	d.legs = newTransports(cc.NewHost(ledger.By{}), d.log)
	closing(d.legs.budgets.close)
	d.integrity = newIntegrityChecks(d.log, d.Version, d.ReadablePath)
	d.history = newHistoryKeeper(d.log, d.Getenv)
	closing(d.history.close)
	d.monitor = d.newMonitor()
	closing(d.monitor.Close)
	d.pages = newDashboard(d.log, d.monitor, func(since time.Time) []flow.Event { return d.judge.Events(since) })
	closing(d.pages.close)
	d.pairs = newPairs(d.log, d.Version, func() string { return identity.Directory(d.Getenv) }, func() *relay.Relay { return d.relay })
	d.pairs.follow(d.inherited.Pairs, d.inherited.Links)
	closing(d.pairs.close)
	d.judge = usable.New(usable.Options{Pair: d.pairs.taking, Tight: d.tight})
	d.judge.Remember(d.inherited.States)
	d.judge.Tell(d.history.addEvent)
	d.pairs.note = d.judge.Note
	d.rules = newInterception(interceptionOptions{
		log:    d.log,
		getenv: d.Getenv,
		relay:  func() *relay.Relay { return d.relay },
		others: func() bool { return len(d.older.living()) > 0 },
		decide: d.decide,
		judge:  d.judge,
		left:   intercept.Options{Tunnels: d.inherited.Intercepted, Dialers: d.inherited.Dialers},

		cleared: d.inherited.Cleared,
	})
	d.rules.follows = d.predecessor != nil
	closing(d.rules.close) // after the relay, whose flows need the rules
	d.keeper = newHostKeeper(d.log, d.rules, func() *relay.Relay { return d.relay },
		func() []*httpSite { return []*httpSite{d.http, d.pages.httpSite} })
	closing(d.keeper.close)
	d.relay = relay.New(relay.Options{
		Workers:           d.workers(),
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
	closing(d.relay.Close)
	d.shedder = newShedder(d.relay, d.log, d.config.Limits)
	closing(d.shedder.monitor.Close)
	d.http = newHTTPSite(d.log, d.withMetrics(d.readinessOverHTTP().handler()))
	closing(d.http.close)
	if d.predecessor != nil {
		d.http.handed, d.pages.handed = d.predecessor.Sockets, d.predecessor.Sockets
	}
	closing(d.closeControl)
	closing(d.integrity.close)

	d.parts = []part{
		tunnelsPart{d}, // first: only this part may fail to commit
		interceptionPart{d}, limitsPart{d}, historyPart{d}, monitorPart{d}, httpPart{d}, dashboardPart{d}, controlPart{d}, logPart{d}, hostPart{d},
	}
	return func() {
		for _, closeOne := range slices.Backward(closers) {
			closeOne()
		}
	}
}

// workers returns the number of event loops.
func (d *daemon) workers() int {
	if d.config.Workers > 0 {
		return d.config.Workers
	}
	return runtime.GOMAXPROCS(0)
}

// garbagePercent is what the Go heap may grow by until it is collected. Payload lies outside of it, so a
// relay makes garbage only where flows begin: with thousands at once, half of the usual 100 % saves a
// seventh of the memory for 2 % of the CPU (bench/pairs --case storm).
const garbagePercent = 50

// serve commits the configuration and runs until the relay has ended.
func (d *daemon) serve(ctx context.Context, signals <-chan os.Signal) error {
	workers := d.workers()
	// One more than the loops. If waiting loops hold every P of the scheduler, its
	// monitor retakes the Ps each time, and each wakeup costs some 40 µs more.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), workers+1))
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}

	follows := d.predecessor != nil
	prepared, err := prepare(ctx, d.parts, d.config)
	if err != nil {
		return err
	}
	if err := d.introduce(ctx); err != nil {
		prepared.Abort()
		return err
	}
	if err := prepared.Commit(); err != nil {
		return err
	}
	if err := d.rules.failure(); err != nil {
		return err
	}
	waits := func(name string) bool {
		return slices.ContainsFunc(d.relay.Overview().Tunnels, func(t flow.Tunnel) bool { return t.Name == name && t.State == "waiting" })
	}
	for _, t := range d.config.Tunnels {
		if t.Intercept.Enabled() || waits(t.Name) {
			continue // logged by interception, or as waiting
		}
		d.log.Info("listening", "tunnel", t.Name, "listen", join(t.Listen), "forward", cmp.Or(join(t.Forward), "original"))
	}
	d.warn()
	d.takeOver(ctx)
	d.manager.ready(d.statusLine())
	d.judge.Begin(follows, d.Version, os.Getpid())
	d.log.Info("relay started", "version", d.Version, "pid", os.Getpid(), "tunnels", len(d.config.Tunnels), "workers", workers)

	defer d.watchStates()()
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
			d.log.Info("reloading", "signal", sig.String())
			d.reload(ctx)
		case r := <-d.reloads:
			d.log.Info("reloading")
			r.answer <- d.reload(ctx)
		case r := <-d.finishing:
			d.log.Info("stopping")
			return d.drain(signals, r)
		case r := <-d.upgrades:
			done, stop := d.upgrade(ctx, signals, r)
			switch {
			case done && stop != nil:
				_ = syscall.Kill(d.successor, stop.(syscall.Signal)) // systemd sent it to the service
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

// warn logs settings that are usually a mistake.
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

// openLog logs to stderr and never waits for it.
func (d *daemon) openLog() {
	d.level = new(slog.LevelVar)
	d.setLevel(d.config.Log.Level)
	direct := newLogger(d.logTo, d.config.Log.Format, d.level)
	d.writer = newAsyncWriter(d.logTo, func(n uint64) {
		direct.Warn("dropped log lines: the log's reader is too slow", "lines", n)
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
	// The configuration accepts only slog's names.
	_ = l.UnmarshalText([]byte(name))
	d.level.Set(l)
}
