package daemon

import (
	"context"
	"slices"

	"longhaul/internal/config"
	"longhaul/internal/relay"
)

// part is one of the things that a configuration sets up.
type part interface {
	// Prepare makes ready what the configuration asks for, as far as that can
	// fail: files are read, addresses are bound. What is in force stays so. An
	// error leaves nothing behind.
	Prepare(ctx context.Context, c *config.Config) (Change, error)
}

// Change is what a part has made ready. It ends by Commit or Abort.
type Change interface {
	// Commit puts it into force. After an error it is aborted. Only the first
	// part of the daemon's list returns errors.
	Commit() error
	// Abort gives up what was made ready.
	Abort()
}

// changes are those of several parts.
type changes []Change

// prepare has every part make ready for a configuration, or none.
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

// Commit commits in the order of the parts, as far as the first error.
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

// setting is a change that nothing has to be made ready for.
type setting func()

func (s setting) Commit() error { s(); return nil }
func (s setting) Abort()        {}

// tunnelsPart is the relay's tunnels, with the transports of their legs and
// their checks.
type tunnelsPart struct{ *daemon }

func (d tunnelsPart) Prepare(ctx context.Context, c *config.Config) (Change, error) {
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
	prepared, err := d.relay.Prepare(tunnels)
	if err != nil {
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
		return err
	}
	c.daemon.relay.SetMemoryLimit(c.memoryLimitBytes)
	c.legs.keep()
	c.integrity.keep()
	for _, s := range c.activated {
		s.file.Close() // the relay has its own descriptors of them
	}
	c.activated = nil
	return nil
}

func (c *tunnelsChange) Abort() { c.relay.Abort() }

// limitsPart is the limits at which new flows are shed.
type limitsPart struct{ *daemon }

func (d limitsPart) Prepare(_ context.Context, c *config.Config) (Change, error) {
	return setting(func() { d.shedder.setLimits(c.Limits) }), nil
}

// monitorPart is the monitor. Its first sample is there before anything is served.
type monitorPart struct{ *daemon }

func (d monitorPart) Prepare(context.Context, *config.Config) (Change, error) {
	return setting(func() {
		if monitoring {
			d.monitor.Start()
		}
	}), nil
}

// historyPart is the records of ended flows. Errors of its file are logged and
// shown by status: they end neither the relay nor a reload.
type historyPart struct{ *daemon }

func (d historyPart) Prepare(_ context.Context, c *config.Config) (Change, error) {
	return setting(func() { d.history.apply(c.History) }), nil
}

// httpPart is health checks and metrics at http_listen.
type httpPart struct{ *daemon }

func (d httpPart) Prepare(ctx context.Context, c *config.Config) (Change, error) {
	sites, err := d.http.prepare(ctx, c.HTTPListen)
	if err != nil {
		return nil, err
	}
	return changes{sites, setting(func() { d.names.set(c.HTTPNames) })}, nil
}

// dashboardPart is the dashboard. The history is committed before it.
type dashboardPart struct{ *daemon }

func (d dashboardPart) Prepare(ctx context.Context, c *config.Config) (Change, error) {
	pages, err := d.pages.prepare(ctx, c.Dashboard)
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
