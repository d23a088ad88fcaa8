package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/usable"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/sys/loglimit"
	"longhaul/internal/words/remedy"
)

// interception is the part of the host's rules that bring connections to the intercepting tunnels,
// and targets' answers to tunnels that dial from their clients' addresses. A tunnel that
// takes no new flow is paused there: new connections pass the relay.
type interception struct {
	interceptionOptions

	mu      sync.Mutex
	host    ruler
	forward forwardRules
	mirror  *mirror
	wanted  intercept.Options  // of the configuration, without ports
	bypass  map[string]*bypass // tunnels with when_down
	anyPort bool               // flows may be left of other ports than the tunnels'
	inForce intercept.Options
	tunnels []flow.Tunnel      // of the last look, whose room the next one takes
	spare   []intercept.Tunnel // room for what now returns
	err     error              // of the last attempt
	// errSince is since when each attempt has failed.
	errSince time.Time
	seen     atomic.Pointer[hostView]
	retryAt  time.Time
	kept     enforcement
	faults   hostFaults
	wake     chan struct{} // has room for one: there is something to look at
	turn     turn

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

type interceptionOptions struct {
	log    *slog.Logger
	getenv func(string) string
	relay  *relay.Relay
	others func() bool // whether an older process has flows
	// decide lists the relay's tunnels with what is decided of them, see [states.decide]. It takes
	// no lock of this type.
	decide func(into []flow.Tunnel) []flow.Tunnel
	judge  *usable.Judge
	left   intercept.Options // removed tunnels that may still have flows; guarded by mu
	// cleared: the operator has taken the rules back from the process before this one.
	cleared bool
	follows bool // another process still accepts
}

// turn is whose turn it is to set the host's rules.
type turn int

const (
	ourTurn    turn = iota
	theirTurn       // the process before this one still accepts
	heldTurn        // the next process prepares to take over, or has
	endingTurn      // this process takes no new flow
	passedTurn      // the rules let every new connection pass, for good
)

// ruler sets this host's rules.
type ruler interface {
	Check(intercept.Options) error
	Notes(intercept.Options) []error
	ForwardRules(intercept.Options) ([]intercept.ForwardVerdict, error)
	HasRecord(relay string) (bool, error)
	Set(intercept.Options, *intercept.Standing) error
	Missing(intercept.Options, intercept.Look, *intercept.Standing) ([]intercept.Missing, error)
	Restore(intercept.Options, []intercept.Missing, *intercept.Standing) error
	Settings(intercept.Options) ([]error, error)
	Clear(relay string) error
}

const (
	// interceptionBeat is how often the state of the tunnels is compared with the rules.
	interceptionBeat = 100 * time.Millisecond
	// interceptionRetry is the time to the next attempt after a failed one.
	interceptionRetry = time.Second
)

func newInterception(o interceptionOptions) *interception {
	i := &interception{interceptionOptions: o, wake: make(chan struct{}, 1), mirror: &mirror{lines: loglimit.New(o.log), relay: o.relay},
		forward: forwardRules{log: o.log, getenv: o.getenv}, faults: hostFaults{log: o.log}}
	if i.kept.cleared = o.cleared; o.cleared {
		i.kept.since = time.Now()
	}
	if o.follows {
		i.turn = theirTurn
	}
	i.life, i.end = context.WithCancel(context.Background())
	return i
}

// Prepare checks whether this host can have the rules of a configuration.
func (i *interception) Prepare(_ context.Context, p *plan) (Change, error) {
	wanted := InterceptOptions(p.relayName, p.Config)
	host := intercept.NewHost(ledger.OfRelay(i.getenv, p.relayName))
	var verdicts []intercept.ForwardVerdict
	if !wanted.IsEmpty() {
		if p.ControlSocket == config.Off {
			return nil, remedy.New(errors.New("a relay without a control socket has no name for its rules of interception"),
				"remove control_socket: off")
		}
		err := host.Check(wanted)
		if err == nil {
			verdicts, err = i.forward.check(host, wanted, i.succeeds())
		}
		if err != nil {
			return nil, err
		}
	}
	return setting(func() {
		for _, note := range host.Notes(wanted) {
			i.log.Warn(note.Error(), "remedy", remedy.Of(note))
		}
		for _, note := range DeniedTargets(p.Config) {
			i.log.Info(note.Error(), "remedy", remedy.Of(note))
		}
		i.forward.keep(verdicts)
		i.follow(host, wanted, p.Tunnels)
	}), nil
}

// succeeds reports whether another process still accepts.
func (i *interception) succeeds() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.turn == theirTurn
}

// transparentListens are the addresses where an intercepting tunnel listens: one for
// each family of its targets.
func transparentListens(to []netip.Prefix) (all []netip.AddrPort) {
	if slices.ContainsFunc(to, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0))
	}
	if slices.ContainsFunc(to, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		all = append(all, netip.AddrPortFrom(netip.IPv6Loopback(), 0))
	}
	return all
}

// follow puts the tunnels of a configuration into force.
func (i *interception) follow(host ruler, wanted intercept.Options, tunnels []config.Tunnel) {
	i.mu.Lock()
	defer i.unlock()
	if !i.inForce.IsEmpty() {
		i.left = i.inForce
		i.left.Tunnels, i.left.Dialers = slices.Clone(i.inForce.Tunnels), slices.Clone(i.inForce.Dialers)
	}
	i.anyPort = i.anyPort || !i.left.IsEmpty() && !i.left.AnswerPorts
	intercepts, dials := map[string]*intercept.Tunnel{}, map[string]bool{}
	for n := range wanted.Tunnels {
		intercepts[wanted.Tunnels[n].Name] = &wanted.Tunnels[n]
	}
	for _, d := range wanted.Dialers {
		dials[d.Name] = true
	}
	i.left.Tunnels = slices.DeleteFunc(i.left.Tunnels, func(t intercept.Tunnel) bool {
		now := intercepts[t.Name]
		i.anyPort = i.anyPort || now != nil && !slices.Equal(now.Ports, t.Ports)
		return now != nil
	})
	i.left.Dialers = slices.DeleteFunc(i.left.Dialers, func(d intercept.Dialer) bool { return dials[d.Name] })
	i.bypass = bypasses(tunnels, i.bypass)
	idle := i.idle()
	_ = i.findCleared() // the event may be on its way, and the reload is to set the rules again
	i.host, i.wanted, i.retryAt = host, wanted, time.Time{}
	i.beginEnforcing()
	i.refresh()
	i.enforce(everything, "")
	if idle && !i.idle() {
		i.running.Go(i.watch)
	}
}

// idle reports whether there never was a rule, so that nobody watches.
func (i *interception) idle() bool {
	return i.wanted.IsEmpty() && i.left.IsEmpty() && i.inForce.IsEmpty()
}

func (i *interception) isIdle() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.idle()
}

// watch pauses and resumes tunnels with the relay's state.
func (i *interception) watch() {
	beat := time.NewTicker(interceptionBeat)
	defer beat.Stop()
	for {
		select {
		case <-i.life.Done():
			return
		case <-beat.C:
		}
		if i.beat() {
			return
		}
	}
}

// beat is one look of watch, and reports whether it was the last.
func (i *interception) beat() (last bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.refresh() {
		i.publish()
	}
	if i.idle() {
		return true
	}
	if i.turn == heldTurn || i.turn == passedTurn { // the host's rules are another process's business
		return false
	}
	if of, due := i.forward.isDue(time.Now()); due {
		host, wanted := i.host, i.wanted
		i.running.Go(func() {
			i.forward.look(host, wanted, of)
			found, err := host.Settings(wanted)
			i.mu.Lock()
			defer i.unlock()
			i.faults.foundSettings(found, err)
		})
	}
	return false
}

// update is refresh for a change of the relay's state that cannot wait for the watch.
func (i *interception) update() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.refresh() {
		i.publish()
	}
}

// refresh has the host's rules follow the relay, and reports whether the screens have something
// new to show. The caller holds mu.
func (i *interception) refresh() (news bool) {
	if i.turn == heldTurn || i.turn == passedTurn || i.waits() || i.idle() || i.kept.cleared || time.Now().Before(i.retryAt) {
		return false
	}
	if (!i.left.IsEmpty() || i.anyPort) && i.relay.FlowsNow() == 0 && !i.others() {
		i.left, i.anyPort = intercept.Options{}, false
	}
	err := i.mirror.follow(i.wanted.Tunnels)
	next, news, whole := i.now()
	switch {
	case !whole:
		return news
	case err != nil:
	case i.err == nil && next.Equal(i.inForce): // what failed may have set other rules than those
		return news
	default:
		if err = i.findCleared(); i.kept.cleared {
			return true
		}
	}
	switch {
	case err != nil:
	case next.IsEmpty():
		err = i.host.Clear(next.Relay)
	default:
		err = i.host.Set(next, &i.kept.standing)
	}
	if err != nil {
		if i.err == nil || i.err.Error() != err.Error() {
			i.errSince = time.Now()
			i.log.Error("cannot set the rules of interception", "error", err, "remedy", remedy.Of(err))
		}
		i.err, i.retryAt = err, time.Now().Add(interceptionRetry)
		return true
	}
	i.err = nil
	i.mirror.forget(i.wanted.Tunnels)
	i.tell(next)
	i.inForce, i.spare = next, nil
	if i.turn == endingTurn {
		i.turn = passedTurn
	}
	i.kept.set()
	select {
	case i.wake <- struct{}{}:
	default:
	}
	return true
}

// waits reports whether the rules are left to the process that this one follows: the
// connection of a held SYN must come to the process that dialed its target.
func (i *interception) waits() bool {
	return i.turn == theirTurn && slices.ContainsFunc(i.wanted.Tunnels, func(t intercept.Tunnel) bool { return t.Mirror })
}

// begin has the rules follow the relay once no other process accepts.
func (i *interception) begin() {
	i.mu.Lock()
	defer i.unlock()
	i.turn = ourTurn
	i.refresh()
}

// now is what the host's rules should be, until its next call. news: the state of a bypass has
// changed. whole: the relay has all tunnels; while a reload goes on, it may have others than the
// configuration that is followed. The caller holds mu.
func (i *interception) now() (o intercept.Options, news, whole bool) {
	o = i.wanted
	o.Tunnels, o.Dialers = i.spare[:0], append(slices.Clip(o.Dialers), i.left.Dialers...)
	o.AnswerPorts = o.AnswerPorts && !i.anyPort
	i.tunnels = i.decide(i.tunnels)
	whole = true
	at := 0
	for _, t := range i.wanted.Tunnels {
		state := seek(i.tunnels, t.Name, &at)
		whole = whole && state.Name != ""
		for _, at := range state.Listen {
			if at.Addr().Is4() {
				t.ListenPort = at.Port()
			} else {
				t.ListenPort6 = at.Port()
			}
		}
		holds := i.mirror.ports[t.Name]
		t.HoldPort, t.HoldPort6 = holds.four, holds.six
		b := i.bypass[t.Name]
		before := b.reason()
		t.Paused = b.update(&state.Usability, time.Now()) || i.turn == endingTurn
		news = news || b.reason() != before
		switch state.State {
		case "listening":
			t.Paused = t.Paused || state.Usability.Has(flow.ReasonMaxFlows) && b.atLimits()
		case "shedding", "paused":
			t.Paused = t.Paused || b.atLimits()
		default: // by the operator's order
			t.Paused = true
		}
		o.Tunnels = append(o.Tunnels, t)
	}
	for _, t := range i.left.Tunnels {
		t.Paused = true
		o.Tunnels = append(o.Tunnels, t)
	}
	i.spare = o.Tunnels
	return o, news, whole
}

// seek finds a tunnel from at on, where it is in a list of the same order.
func seek(tunnels []flow.Tunnel, name string, at *int) *flow.Tunnel {
	for range tunnels {
		t := &tunnels[*at%len(tunnels)]
		if *at++; t.Name == name {
			return t
		}
	}
	return &flow.Tunnel{}
}

// tell logs which tunnels began or ceased to intercept.
func (i *interception) tell(next intercept.Options) {
	before := map[string]bool{}
	for _, t := range i.inForce.Tunnels {
		before[t.Name] = !t.Paused
	}
	for _, t := range next.Tunnels {
		switch live := !t.Paused; {
		case live && !before[t.Name]:
			i.log.Info("intercepting", "tunnel", t.Name, "interface", t.Interface)
			i.judge.Note(flow.EventInterception, t.Name, "", "intercepting", "")
		case !live && before[t.Name]:
			attrs, reason := []any{"tunnel", t.Name}, i.bypass[t.Name].reason()
			if reason != "" {
				attrs = append(attrs, "reason", reason)
			}
			i.judge.Note(flow.EventInterception, t.Name, "", "passed by", reason)
			i.log.Info("new connections pass the relay", attrs...)
		}
	}
}

// failure returns the error of the last attempt.
func (i *interception) failure() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// stop has every new connection pass, before the relay stops accepting.
func (i *interception) stop() {
	i.mu.Lock()
	defer i.unlock()
	i.turn, i.retryAt = endingTurn, time.Time{}
	i.refresh()
}

// hold leaves the rules as they are while another process prepares to take over, and for
// good once it has. It returns the rules, whose tunnels may have flows, for that process, and
// whether the operator has taken them back. Until that process sets its rules, this one sets
// again what is missing of its own.
func (i *interception) hold() (inForce intercept.Options, cleared bool) {
	i.mu.Lock()
	defer i.unlock()
	_ = i.findCleared() // the event may be on its way
	i.turn = heldTurn
	return i.inForce, i.kept.cleared
}

// reclaim ends a hold after the other process has failed. It may have set rules.
func (i *interception) reclaim() {
	i.mu.Lock()
	defer i.unlock()
	i.turn, i.retryAt, i.kept.yielded = ourTurn, time.Time{}, false
	if !i.inForce.IsEmpty() && !i.kept.cleared {
		i.inForce.Relay = "" // unequal to every other
		i.refresh()
	}
}

// close removes the rules, unless another process has them.
func (i *interception) close() {
	i.end()
	i.running.Wait()
	i.mu.Lock()
	defer i.unlock()
	defer i.mirror.close()
	if i.turn == heldTurn || i.inForce.IsEmpty() && i.err == nil {
		return
	}
	if err := i.host.Clear(i.wanted.Relay); err != nil {
		i.log.Error("cannot remove the rules of interception", "error", err, "remedy", "run longhaul intercept clear")
	}
}
