package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/relays"
)

// The path and the relays of the soak.
const (
	soakRTT     = 50 * time.Millisecond
	soakRateBps = 200e6
	soakResume  = 20 * time.Second
	// soakConnect is connect_timeout: longer than any fault but an outage in which a client finds
	// no lane.
	soakConnect = 10 * time.Second
	// soakMemory leaves the stores of all flows a quarter, which a few of the greedy
	// flows fill.
	soakMemory = "256MiB"

	// unnoticed is for how long after its return a relay that was killed, or a path
	// that was longer away than resume, may still cost a flow.
	unnoticed  = 4 * time.Second
	leftWithin = soakResume + 10*time.Second
)

// soaking is a soak that runs.
type soaking struct {
	w    *world
	c    *crowd
	seed uint64

	relayFault  sync.Mutex // held by what happens to a relay
	address     netip.Addr // of the near site on the WAN; zero: the first one
	readdressed int

	mu     sync.Mutex
	spells []spell
	counts map[string]int
	broken map[string]*breach // by rule
	flows  int
	bytes  int64
	spared int // flows cut by a fault that may cut them
	peak   int64
}

// spell is the time of a fault.
type spell struct {
	from, to time.Time // to is zero while it lasts
	deadly   bool      // flows may be cut
	name     string
}

// breach counts what broke a rule.
type breach struct {
	count   int
	example string
}

// The rules of the soak, as the names of its figures.
const (
	ruleConnect = "connects refused"
	ruleCut     = "flows cut by no fault"
	ruleHang    = "flows that hang"
	ruleWrong   = "flows with wrong bytes or ends"
	ruleLost    = "flows with bytes lost or doubled"
	ruleTwice   = "flows twice at the target, or a stranger's"
	ruleRefuse  = "refusals that looked otherwise"
	ruleLeft    = "relays with flows left"
)

var soakRules = []string{ruleConnect, ruleCut, ruleHang, ruleWrong, ruleLost, ruleTwice, ruleRefuse, ruleLeft}

// soak has everything happen to a pair at random moments under a crowd whose every byte
// is compared.
func soak(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	s := &soaking{seed: o.SeedOf(run), counts: map[string]int{}, broken: map[string]*breach{}}
	s.c = newCrowd(crowdOptions{
		flows: kit.Pick(o, 120, 40), opening: kit.Pick(o, 2*time.Second, 200*time.Millisecond), minLife: 100 * time.Millisecond, maxLife: 40 * time.Second, pace: steady, seed: s.seed,
		plan: soakPlan, ended: s.ended, refused: s.refused,
	})
	w, err := buildWorld(ctx, o, lab.TwoSites(conditions(soakRTT, soakRateBps)), way, s.c.serve, settings{
		process: fmt.Sprintf("memory_limit: %s\ndefaults: {connect_timeout: %v}", soakMemory, soakConnect), pair: fmt.Sprintf(", resume: %v", soakResume), tunnels: refusedTunnel + 1,
	})
	if err != nil {
		return err
	}
	s.w = w
	if err := s.c.gather(ctx, w); err != nil {
		return err
	}
	defer w.close()
	if err := s.trouble(ctx, o.Time); err != nil {
		return w.Explain(err)
	}
	s.c.finish()
	if err := s.left(ctx); err != nil {
		return w.Explain(err)
	}
	s.figures(note)
	return ctx.Err()
}

// soakPlan chooses what a flow is like.
func soakPlan(dice *rand.Rand) (m manners) {
	p := pace{every: 200 * time.Millisecond, bytes: 1000}
	switch n := dice.IntN(20); {
	case n < 4: // greedy
		p = pace{every: 20 * time.Millisecond, bytes: 8000}
	case n < 6: // it is parked meanwhile
		p = pace{every: 45 * time.Second, bytes: 1000}
	}
	m.client.pace, m.target.pace = p, p
	switch dice.IntN(10) {
	case 0, 1:
		m.client.reset = true
	case 2, 3:
		m.target.reset = true
	}
	switch stall := time.Duration(dice.Int64N(int64(15 * time.Second))); dice.IntN(8) {
	case 0:
		m.client.stall = stall
	case 1:
		m.target.stall = stall
	}
	return m
}

// begin notes the begin of a fault, and returns what notes its end.
func (s *soaking) begin(name string, deadly bool) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[name]++
	at := len(s.spells)
	s.spells = append(s.spells, spell{from: time.Now(), deadly: deadly, name: name})
	if deadly {
		s.w.Report.Linef("  %s: %s", time.Now().Format(clock), name)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.spells[at].to = time.Now()
	}
}

// mayCut reports whether a fault may have cut a flow that lived from one moment to
// another. What a deadly fault has done is noticed when the path is whole.
func mayCut(spells []spell, from, to time.Time) bool {
	for _, s := range spells {
		if s.deadly && s.from.Before(to) && (s.to.IsZero() || from.Before(noticed(spells, s))) {
			return true
		}
	}
	return false
}

// noticed is when the relays have noticed a fault.
func noticed(spells []spell, s spell) time.Time {
	at := s.to.Add(unnoticed)
	for _, other := range spells { // in the order of their beginnings
		if other.from.After(at) {
			break
		}
		if other.to.IsZero() {
			return time.Now()
		}
		if end := other.to.Add(unnoticed); other.to.After(s.to) && end.After(at) {
			at = end
		}
	}
	return at
}

// breaks notes what broke a rule.
func (s *soaking) breaks(rule, format string, args ...any) {
	b := s.broken[rule]
	if b == nil {
		b = &breach{example: fmt.Sprintf(format, args...)}
		s.broken[rule] = b
	}
	b.count++
	s.w.Report.Linef("  %s: %s: %s", time.Now().Format(clock), rule, fmt.Sprintf(format, args...))
}

// ended judges a flow that is done.
func (s *soaking) ended(f *flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows++
	s.bytes += f.client.got + f.target.got
	mayCut := mayCut(s.spells, f.began, f.done)
	rule, what := judge(f, mayCut)
	if rule == "" {
		if what != "" {
			s.spared++
		}
		return
	}
	s.breaks(rule, "flow %d of %s, %s to %s: %s; %s; it met %s", f.number, f.local, f.began.Format(clock), f.done.Format(clock), what, s.said(f), s.met(f))
}

// said is what the near relay's log says of a flow's end.
func (s *soaking) said(f *flow) string {
	lines := s.w.heard("client=" + f.local + " ")
	if len(lines) == 0 {
		return "the near relay says nothing"
	}
	last := lines[len(lines)-1]
	if _, end, found := strings.Cut(last, " end="); found {
		last = end
	}
	return "the near relay says " + last
}

// met lists the faults that a flow met, with their times since its beginning.
func (s *soaking) met(f *flow) string {
	var all []string
	for _, spell := range s.spells {
		if spell.from.After(f.done) || !spell.to.IsZero() && spell.to.Add(unnoticed).Before(f.began) || strings.HasPrefix(spell.name, "strangers") {
			continue
		}
		to := "now"
		if !spell.to.IsZero() {
			to = fmt.Sprintf("%+.3f s", spell.to.Sub(f.began).Seconds())
		}
		all = append(all, fmt.Sprintf("%s from %+.3f s to %s", spell.name, spell.from.Sub(f.began).Seconds(), to))
	}
	return strings.Join(all, ", ")
}

// judge returns the rule that a flow breaks, "" if none, and what happened to it.
func judge(f *flow, mayCut bool) (rule, what string) {
	sides := [2]*side{&f.client, &f.target}
	names := [2]string{"client", "target"}
	for i, me := range sides {
		peer := sides[1-i]
		switch {
		case errors.Is(me.err, errWrong):
			return ruleWrong, fmt.Sprintf("%s: %v", names[i], me.err)
		case me.cleanEnd() && !peer.ended:
			return ruleWrong, fmt.Sprintf("the %s sees a clean end of a stream that had none", names[i])
		case me.cleanEnd() && me.got != peer.sent:
			return ruleLost, fmt.Sprintf("the %s has got %d bytes of %d", names[i], me.got, peer.sent)
		case me.got > peer.sent:
			return ruleLost, fmt.Sprintf("the %s has got %d bytes of %d", names[i], me.got, peer.sent)
		case errors.Is(me.err, os.ErrDeadlineExceeded):
			return ruleHang, fmt.Sprintf("%s: %v", names[i], me.err)
		}
	}
	for i, me := range sides {
		peer := sides[1-i]
		if me.err == nil || !peer.left.IsZero() && peer.left.Before(me.failedAt) {
			continue
		}
		what := fmt.Sprintf("%s at %s: %v", names[i], me.failedAt.Format(clock), me.err)
		if mayCut {
			return "", what
		}
		return ruleCut, what
	}
	return "", ""
}

// refused judges a connect that failed.
func (s *soaking) refused(began time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !mayCut(s.spells, began, time.Now()) {
		s.breaks(ruleConnect, "%v", err)
	}
}

// tryRefused connects again and again to a target that refuses.
func (s *soaking) tryRefused(ctx context.Context, _ *rand.Rand) error {
	at := netip.AddrPortFrom(lab.RelayA, port+refusedTunnel)
	for kit.Pause(ctx, time.Second/2) == nil {
		began := time.Now()
		conn, err := s.w.Host("host-a").DialTCP(ctx, at, patience)
		if err != nil {
			// The reset may come before the program has looked at its connection.
			if !over(ctx) && !errors.Is(err, unix.ECONNRESET) {
				s.refused(began, err)
			}
			continue
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		_ = conn.SetDeadline(began.Add(2 * patience))
		n, err := conn.Read(make([]byte, 1))
		if !over(ctx) && (n > 0 || err == io.EOF || errors.Is(err, os.ErrDeadlineExceeded)) {
			s.mu.Lock()
			s.breaks(ruleRefuse, "%d bytes, %v", n, err)
			s.mu.Unlock()
		}
		stop()
		conn.Close()
	}
	return nil
}

// over reports whether the time of ctx is over. A dial may say so a moment before ctx does.
func over(ctx context.Context) bool {
	until, bounded := ctx.Deadline()
	return ctx.Err() != nil || bounded && !time.Now().Before(until)
}

// left waits until the relays have no flows any more.
func (s *soaking) left(ctx context.Context) error {
	for _, r := range s.w.Relays {
		var status relays.Status
		for until := time.Now().Add(leftWithin); ; {
			var err error
			if status, err = r.Status(ctx); err != nil {
				return err
			}
			if status.FlowsNow == 0 || time.Now().After(until) {
				break
			}
			if err := kit.Pause(ctx, time.Second/4); err != nil {
				return err
			}
		}
		if status.FlowsNow > 0 {
			s.mu.Lock()
			s.breaks(ruleLeft, "%s has %d", r.Name, status.FlowsNow)
			s.mu.Unlock()
		}
	}
	return nil
}

// watch keeps the most memory that a relay had, and reports how far the soak is.
func (s *soaking) watch(ctx context.Context, _ *rand.Rand) error {
	began := time.Now()
	until, _ := ctx.Deadline()
	for kit.Pause(ctx, time.Second) == nil {
		for _, r := range s.w.Relays {
			status, err := r.Status(ctx)
			s.mu.Lock()
			if err == nil { // it may be dead at the moment
				s.peak = max(s.peak, status.Process.ResidentBytes)
			}
			s.mu.Unlock()
		}
		s.mu.Lock()
		s.w.Report.Passing(int(time.Since(began).Seconds()), int(until.Sub(began).Seconds()), "soak: %d flows, %d faults, %d rules broken",
			s.flows, len(s.spells), len(s.broken))
		s.mu.Unlock()
	}
	return nil
}

func (s *soaking) figures(note func(kit.Measured)) {
	twice := s.c.doubled()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range twice {
		s.breaks(ruleTwice, "%s", one)
	}
	note(kit.Measured{Name: "flows", Value: float64(s.flows)})
	note(kit.Measured{Name: "bytes compared, GB", Value: float64(s.bytes) / 1e9})
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		note(kit.Measured{Name: name, Value: float64(s.counts[name])})
	}
	note(kit.Measured{Name: "flows cut by a death or a long outage", Value: float64(s.spared)})
	note(kit.Measured{Name: "memory of a relay, most", Unit: "MB", Value: float64(s.peak) / 1e6})
	for _, rule := range soakRules {
		m := kit.Measured{Name: rule, Bound: kit.AtMost(0), Exact: true}
		if b := s.broken[rule]; b != nil {
			m.Value, m.Example = float64(b.count), b.example
		}
		note(m)
	}
}
