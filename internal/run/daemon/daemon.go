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
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/usable"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/sinks"
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

	// OpenSink makes a sink for records; nil: those that longhaul has.
	OpenSink func(archive.Target) (archive.Sink, error)
}

// daemon is a running relay.
//
//	load → prepare parts → commit → READY ─┬─ SIGHUP, reload: all or nothing
//	                                       ├─ upgrade: another process follows → drain → exit
//	                                       └─ SIGTERM, SIGINT, stop: drain → exit
type daemon struct {
	Options

	log     *slog.Logger
	started time.Time
	program string // path that an upgrade starts
	past    past
	life    life
	orders  *orders
	manager *serviceManager

	relay     *relay.Relay
	discovery *discovery
	legs      *transports
	integrity *integrityChecks
	pairs     *pairs
	rules     *interception
	keeper    *hostKeeper
	shedder   *shedder
	states    *states
	ended     *endedFlows
	tracer    *tracer
	history   *historyKeeper
	http      *metricsSite
	health    healthSite
	pages     *dashboard
	control   *controlSocket
	output    *logOutput
	leading   []part // of parts, those of hops
	parts     []part

	slowParts slowParts // of the status

	// atHandOver is the relay's state when another process took over, nil before.
	atHandOver atomic.Pointer[relay.Snapshot]
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

	d.program, d.orders = startedAs(), newOrders(&d.life, o.Getenv)
	if err := d.past.receive(ctx); err != nil {
		return err
	}
	defer d.past.predecessor.Close()
	c, problem, err := d.load(ctx)
	if err != nil {
		return err
	}
	d.life.config = c
	logTo := o.Stderr
	if d.past.predecessor != nil {
		logTo = d.past.predecessor.Log
	}
	d.log, d.output = openLog(logTo, c.Log)
	defer d.output.close(2 * time.Second)
	activated, err := inheritedSockets()
	if err != nil {
		return err
	}
	d.assemble(activated)
	defer d.close()
	if problem != nil {
		d.cannotReturn(problem)
	}
	return d.serve(ctx, signals)
}

// assemble makes the daemon's parts without a configuration, for close to end them.
func (d *daemon) assemble(activated []inheritedSocket) {
	c, past, follows := d.life.config, &d.past.inherited, d.past.predecessor != nil
	d.manager = newServiceManager(d.log)
	d.manager.silent = follows
	d.ended = &endedFlows{log: newFlowLog(d.log), relay: relayName(c.Name)}
	d.relay = relay.New(relay.Options{
		Workers:           workers(c),
		HalfCloseTimeout:  c.HalfCloseTimeout,
		ResetDrainTimeout: c.ResetDrainTimeout,
		MemoryLimitBytes:  int64(c.MemoryLimit),
		StallTimeout:      c.StallTimeout,
		Log:               d.log,
		OnFlows:           d.ended.add,
		LegStats:          d.ended.legsWanted,
		Listeners:         d.past.listeners(),
		Drained:           past.Drained,
		Hops:              past.Hops,
		Names:             past.Names,
	})
	d.discovery = newDiscovery(d.log, d.relay.NameCache())
	d.legs = newTransports(cc.NewHost(ledger.By{}), d.Getenv, d.log)
	d.integrity = newIntegrityChecks(d.log, d.Version, d.ReadablePath)
	d.pairs = newPairs(d.log, d.Version, func() string { return identity.Directory(d.Getenv) }, d.ReadablePath, d.relay)
	d.pairs.follow(past.Pairs, past.Links)
	d.shedder = newShedder(d.relay, d.log, c.Limits)
	openSink := d.OpenSink
	if openSink == nil {
		openSink = sinks.Open
	}
	d.history = newHistoryKeeper(historyOptions{
		log: d.log, getenv: d.Getenv, relay: d.ended.relay, readablePath: d.ReadablePath, openSink: openSink,
	})

	judge := usable.New(usable.Options{Tight: d.shedder.tight})
	judge.Remember(past.States)
	judge.Tell(d.history.addEvent)
	d.pairs.note, d.discovery.note = judge.Note, judge.Note
	if past.States.Events == nil {
		d.history.earlier = func(all []flow.Event) { judge.Remember(usable.Memory{Events: all}) }
	}
	d.life.confirmation.log, d.life.confirmation.note = d.log, judge.Note
	d.states = &states{relay: d.relay, discovery: d.discovery, pairs: d.pairs, judge: judge}
	d.rules = newInterception(interceptionOptions{
		log:    d.log,
		getenv: d.Getenv,
		relay:  d.relay,
		others: func() bool { return len(d.past.older.living()) > 0 },
		decide: d.states.decide,
		judge:  judge,
		left:   intercept.Options{Tunnels: past.Intercepted, Dialers: past.Dialers},

		cleared: past.Cleared,
		follows: follows,
	})
	d.states.rules = d.rules

	d.ended.monitor = monitor.New(monitor.Options{
		Sample:    d.relay.Sample,
		Running:   d.relay.Running,
		Overview:  d.overview,
		OnRecords: func(records []monitor.Record) { d.history.add(records); d.pages.board.Ended(records) },
		Recorded:  func(r *monitor.Record) bool { return r.Reason != flow.EndCheck },
		Log:       d.log,
	})
	d.tracer = &tracer{relay: d.relay, monitor: d.ended.monitor, older: &d.past.older}
	d.pairs.trace = d.tracer.forPeer
	d.pages = newDashboard(d.log, d.ended.monitor, judge.Events, d.history, &d.past, d.ReadablePath)
	d.http = &metricsSite{readablePath: d.ReadablePath}
	checks := d.readinessOverHTTP().handler()
	d.http.httpSite = newHTTPSite(d.log, &d.past, "http", d.withMetrics(checks))
	d.http.names.certified = d.http.hasCertificateFor
	d.health = healthSite{newHTTPSite(d.log, &d.past, "health checks", checks)}
	introduce(d.http.httpSite, d.health.httpSite, d.pages.httpSite)
	d.keeper = newHostKeeper(d.log, d.rules, d.relay, d.http.httpSite, d.health.httpSite, d.pages.httpSite)
	d.control = &controlSocket{log: d.log, getenv: d.Getenv, past: &d.past, handlers: d.handlers()}

	d.leading, d.parts = d.list(activated)
}

func (d *daemon) close() {
	d.integrity.close()
	d.control.close()
	d.http.close()
	d.health.close()
	d.shedder.monitor.Close()
	d.discovery.close() // before the relay, whose cache of names it uses
	d.relay.Close()
	d.keeper.close()
	d.rules.close() // after the relay, whose flows need the rules
	d.pairs.close() // after the relay, which has reset their flows
	d.pages.close()
	d.ended.monitor.Close()
	d.history.close() // after the monitor, which gives it records
	d.legs.budgets.close()
	d.ended.log.close()
}

// plan is what the parts prepare of a configuration.
func (d *daemon) plan(c *config.Config) *plan {
	return &plan{Config: c, relayName: d.control.relayName(c)}
}

// workers returns the number of event loops.
func workers(c *config.Config) int {
	if c.Workers > 0 {
		return c.Workers
	}
	return runtime.GOMAXPROCS(0)
}

// garbagePercent is what the Go heap may grow by until it is collected. Payload lies outside of it, so a
// relay makes garbage only where flows begin: with thousands at once, half of the usual 100 % saves a
// seventh of the memory for 2 % of the CPU (bench/pairs --case storm).
const garbagePercent = 50

// serve commits the configuration and runs until the relay has ended.
func (d *daemon) serve(ctx context.Context, signals <-chan os.Signal) error {
	c := d.life.config
	workers := workers(c)
	// One more than the loops. If waiting loops hold every P of the scheduler, its
	// monitor retakes the Ps each time, and each wakeup costs some 40 µs more.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), workers+1))
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}

	follows := d.past.predecessor != nil
	prepared, err := d.prepareStart(ctx)
	if err != nil {
		return err
	}
	c = d.life.config
	if err := d.past.introduce(ctx, introduction{d.Version, d.control.path}); err != nil {
		prepared.Abort()
		return err
	}
	if err := prepared.Commit(); err != nil {
		return err
	}
	if err := d.rules.failure(); err != nil {
		return err
	}
	d.pairs.begin(cmp.Or(d.past.inherited.TrustedList, listName(d.control.path, d.ConfigFile)), c)
	d.logListening()
	d.warn()
	d.takeOver(ctx)
	d.manager.ready(d.statusLine())
	d.states.judge.Begin(follows, d.Version, os.Getpid())
	d.sayRolledBack()
	d.log.Info("relay started", "version", d.Version, "pid", os.Getpid(), "tunnels", len(c.Tunnels), "workers", workers)

	defer d.states.watch()()
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
			d.reload(ctx, 0)
		case <-d.discovery.news:
			d.rediscover(ctx)
		case r := <-d.orders.reloads:
			if r.dryRun {
				r.answer <- d.tryReload(ctx)
				continue
			}
			d.log.Info("reloading")
			r.answer <- d.reload(ctx, r.confirm)
		case <-d.life.confirmation.over():
			d.rollBack(ctx)
		case r := <-d.orders.finishing:
			d.log.Info("stopping")
			return d.drain(signals, r)
		case r := <-d.orders.upgrades:
			done, stop := d.upgrade(ctx, signals, r)
			switch {
			case done && stop != nil:
				_ = syscall.Kill(d.life.successor, stop.(syscall.Signal)) // systemd sent it to the service
				return d.finish(signals, r.within, false)
			case done:
				return d.finish(signals, r.within, false)
			case stop != nil:
				d.log.Info("stopping", "signal", stop.String())
				return d.drain(signals)
			}
		}
	}
}

// warn logs settings that are usually a mistake.
func (d *daemon) warn() {
	for _, w := range d.life.config.Warnings {
		d.log.Warn(w.Problem, "at", w.At.String(), "remedy", w.Fix)
	}
}

// logListening logs the tunnels that listen. Interception logs its own, and who watches the host those
// that wait for an address.
func (d *daemon) logListening() {
	waits := map[string]bool{}
	for _, t := range d.relay.Standing(nil) {
		waits[t.Name] = t.State == "waiting"
	}
	for _, t := range d.life.config.Tunnels {
		if !t.Intercept.Enabled() && !waits[t.Name] {
			d.log.Info("listening", "tunnel", t.Name, "listen", join(t.Listen), "forward", cmp.Or(t.Service, join(t.Forward), "original"))
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
