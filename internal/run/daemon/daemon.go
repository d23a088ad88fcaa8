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
	"longhaul/internal/sys/ledger"
	"longhaul/internal/sys/resources"
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
	output    *logOutput
	flows     *flowLog
	monitor   *monitor.Monitor
	history   *historyKeeper
	glances   atomic.Int64 // reads of short flows' legs left until the next sample
	manager   *serviceManager
	relay     *relay.Relay
	legs      *transports
	shedder   *shedder
	http      *healthSite
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

	control *controlSocket

	logTo   io.Writer
	program string // path that an upgrade starts

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
	d.log, d.output = openLog(d.logTo, d.config.Log)
	defer d.output.close(2 * time.Second)
	activated, err := inheritedSockets()
	if err != nil {
		return err
	}
	closeAll := d.assemble(activated)
	defer closeAll()
	return d.serve(ctx, signals)
}

// assemble makes the daemon's parts without a configuration. The returned function
// closes them.
func (d *daemon) assemble(activated []inheritedSocket) (closeAll func()) {
	var closers []func()
	closing := func(f func()) { closers = append(closers, f) }
	follows := d.predecessor != nil

	d.manager = newServiceManager(d.log)
	d.manager.silent = follows
	d.flows = newFlowLog(d.log)
	closing(d.flows.close)
	d.legs = newTransports(cc.NewHost(ledger.By{}), d.Getenv, d.log)
	closing(d.legs.budgets.close)
	d.integrity = newIntegrityChecks(d.log, d.Version, d.ReadablePath)
	d.history = newHistoryKeeper(d.log, d.Getenv)
	if d.inherited.States.Events == nil {
		d.history.earlier = func(all []flow.Event) { d.judge.Remember(usable.Memory{Events: all}) }
	}
	closing(d.history.close)
	d.monitor = d.newMonitor()
	closing(d.monitor.Close)
	d.pages = newDashboard(d.log, d.monitor, func(since time.Time) []flow.Event { return d.judge.Events(since) }, d.history, d.ReadablePath)
	closing(d.pages.close)
	d.pairs = newPairs(d.log, d.Version, func() string { return identity.Directory(d.Getenv) }, func() *relay.Relay { return d.relay })
	d.pairs.follow(d.inherited.Pairs, d.inherited.Links)
	closing(d.pairs.close)
	d.judge = usable.New(usable.Options{Pair: d.pairs.taking, Tight: func() []resources.Resource { return d.shedder.tight() }})
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
		follows: follows,
	})
	closing(d.rules.close) // after the relay, whose flows need the rules
	d.keeper = newHostKeeper(d.log, d.rules, func() *relay.Relay { return d.relay },
		func() []*httpSite { return []*httpSite{d.http.httpSite, d.pages.httpSite} })
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
	d.http = &healthSite{}
	d.http.httpSite = newHTTPSite(d.log, d.withMetrics(d.readinessOverHTTP().handler()))
	closing(d.http.close)
	if follows {
		d.http.handed, d.pages.handed = d.predecessor.Sockets, d.predecessor.Sockets
	}
	d.control = &controlSocket{log: d.log, getenv: d.Getenv, before: d.inherited.ControlSocket, follows: follows, handlers: d.handlers()}
	closing(d.control.close)
	closing(d.integrity.close)

	d.parts = []part{
		// Each of these completes the tunnels that the first one makes, and the relay takes them.
		d.legs,
		d.integrity, // after the legs: a check dials as they do
		&activatedSockets{activated},
		d.pairs, // likewise
		relayTunnels{d.relay},

		d.rules,             // once the relay listens where the rules lead
		hostWatch{d.keeper}, // after the rules, which it watches
		d.shedder,
		d.history,
		sampling{d.monitor}, // once the history takes records, and before a server shows samples
		d.http,
		d.pages, // after the history, which it reads
		d.control,
		d.output,
		secondLook{d.keeper}, // last: at what the others could not have at once
	}
	return func() {
		for _, closeOne := range slices.Backward(closers) {
			closeOne()
		}
	}
}

// plan is what the parts prepare of a configuration.
func (d *daemon) plan(c *config.Config) *plan {
	return &plan{Config: c, relayName: d.control.relayName(c)}
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
	prepared, err := prepare(ctx, d.parts, d.plan(d.config))
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
