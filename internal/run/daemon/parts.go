package daemon

import (
	"context"
	"slices"

	"longhaul/internal/carry/relay"
	"longhaul/internal/run/config"
)

// plan is the configuration that the parts prepare, with what the parts before have made of it.
type plan struct {
	*config.Config
	relayName string         // in the ledger of changes
	tunnels   []relay.Tunnel // of the configuration, in its order
	onlyHops  bool           // only hops of services differ from what is in force: files are not read again
	back      bool           // to a configuration that was in force before
	dryRun    bool           // leave out what Abort would not undo
}

// part is a component that a configuration sets up.
type part interface {
	// Prepare does the steps that can fail: it reads files and binds addresses. The
	// settings in force stay. After an error nothing is left behind. The control
	// socket alone answers before Commit.
	Prepare(ctx context.Context, p *plan) (Change, error)
}

// Change is a prepared change of a part. It ends by Commit or Abort.
type Change interface {
	// Commit puts the change into force.
	Commit()
	// Abort undoes Prepare.
	Abort()
}

// attempt is a change that can fail until the end. It is tried before any change is committed, so that its
// error leaves all as it was.
type attempt interface {
	Change
	// Try does what can fail of Commit, which follows, or Abort. After an error it has aborted itself.
	// That of the first attempt has nothing to follow but Commit: attempts are tried from the last one.
	Try() error
}

// list is the order in which parts are prepared and committed, at the start and at reloads. The leading ones
// are those of the tunnels' hops.
func (d *daemon) list(activated []inheritedSocket) (leading, all []part) {
	leading = []part{
		lookBack{d.keeper}, // first, so that it is aborted last
		d.discovery,        // the others see its hops as those of the configuration
		// Each of these completes the tunnels that the first one makes, and the relay takes them.
		d.legs,
		d.integrity, // after the legs: a check dials as they do
		&activatedSockets{activated},
		d.pairs, // likewise
		relayTunnels{d.relay},
	}
	return leading, append(slices.Clone(leading),
		d.rules,             // once the relay listens where the rules lead
		hostWatch{d.keeper}, // after the rules, which it watches
		d.shedder,
		d.history,
		sampling{d.ended.monitor}, // once the history takes records, and before a server shows samples
		d.http,
		d.health,
		d.pages, // after the history, which it reads
		d.control,
		d.output,
		secondLook{d.keeper}, // last: at what the others could not have at once
	)
}

// changes are the changes of several parts.
type changes []Change

// prepare prepares every part for a configuration, in their order, or none.
func prepare(ctx context.Context, parts []part, p *plan) (changes, error) {
	var all changes
	for _, one := range parts {
		change, err := one.Prepare(ctx, p)
		if err != nil {
			all.Abort()
			return nil, err
		}
		all = append(all, change)
	}
	return all, nil
}

// Commit commits in the order of the parts, or returns the error of an attempt and has aborted all.
func (all changes) Commit() error {
	for i, one := range slices.Backward(all) {
		if a, ok := one.(attempt); ok {
			if err := a.Try(); err != nil {
				slices.Delete(slices.Clone(all), i, i+1).Abort()
				return err
			}
		}
	}
	for _, one := range all {
		one.Commit()
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
func change(ctx context.Context, parts []part, p *plan) error {
	all, err := prepare(ctx, parts, p)
	if err != nil {
		return err
	}
	return all.Commit()
}

// setting is a change that needs no preparation.
type setting func()

func (s setting) Commit() { s() }
func (s setting) Abort()  {}
