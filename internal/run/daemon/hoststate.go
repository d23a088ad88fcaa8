package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"longhaul/internal/carry/intercept"
	"longhaul/internal/carry/relay"
	"longhaul/internal/sys/hostevents"
	"longhaul/internal/words/remedy"
)

// hostKeeper holds this host to what the configuration wants of it, as long as the relay
// runs: after each change of the host, the rules of interception and the listeners are looked
// at.
type hostKeeper struct {
	log   *slog.Logger
	rules *interception
	relay *relay.Relay
	sites []*httpSite // that listen on addresses of this host

	mu      sync.Mutex
	watch   *hostevents.Watch
	table   string        // of nftables, which watch has
	blind   bool          // there is no watch, and the log says so
	soon    chan struct{} // has the addresses looked at
	end     chan struct{}
	running sync.WaitGroup
}

const (
	// blindBeat is how often a relay looks at a host that does not say what has changed.
	blindBeat = 10 * time.Second
	// listenAgain is the time to the next attempt to listen where another program listens.
	listenAgain = time.Second
)

func newHostKeeper(log *slog.Logger, rules *interception, relay *relay.Relay, sites ...*httpSite) *hostKeeper {
	return &hostKeeper{log: log, rules: rules, relay: relay, sites: sites, soon: make(chan struct{}, 1)}
}

// hostWatch is the part that has the keeper watch what a configuration needs.
type hostWatch struct{ *hostKeeper }

func (w hostWatch) Prepare(_ context.Context, p *plan) (Change, error) {
	return setting(func() {
		table := ""
		if !w.rules.isIdle() {
			table = intercept.TableOf(p.relayName)
		}
		w.follow(table)
	}), nil
}

// secondLook is the part that has the addresses looked at again: what a configuration could not have at
// once is tried again.
type secondLook struct{ *hostKeeper }

func (s secondLook) Prepare(context.Context, *plan) (Change, error) {
	return setting(s.lookSoon), nil
}

// lookBack is the part that looks at the addresses after a change that failed: an attempt may have taken
// some that are wanted again.
type lookBack struct{ *hostKeeper }

func (l lookBack) Prepare(context.Context, *plan) (Change, error) { return l, nil }

func (l lookBack) Commit() {}

// Abort looks at once, and has the keeper go on until all are served.
func (l lookBack) Abort() {
	if l.lookAtListeners() {
		l.lookSoon()
	}
}

// lookSoon has the addresses looked at again.
func (k *hostKeeper) lookSoon() {
	select {
	case k.soon <- struct{}{}:
	default:
	}
}

// follow watches what a configuration needs, with the table of nftables of that name if there is
// one.
func (k *hostKeeper) follow(table string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lookAtListeners() // of the configuration
	if k.end != nil && k.table == table {
		return
	}
	k.stop()
	watch, err := hostevents.Open(hostevents.Options{Table: table, Own: intercept.OwnPort})
	if err != nil && !k.blind {
		k.blind = true
		k.log.Warn("cannot see changes of this host, so it is looked at every ten seconds", "error", err)
	}
	k.watch, k.table, k.end = watch, table, make(chan struct{})
	end := k.end
	k.running.Go(func() { k.run(watch, end) })
}

// run looks at the host at first, since it may have changed before there was a watch, and then
// after each change.
func (k *hostKeeper) run(watch *hostevents.Watch, end <-chan struct{}) {
	var changes <-chan struct{}
	if watch != nil {
		changes = watch.C
	}
	seen := hostevents.Seen{Lost: true}
	var look, again bool
	var lookAt time.Time // not before
	var looks pace
	for {
		k.rules.changed(seen)
		look = look || seen.Links || seen.Addresses || seen.Lost
		if now := time.Now(); look && !now.Before(lookAt) {
			look, again = false, k.lookAtListeners()
			looks.took(time.Since(now), now)
			if lookAt = looks.at; again {
				look, lookAt = true, now.Add(listenAgain)
			}
		}
		wake := time.Hour
		if watch == nil {
			wake = blindBeat
		}
		if look {
			wake = min(wake, max(0, time.Until(lookAt)))
		}
		if due := k.rules.due(); !due.IsZero() {
			wake = min(wake, max(0, time.Until(due)))
		}
		timer := time.NewTimer(wake)
		seen = hostevents.Seen{}
		select {
		case <-end:
			timer.Stop()
			return
		case <-timer.C:
			seen.Lost = watch == nil
		case <-k.soon:
			look = true
		case <-k.rules.wake:
		case <-changes:
			seen = watch.Take()
		}
		timer.Stop()
	}
}

// lookAtListeners logs which listening addresses have gone or come, of tunnels and of HTTP. again:
// not all of them could be looked at.
func (k *hostKeeper) lookAtListeners() (again bool) {
	changes, again := k.relay.LookAtListeners()
	for _, c := range changes {
		switch {
		case c.Err != nil:
			k.log.Error("cannot listen at an address that has come", "tunnel", c.Tunnel, "listen", c.Listen.String(), "error", remedy.Line(c.Err))
		case c.Absent != "":
			k.log.Warn("waiting for a listening address, the relay serves without it", "tunnel", c.Tunnel, "listen", c.Listen.String(),
				"reason", c.Absent, "remedy", relay.AbsenceFix)
		default:
			k.log.Info("the listening address has come", "tunnel", c.Tunnel, "listen", c.Listen.String())
		}
	}
	for _, w := range k.sites {
		again = w.look() || again
	}
	return again
}

// stop ends the watch. The caller holds mu.
func (k *hostKeeper) stop() {
	if k.end == nil {
		return
	}
	close(k.end)
	k.running.Wait()
	if k.watch != nil {
		k.watch.Close()
	}
	k.end, k.watch = nil, nil
}

func (k *hostKeeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop()
}

// pace bounds the time that looking at the host takes: one part in lookShare, after some looks
// at once. A look is put off by maxPace at the most.
type pace struct {
	debt time.Duration // of looks, not yet paid
	paid time.Time     // until when
	at   time.Time     // of the next look, not before
}

const (
	lookShare = 200
	// lookCredit is the time of looks that need no pause.
	lookCredit = 100 * time.Millisecond
	maxPace    = 500 * time.Millisecond
)

// took notes a look that began then.
func (p *pace) took(lasted time.Duration, began time.Time) {
	if !p.paid.IsZero() {
		p.debt = max(0, p.debt-began.Sub(p.paid)/lookShare)
	}
	p.paid = began
	p.debt += lasted
	p.at = began.Add(lasted)
	if over := p.debt - lookCredit; over > 0 {
		p.at = p.at.Add(min(maxPace, over*lookShare))
	}
}
