//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

// Options are the options of Run.
type Options struct {
	Seed     uint64
	Scripts  uint64 // how many, from number 1 on
	Only     uint64 // the number of a single script; 0: all
	Relays   []int  // how many relays, each a way of its own; 0 is none, to hold the rule against the kernel
	Through  []string
	Outages  bool          // of the WANs between paired relays
	Upgrades bool          // of the paired relays
	RTT      time.Duration // of each of these WANs; 0: the usual
	Repeat   int           // runs of each script; 0: one
	Lanes    int           // scripts at a time; 0: the usual
	Program  string        // the longhaul binary
	Report   progress.Reporter
}

const (
	usualLanes = 16
	waitLanes  = 32 // the usual with outages or a long path, for which they wait
	// upgradeLanes is the usual with upgrades and deaths, each of which sets up sessions for each lane.
	upgradeLanes = 8
	maxRTT       = 2 * time.Second
	maxLanes     = 256
	mostRelays   = 8
	scriptTime   = 20 * time.Second // in which a script must end; without a relay the slowest take 1 s
	foreignTime  = 3 * time.Second  // the same through another program
)

// Check refuses options that make no sense.
func (o *Options) Check() error {
	for _, n := range o.Relays {
		if n < 0 || n > mostRelays {
			return fmt.Errorf("--relays %d: choose 0 to %d", n, mostRelays)
		}
	}
	for _, name := range o.Through {
		mode, paired := pairModes[name]
		if !slices.Contains(programNames(), name) {
			return fmt.Errorf("--through %s: no program of that name: choose from %s", name, ProgramNames())
		}
		if mode.hops && o.Upgrades {
			return fmt.Errorf("--upgrades: the relays of %s die instead", name)
		}
		if o.Outages && (!paired || mode.mortal) {
			return fmt.Errorf("--outages: %s has no WAN, or does not outlive its outages", name)
		}
		if !paired && (o.Upgrades || o.RTT != 0) {
			return fmt.Errorf("--upgrades, --rtt: %s is no pair: choose from %s", name, strings.Join(pairNames(), ", "))
		}
	}
	switch {
	case o.Scripts < 1:
		return errors.New("--scripts 0: choose 1 or more")
	case o.Repeat < 0:
		return fmt.Errorf("--repeat %d: choose 1 or more", o.Repeat)
	case o.Outages && len(o.Through) == 0:
		return fmt.Errorf("--outages: add --through with a pair that outlives them: choose from %s", strings.Join(lastingNames(), ", "))
	case (o.Upgrades || o.RTT != 0) && len(o.Through) == 0:
		return fmt.Errorf("--upgrades, --rtt: add --through with a pair: choose from %s", strings.Join(pairNames(), ", "))
	case o.RTT < 0 || o.RTT > maxRTT:
		return fmt.Errorf("--rtt %v: choose 1us to %v", o.RTT, maxRTT)
	case o.Lanes < 0 || o.Lanes > maxLanes:
		return fmt.Errorf("--parallel %d: choose 1 to %d", o.Lanes, maxLanes)
	case len(o.Relays)+len(o.Through) == 0:
		return errors.New("no way to run the scripts: give --relays or --through")
	}
	return nil
}

// Result is the result of Run.
type Result struct {
	Seed           uint64  `json:"seed"`
	Scripts        uint64  `json:"scripts"`
	Seconds        float64 `json:"seconds"`
	ScriptsPerHour float64 `json:"scripts_per_hour"` // through all ways, and over a direct connection
	Ways           []Way   `json:"ways"`
}

// Violations counts what direct TCP does not allow, of the program's own relays.
func (r *Result) Violations() (n int) {
	for _, w := range r.Ways {
		if !w.Foreign {
			n += w.Violations
		}
	}
	return n
}

// Way is the result of one way from a client to its target.
type Way struct {
	Name       string       `json:"name"`
	Foreign    bool         `json:"foreign"` // another program's
	Scripts    int          `json:"scripts"`
	Violations int          `json:"violations"`
	Kinds      map[Kind]int `json:"kinds,omitempty"`
	Findings   []Finding    `json:"findings,omitempty"` // the first of each kind
	Faults     string       `json:"faults,omitempty"`   // of the WAN, counted
	Met        int          `json:"met,omitempty"`      // scripts during which there was one
	Upgrades   string       `json:"upgrades,omitempty"` // of the relays, counted
	Upgraded   int          `json:"upgraded,omitempty"` // scripts during which there was one
	Deaths     string       `json:"deaths,omitempty"`   // of far relays, counted
	Bereft     int          `json:"bereft,omitempty"`   // scripts during which there was one
	Cut        int          `json:"cut,omitempty"`      // of these, reset with a reason
	Late       int          `json:"late,omitempty"`     // of these, reset at the target alone, whose bytes had been acknowledged
	Again      int          `json:"again,omitempty"`    // runs whose target had a connection that its flow left
	Slowest    float64      `json:"slowest_seconds"`    // script that met none of both
}

// Finding is a script that broke the rule, and the shortest that does.
type Finding struct {
	Kind     Kind   `json:"kind"`
	Script   uint64 `json:"script"`
	Text     string `json:"text"`
	Shortest string `json:"shortest"`
	Says     string `json:"says"` // what the shortest breaks
	Broke    int    `json:"broke"`
	Of       int    `json:"of"` // runs of the shortest
	Command  string `json:"command"`
}

// way is how scripts get from a client to its target.
type way struct {
	name        string
	flag        string // of the command
	foreign     bool
	sameAddress bool // the target sees the client's address and port
	mirrors     bool // a refusal is that of direct TCP
	route       func(l *lane, i int, s *Script) (route, func(), error)

	within     time.Duration // in which a script must end
	calmly     time.Duration // the same, beyond what faults of the WAN excuse
	shrinkWays time.Duration // in which a shorter script must end
	shrinkTime time.Duration // for all shorter scripts

	weather  *weather  // nil: nothing fails
	upgrades *upgrades // nil: none
	deaths   *deaths   // nil: no relay dies
	// excused holds a script that met a death against what that may do. It says whether the script
	// is to run again.
	excused func(i int, s *Script, began time.Time, a *attempt) (again bool)
	// settled waits until no relay has a flow of a lane's last script, which the next one would take
	// for its own. It returns which relays have one for too long. It may be nil.
	settled func(i int, s *Script) string
	said    func(i int, s *Script, since time.Time) string // what the relays say of a lane's last script; may be nil
}

// attempt is one run of a script.
type attempt struct {
	Outcome
	broken        *Violation // nil: direct TCP allows the outcome
	met, upgraded bool       // there was a fault of the WAN, or an upgrade, meanwhile
	bereft        bool       // a relay died meanwhile
	cut, late     bool       // the flow ended with it; only at the target, after the near relay had it as ended
	again         int        // earlier runs, see Way.Again
	took          time.Duration
}

// try runs a script once through a way, and holds the outcome against the rule. direct is
// the outcome of the direct way, nil for that way itself. The error is not about the way.
func (w *way) try(l *lane, i int, s *Script, direct *Outcome, within time.Duration) (a attempt, err error) {
	for again := 0; ; again++ {
		a, repeat, err := w.tryOnce(l, i, s, direct, within)
		if err != nil || !repeat {
			a.again = again
			return a, err
		}
	}
}

func (w *way) tryOnce(l *lane, i int, s *Script, direct *Outcome, within time.Duration) (a attempt, again bool, err error) {
	r, done, err := w.route(l, i, s)
	if err != nil {
		return a, false, err
	}
	began := time.Now()
	a.Outcome, err = run(s, r, within)
	a.took = time.Since(began)
	done()
	l.empty()
	if err != nil {
		return a, false, err
	}
	broken := Allowed(s, direct, &a.Outcome)
	if broken == nil && w.sameAddress {
		broken = sameAddress(&a.Outcome)
	}
	if broken == nil && w.mirrors && s.Refused {
		broken = sameRefusal(s, direct, &a.Outcome)
	}
	errors.As(broken, &a.broken)
	var met string
	if w.deaths != nil {
		all := w.deaths.met(began)
		met, a.bereft = listMet(all), len(all) > 0
		if a.bereft && w.excused(i, s, began, &a) {
			return a, true, nil
		}
	}
	if w.weather != nil {
		faults := w.weather.met(began)
		met, a.met = listMet(faults), len(faults) > 0
		if excused := w.weather.delay(began); a.broken == nil && a.took-excused > w.calmly {
			a.broken = &Violation{KindLate, fmt.Sprintf("it took %v, of which the WAN's faults excuse %v", a.took, excused)}
		}
	}
	if w.settled != nil && (w.upgrades != nil || w.deaths != nil || a.broken != nil) {
		if left := w.settled(i, s); left != "" && a.broken == nil {
			a.broken = &Violation{KindLeft, "both ends are done" + left}
		}
	}
	if w.upgrades != nil {
		upgrades := w.upgrades.met(began)
		met, a.upgraded = met+"; "+listMet(upgrades), len(upgrades) > 0
	}
	if a.broken != nil && w.said != nil {
		a.broken.Text += w.said(i, s, began)
	}
	if a.broken != nil && (a.met || a.upgraded || a.bereft) {
		a.broken.Text += fmt.Sprintf("; in %.3f s it met: %s", a.took.Seconds(), strings.Trim(met, "; "))
	}
	return a, false, nil
}

// maxMet is how many faults, upgrades and deaths are listed of those that a script met.
const maxMet = 8

func listMet(met []string) string {
	if more := len(met) - maxMet; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(met[:maxMet], ", "), more)
	}
	return strings.Join(met, ", ")
}

// local is a way over the loopback device.
func local(w way) *way {
	w.within, w.shrinkWays, w.shrinkTime = scriptTime, shrinkWays, shrinkTime
	return &w
}

var directWay = local(way{name: "direct", flag: "--relays 0", route: func(l *lane, _ int, s *Script) (route, func(), error) {
	return l.direct(s), func() {}, nil
}})

// Run makes scripts and runs each of them directly and through every way.
func Run(ctx context.Context, o Options) (Result, error) {
	if sandbox.Inside() {
		if err := prepareNetwork(); err != nil {
			return Result{}, err
		}
	}
	usual := usualLanes
	switch {
	case o.Upgrades, slices.ContainsFunc(o.Through, func(name string) bool { return pairModes[name].hops }):
		usual = upgradeLanes
	case o.Outages || o.RTT > pairRTT:
		usual = waitLanes
	}
	lanes := make([]*lane, cmp.Or(o.Lanes, usual))
	for i := range lanes {
		l, err := newLane(onLoopback)
		if err != nil {
			return Result{}, err
		}
		defer l.close()
		lanes[i] = l
	}
	var ways []*way
	var checks []func() error
	if n := slices.Max(append([]int{0}, o.Relays...)); n > 0 {
		c, err := newChain(n, lanes)
		if err != nil {
			return Result{}, err
		}
		defer c.close()
		for _, n := range o.Relays {
			if n > 0 {
				ways = append(ways, local(way{name: relayCount(n), flag: fmt.Sprintf("--relays %d", n), route: func(l *lane, i int, s *Script) (route, func(), error) {
					return c.way(n, l, i, s)
				}}))
			}
		}
	}
	for _, name := range o.Through {
		if _, paired := pairModes[name]; paired {
			p, err := startPair(ctx, name, o, len(lanes))
			if err != nil {
				return Result{}, err
			}
			defer p.close()
			checks = append(checks, p.check)
			ways = append(ways, p.way())
			continue
		}
		if _, routed := interceptModes[name]; routed {
			p, err := startInterceptor(ctx, name, o, len(lanes))
			if err != nil {
				return Result{}, err
			}
			defer p.close()
			checks = append(checks, p.check)
			ways = append(ways, p.way())
			continue
		}
		p, err := startPrograms(ctx, name, o.Program, lanes)
		if err != nil {
			return Result{}, err
		}
		defer p.close()
		ways = append(ways, p.way())
	}

	e := &batch{options: o, ways: append([]*way{directWay}, ways...), found: map[string]map[Kind]*found{}, began: time.Now()}
	e.results = make([]Way, len(e.ways))
	first, last := uint64(1), o.Scripts
	if o.Only > 0 {
		first, last = o.Only, o.Only
	}
	e.first, e.of = first, (last-first+1)*uint64(max(o.Repeat, 1))
	var all sync.WaitGroup
	errs := make([]error, len(lanes))
	for i, l := range lanes {
		all.Go(func() { errs[i] = e.lane(ctx, l, i) })
	}
	all.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return Result{}, err
	}
	seconds := time.Since(e.began).Seconds()
	result := Result{Seed: o.Seed, Scripts: e.done, Seconds: seconds, ScriptsPerHour: float64(e.done) / seconds * 3600}
	for i, w := range e.ways {
		r := e.results[i]
		if r.Name, r.Foreign = w.name, w.foreign; w == directWay && r.Violations == 0 && !slices.Contains(o.Relays, 0) {
			continue
		}
		for _, f := range e.firstOf(w) {
			r.Findings = append(r.Findings, e.finding(ctx, w, lanes, f))
		}
		if w.weather != nil {
			r.Faults = w.weather.String()
		}
		if w.upgrades != nil {
			r.Upgrades = w.upgrades.String()
		}
		if w.deaths != nil {
			r.Deaths = w.deaths.String()
		}
		result.Ways = append(result.Ways, r)
	}
	err := ctx.Err()
	for _, check := range checks {
		err = errors.Join(err, check())
	}
	return result, err
}

func relayCount(n int) string {
	if n == 1 {
		return "1 relay"
	}
	return fmt.Sprintf("%d relays", n)
}

// batch is a run of many scripts.
type batch struct {
	options Options
	ways    []*way
	began   time.Time

	first uint64

	mu      sync.Mutex
	begun   uint64
	done    uint64
	of      uint64
	results []Way
	found   map[string]map[Kind]*found // by way, the first of each kind
}

type found struct {
	number    uint64
	violation *Violation
}

// lane runs scripts until none is left.
func (e *batch) lane(ctx context.Context, l *lane, i int) error {
	for ctx.Err() == nil {
		e.mu.Lock()
		begun := e.begun
		e.begun++
		e.mu.Unlock()
		if begun >= e.of {
			return nil
		}
		n := e.first + begun/uint64(max(e.options.Repeat, 1))
		s := Generate(e.options.Seed, n)
		var direct *Outcome
		for k, w := range e.ways {
			a, err := w.try(l, i, s, direct, w.within)
			if err != nil {
				return fmt.Errorf("script %d, %s: %w", n, w.name, err)
			}
			e.note(k, n, a)
			if direct == nil {
				direct = &a.Outcome
				if a.stuck() {
					break // nothing to hold the others against
				}
			}
		}
		e.mu.Lock()
		e.done++
		violations := 0
		for _, w := range e.results {
			violations += w.Violations
		}
		e.options.Report.Passing(int(e.done), int(e.of), "%d of %d scripts, %d outcomes that direct TCP does not allow", e.done, e.of, violations)
		e.mu.Unlock()
	}
	return nil
}

func (e *batch) note(k int, n uint64, a attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &e.results[k]
	r.Scripts++
	if a.met {
		r.Met++
	}
	if a.upgraded {
		r.Upgraded++
	}
	if a.bereft {
		r.Bereft++
	}
	if a.cut {
		r.Cut++
	}
	if a.late {
		r.Late++
	}
	r.Again += a.again
	if !a.met && !a.upgraded && !a.bereft {
		r.Slowest = max(r.Slowest, a.took.Seconds())
	}
	v := a.broken
	if v == nil {
		return
	}
	r.Violations++
	if !e.ways[k].foreign {
		e.options.Report.Linef("script %d, %s: %v", n, e.ways[k].name, v)
	}
	if r.Kinds == nil {
		r.Kinds = map[Kind]int{}
	}
	r.Kinds[v.Kind]++
	name := e.ways[k].name
	if e.found[name] == nil {
		e.found[name] = map[Kind]*found{}
	}
	if f := e.found[name][v.Kind]; f == nil || n < f.number {
		e.found[name][v.Kind] = &found{n, v}
	}
}

// firstOf are the findings of a way whose shortest scripts are looked for: of
// other programs only their number is of interest.
func (e *batch) firstOf(w *way) []*found {
	if w.foreign {
		return nil
	}
	return slices.SortedFunc(maps.Values(e.found[w.name]), func(a, b *found) int { return cmp.Compare(a.number, b.number) })
}

func (e *batch) finding(ctx context.Context, w *way, lanes []*lane, f *found) Finding {
	if w.weather == nil && w.upgrades == nil && w.deaths == nil {
		lanes = lanes[:1]
	}
	breaks := func(s *Script) *Violation { return breaksRule(w, lanes, s) }
	shortest, says, broke, of := shrink(ctx, Generate(e.options.Seed, f.number), f.violation, w.shrinkTime, breaks)
	return Finding{
		Kind: f.violation.Kind, Script: f.number, Text: f.violation.Text,
		Shortest: shortest.String(), Says: says.Text, Broke: broke, Of: of,
		Command: fmt.Sprintf("go run ./bench/ends --seed %d --script %d %s", e.options.Seed, f.number, w.flag),
	}
}

// breaksRule runs a script, in all lanes at once, and returns how it breaks the rule; nil:
// it does not. A way that fails at random moments needs many lanes to meet the right one.
func breaksRule(w *way, lanes []*lane, s *Script) *Violation {
	direct, err := directWay.try(lanes[0], 0, s, nil, shrinkWays)
	if err != nil || direct.stuck() {
		return nil
	}
	if w == directWay {
		return direct.broken
	}
	found := make([]*Violation, len(lanes))
	var all sync.WaitGroup
	for i, l := range lanes {
		all.Go(func() {
			if a, err := w.try(l, i, s, &direct.Outcome, w.shrinkWays); err == nil {
				found[i] = a.broken
			}
		})
	}
	all.Wait()
	if i := slices.IndexFunc(found, func(v *Violation) bool { return v != nil }); i >= 0 {
		return found[i]
	}
	return nil
}
