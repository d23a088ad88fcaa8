package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/sys/hostevents"
	"longhaul/internal/words/remedy"
)

// enforcement holds the host to the rules of interception: what another program removes is
// set again. Guarded by interception.mu.
//
//	as set ── something is missing ──▶ set again, a line in the log ──▶ as set
//	   │                                   └─ the third time in a minute ──▶ fight
//	   │                                       later each time, once a minute at the least
//	   ├─ the operator's intercept clear ──▶ cleared, until a reload
//	   └─ another process of the relay has set its rules ──▶ yielded
type enforcement struct {
	standing intercept.Standing
	missing  []intercept.Missing // what another program removed, and is not yet set again
	since    time.Time           // when missing began
	by       string              // the program that removed it, if known
	err      string              // error of the last attempt to set it again
	nextAt   time.Time           // time of the next attempt; zero: nothing is missing
	pace     pace                // bounds how often the host is looked at
	look     intercept.Look      // what the next look must cover
	learn    bool                // the look is for what this process has set, and waits for nothing

	restored []time.Time   // when rules were set again, in the last minute
	delay    time.Duration // in a fight: from one time to the next
	opponent string        // the program of a fight; empty: there is no fight

	cleared bool // the operator has taken the rules back
	yielded bool // another process of this relay has set its rules

	counts   map[intercept.Part]int64
	fights   int64
	reported []string // what was set again during a reload, for its answer
}

const (
	fightWithin = time.Minute
	fightAfter  = 3 // times within fightWithin
	// firstDelay and maxDelay bound how long a fight leaves the host without the rules.
	firstDelay = 2 * time.Second
	maxDelay   = time.Minute

	maxReported = 16 // parts that a reload names
)

// everything looks at all that the relay has set, since it is unknown what has changed.
var everything = intercept.Look{Table: true, Routing: true}

// set forgets what was known of the host, after other rules were set, and has them looked at. The
// caller holds mu.
func (e *enforcement) set() {
	e.standing, e.missing, e.since, e.nextAt, e.err = intercept.Standing{}, nil, time.Time{}, time.Time{}, ""
	e.look.Table, e.learn = true, true
}

// whole notes that the host has all rules. The caller holds mu.
func (e *enforcement) whole() {
	e.missing, e.since, e.nextAt, e.err, e.by = nil, time.Time{}, time.Time{}, "", ""
}

// beginEnforcing begins anew with a configuration. The caller holds mu.
func (i *interception) beginEnforcing() {
	e := &i.kept
	e.reported = nil
	if i.cleared { // the operator cleared the process before this one; an upgrade does not undo that
		i.cleared = false
		return
	}
	if e.cleared {
		e.cleared = false
		e.reported = append(e.reported, "the rules of interception, which intercept clear had removed")
	}
	e.restored, e.delay, e.opponent, e.nextAt, e.pace = nil, 0, "", time.Time{}, pace{}
}

// changed looks at the host after a change of it.
func (i *interception) changed(seen hostevents.Seen) {
	i.mu.Lock()
	defer i.unlock()
	if seen.Links || seen.Lost {
		i.faults.lookAtInterfaces(i.wanted.Tunnels)
	}
	look := intercept.Look{Table: seen.Table || seen.Lost, Routing: seen.Routing || seen.Links || seen.Lost}
	i.enforce(look, hostProgram(seen))
}

func hostProgram(seen hostevents.Seen) string {
	if seen.Table && seen.TableBy != "" {
		return seen.TableBy
	}
	if seen.Routing {
		return seen.RoutingBy
	}
	return ""
}

// due is when to call [interception.changed] without a change; zero: never.
func (i *interception) due() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := &i.kept
	switch {
	case !i.enforces():
		return time.Time{}
	case !e.nextAt.IsZero():
		return e.nextAt
	case e.learn:
		return time.Now()
	case e.look != intercept.Look{}:
		return e.pace.at
	case e.opponent != "" && len(e.restored) > 0: // the end of a fight
		return e.restored[len(e.restored)-1].Add(fightWithin)
	}
	return time.Time{}
}

// enforces reports whether rules are in force that this process sets again. The caller holds mu.
func (i *interception) enforces() bool {
	return !i.kept.cleared && !i.kept.yielded && !i.inForce.IsEmpty() && i.inForce.Relay != ""
}

// enforce compares the host with the rules in force and sets again what is missing. The caller
// holds mu.
func (i *interception) enforce(look intercept.Look, by string) {
	if !i.enforces() {
		return
	}
	e := &i.kept
	now := time.Now()
	e.restored = slices.DeleteFunc(e.restored, func(at time.Time) bool { return now.Sub(at) >= fightWithin })
	if len(e.restored) == 0 && e.opponent != "" && e.missing == nil {
		i.log.Info("the rules of interception stay in place again", "opponent", e.opponent)
		e.opponent, e.delay = "", 0
	}
	e.look.Table, e.look.Routing = e.look.Table || look.Table, e.look.Routing || look.Routing
	if by != "" {
		e.by = by
	}
	if (e.look == intercept.Look{}) && e.missing == nil || !e.learn && now.Before(e.pace.at) || !e.nextAt.IsZero() && now.Before(e.nextAt) {
		return
	}
	look = e.look
	if e.missing != nil {
		look = everything
	}
	learns := e.learn
	e.look, e.learn = intercept.Look{}, false
	missing, err := i.host.Missing(i.inForce, look, &e.standing)
	if len(missing) == 0 && !learns {
		e.pace.took(time.Since(now), now)
	}
	switch {
	case err != nil:
		e.look = look
		i.cannotRestore(err)
		return
	case len(missing) == 0:
		e.whole()
		return
	}
	if e.missing == nil {
		e.since = now
	}
	e.missing = missing
	if e.delay > 0 && e.nextAt.IsZero() { // a fight
		e.nextAt = e.restored[len(e.restored)-1].Add(e.delay)
		if now.Before(e.nextAt) {
			return
		}
	}
	i.restore(now)
}

// restore sets again what is missing. The caller holds mu.
func (i *interception) restore(now time.Time) {
	e := &i.kept
	err := i.host.Restore(i.inForce, e.missing, &e.standing)
	switch {
	case errors.Is(err, intercept.ErrTaken), errors.Is(err, intercept.ErrCleared) && i.turn == heldTurn:
		e.yielded, e.missing, e.nextAt = true, nil, time.Time{}
		return
	case errors.Is(err, intercept.ErrCleared):
		i.wasCleared()
		return
	case err != nil:
		i.cannotRestore(err)
		return
	}
	what := intercept.Texts(e.missing)
	attrs := []any{"what", what}
	if e.by != "" {
		attrs = append(attrs, "by", e.by)
	}
	i.log.Warn("another program removed rules of interception, they are set again", attrs...)
	if e.counts == nil {
		e.counts = map[intercept.Part]int64{}
	}
	for _, m := range e.missing {
		e.counts[m.Part]++
	}
	if len(e.reported) < maxReported {
		e.reported = append(e.reported, what)
	}
	e.restored = append(e.restored, now)
	missing, by := e.missing, e.by
	e.whole()
	if slices.ContainsFunc(missing, intercept.Missing.InTable) {
		e.look.Table, e.learn = true, true
	}
	if len(e.restored) < fightAfter && e.opponent == "" {
		return
	}
	e.delay = min(max(firstDelay, 2*e.delay), maxDelay)
	if e.opponent == "" {
		e.fights++
		e.opponent = opponent(missing, by)
		i.log.Warn("another program keeps removing rules of interception; they are set again ever later, at least once a minute",
			"what", what, "opponent", e.opponent, "remedy", "have it leave the relay's rules alone: docs/interception.md, beside other programs")
	}
}

func (i *interception) cannotRestore(err error) {
	e := &i.kept
	if e.err != err.Error() {
		i.log.Error("cannot set again what is missing of interception", "what", intercept.Texts(e.missing), "error", err, "remedy", remedy.Of(err))
	}
	e.err, e.nextAt = err.Error(), time.Now().Add(interceptionRetry)
}

// findCleared finds that the operator has taken the rules back. The caller holds mu.
func (i *interception) findCleared() error {
	if i.kept.cleared || i.inForce.Relay == "" || i.inForce.IsEmpty() {
		return nil
	}
	has, err := i.host.HasRecord(i.inForce.Relay)
	if err == nil && !has {
		i.wasCleared()
	}
	return err
}

// wasCleared leaves the host as the operator wants it. The caller holds mu.
func (i *interception) wasCleared() {
	e := &i.kept
	i.log.Warn("the operator has taken the rules of interception back: new connections go directly until a reload", "remedy", "longhaul reload")
	e.cleared, e.missing, e.since, e.nextAt = true, nil, time.Now(), time.Time{}
	i.inForce.Relay = "" // differs from every configuration, so a reload sets the rules
}

// problems are what this host lacks of what an intercepting tunnel, or one that dials from its
// clients' addresses, needs. at is where it intercepts; empty: it does not. The caller holds mu.
func (i *interception) problems(at string) (all []flow.HostProblem) {
	e := &i.kept
	switch {
	case i.err != nil:
		all = append(all, flow.HostProblem{Part: flow.HostRules, Problem: "the rules of interception cannot be set: " + i.err.Error(),
			Fix: remedy.Of(i.err), Since: i.errSince, Blocks: true})
	case e.cleared:
		all = append(all, flow.HostProblem{Part: flow.HostRules, Problem: "the operator has taken the rules back: new connections go directly",
			Fix: "longhaul reload", Since: e.since, Blocks: true})
	case e.missing != nil:
		p := flow.HostProblem{Part: flow.HostRules, Problem: intercept.Describe(e.missing), Fix: "longhaul reload sets them again", Since: e.since, Blocks: true}
		if e.opponent != "" {
			p.Fix = "have what removes them leave them alone: " + e.opponent
		}
		all = append(all, p)
	}
	if at == "" {
		return all
	}
	return append(all, i.faults.at(at)...)
}

// suspect is a program that is known to remove what it has not set.
type suspect struct {
	comm    string // of its process, which the kernel cuts
	name    string
	routing bool // it removes routing rules and routes, else tables
}

var suspects = []suspect{
	{"systemd-network", "systemd-networkd (ManageForeignRoutingPolicyRules=no in networkd.conf)", true},
	{"NetworkManager", "NetworkManager", true},
	{"firewalld", "firewalld", false},
	{"dockerd", "Docker", false},
}

// opponent names the program that most likely removed parts.
func opponent(missing []intercept.Missing, by string) string {
	for _, s := range suspects {
		if by == s.comm {
			return s.name
		}
	}
	switch by {
	case "":
	case "nft":
		return "nft, as nftables.service or a script runs it"
	default:
		return by
	}
	routing := !slices.ContainsFunc(missing, intercept.Missing.InTable)
	running := runningHere()
	var names []string
	for _, s := range suspects {
		if s.routing == routing && slices.Contains(running, s.comm) {
			names = append(names, s.name)
		}
	}
	switch {
	case len(names) > 0:
		return strings.Join(names, " or ")
	case routing:
		return "a program that manages routing rules"
	}
	return "nftables.service, or a script with nft flush ruleset"
}

// runningHere lists the names of the processes in this network namespace.
func runningHere() (names []string) {
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil
	}
	all, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range all {
		name, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if there, err := os.Readlink(filepath.Join(filepath.Dir(path), "ns/net")); err == nil && there == here {
			names = append(names, strings.TrimSpace(string(name)))
		}
	}
	return names
}

// restoredParts says what a reload has set again.
func (i *interception) restoredParts() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.kept.reported)
}

// hostView is what the screens show of the host. Who sets rules may hold the lock for long: they
// read this in place of waiting.
type hostView struct {
	bypass   map[string]*flow.Bypass
	problems map[string][]flow.HostProblem
	restored map[string]int64 // parts that were set again, by kind
	fights   int64
}

// counts are the numbers of parts that were set again, and of fights.
func (v *hostView) counts() (restored map[string]int64, fights int64) { return v.restored, v.fights }

// unlock ends a change of what the host has.
func (i *interception) unlock() {
	i.publish()
	i.mu.Unlock()
}

// publish has the screens show the present state. The caller holds mu.
func (i *interception) publish() {
	e := &i.kept
	v := &hostView{bypass: map[string]*flow.Bypass{}, problems: map[string][]flow.HostProblem{}, restored: map[string]int64{}, fights: e.fights}
	for name, b := range i.bypass {
		v.bypass[name] = b.state()
	}
	for part, n := range e.counts {
		v.restored[string(part)] = n
	}
	if i.err != nil || e.cleared || e.missing != nil || i.faults.any() {
		for _, t := range i.wanted.Tunnels {
			v.problems[t.Name] = i.problems(t.Interface)
		}
		for _, d := range i.wanted.Dialers {
			v.problems[d.Name] = i.problems("")
		}
	}
	i.seen.Store(v)
}

// view is what publish has stored last.
func (i *interception) view() *hostView {
	if v := i.seen.Load(); v != nil {
		return v
	}
	return &hostView{}
}
