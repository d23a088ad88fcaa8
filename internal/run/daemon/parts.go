package daemon

import (
	"context"
	"slices"

	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/usable"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/ledger"
)

// part is a component that a configuration sets up.
type part interface {
	// Prepare does the steps that can fail: it reads files and binds addresses. The
	// settings in force stay. After an error nothing is left behind. The control
	// socket alone answers before Commit.
	Prepare(ctx context.Context, c *config.Config) (Change, error)
}

// Change is a prepared change of a part. It ends by Commit or Abort.
type Change interface {
	// Commit puts the change into force. A change that returns an error has
	// aborted itself. Only the first part of the daemon's list returns errors.
	Commit() error
	// Abort undoes Prepare.
	Abort()
}

// changes are the changes of several parts.
type changes []Change

// prepare prepares every part for a configuration, or none.
func prepare(ctx context.Context, parts []part, c *config.Config) (changes, error) {
	var all changes
	for _, p := range parts {
		one, err := p.Prepare(ctx, c)
		if err != nil {
			all.Abort()
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// Commit commits in the order of the parts, until the first error.
func (all changes) Commit() error {
	for i, one := range all {
		if err := one.Commit(); err != nil {
			all[i+1:].Abort()
			return err
		}
	}
	return nil
}

// Abort aborts in the opposite order.
func (all changes) Abort() {
	for _, one := range slices.Backward(all) {
		one.Abort()
	}
}

// change puts a configuration into force, or changes nothing.
func change(ctx context.Context, parts []part, c *config.Config) error {
	all, err := prepare(ctx, parts, c)
	if err != nil {
		return err
	}
	return all.Commit()
}

// setting is a change that needs no preparation.
type setting func()

func (s setting) Commit() error { s(); return nil }
func (s setting) Abort()        {}

// tunnelsPart is the relay's tunnels, with the transports of their legs, their
// checks and their pairs.
type tunnelsPart struct{ *daemon }

func (d tunnelsPart) Prepare(ctx context.Context, c *config.Config) (Change, error) {
	d.legs.budgets.host.By = ledger.OfRelay(d.Getenv, d.nameOf(c))
	loadNamedCC(ctx, d.legs.budgets.host, c, d.log)
	tunnels, err := d.legs.translate(c)
	if err != nil {
		return nil, err
	}
	if err := d.integrity.equip(c, tunnels); err != nil {
		return nil, err
	}
	activated, err := matchSockets(d.activated, c.Tunnels)
	if err != nil {
		return nil, err
	}
	for i := range tunnels {
		tunnels[i].Inherited = activated[tunnels[i].Name]
	}
	if err := d.pairs.equip(c, tunnels); err != nil {
		d.pairs.abandon()
		return nil, err
	}
	prepared, err := d.relay.Prepare(tunnels)
	if err != nil {
		d.pairs.abandon()
		return nil, err
	}
	return &tunnelsChange{d.daemon, prepared, int64(c.MemoryLimit)}, nil
}

type tunnelsChange struct {
	*daemon
	relay            *relay.Change
	memoryLimitBytes int64
}

func (c *tunnelsChange) Commit() error {
	if err := c.relay.Commit(); err != nil {
		c.pairs.abandon()
		return err
	}
	c.daemon.relay.SetMemoryLimit(c.memoryLimitBytes)
	c.legs.keep()
	c.integrity.keep()
	c.pairs.keep(c.memoryLimitBytes)
	for _, s := range c.activated {
		s.file.Close() // the relay has its own descriptors of them
	}
	c.activated = nil
	return nil
}

func (c *tunnelsChange) Abort() {
	c.relay.Abort()
	c.pairs.abandon()
}

// limitsPart is the limits above which new flows are shed.
type limitsPart struct{ *daemon }

func (d limitsPart) Prepare(_ context.Context, c *config.Config) (Change, error) {
	return setting(func() {
		d.shedder.setLimits(c.Limits)
		d.shedder.monitor.BoundRuntime(runtimeBound(int64(c.MemoryLimit)))
	}), nil
}

// monitorPart is the monitor. It takes its first sample after the history is
// ready for records, and before any server starts.
type monitorPart struct{ *daemon }

func (d monitorPart) Prepare(context.Context, *config.Config) (Change, error) {
	return setting(func() {
		if monitors() {
			d.monitor.Start()
		}
	}), nil
}

// historyPart is the records of ended flows. The log and status report errors of its
// file. They end neither the relay nor a reload.
type historyPart struct{ *daemon }

func (d historyPart) Prepare(_ context.Context, c *config.Config) (Change, error) {
	return setting(func() {
		first := d.history.state() == nil
		d.history.apply(c.History)
		if first && d.inherited.States.Events == nil {
			d.history.closing.Go(func() { // the disk may be slow
				d.judge.Remember(usable.Memory{Events: d.history.events(usable.MaxEvents)})
			})
		}
	}), nil
}

// hostPart comes last: it has the host looked at for what the other parts could not have at once.
type hostPart struct{ *daemon }

func (d hostPart) Prepare(context.Context, *config.Config) (Change, error) {
	return setting(d.keeper.lookSoon), nil
}

// httpPart serves health checks and metrics at http_listen.
type httpPart struct{ *daemon }

func (d httpPart) Prepare(ctx context.Context, c *config.Config) (Change, error) {
	sites, err := d.http.prepare(ctx, c.HTTPListen)
	if err != nil {
		return nil, err
	}
	return changes{setting(func() { d.names.set(c.HTTPNames) }), sites}, nil
}

// dashboardPart is the dashboard. The history is committed before it.
type dashboardPart struct{ *daemon }

func (d dashboardPart) Prepare(ctx context.Context, c *config.Config) (Change, error) {
	settings := c.Dashboard
	for _, file := range []*string{&settings.TLSCert, &settings.TLSKey, &settings.TokenFile} {
		if *file != "" {
			*file = d.ReadablePath(*file)
		}
	}
	pages, err := d.pages.prepare(ctx, settings)
	if err != nil {
		return nil, err
	}
	return changes{setting(func() { d.pages.readHistory(d.history.state()) }), pages}, nil
}

// logPart is the level of the log.
type logPart struct{ *daemon }

func (d logPart) Prepare(_ context.Context, c *config.Config) (Change, error) {
	return setting(func() { d.setLevel(c.Log.Level) }), nil
}
