//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
	"longhaul/internal/sys/resources"
	"longhaul/internal/tune/route"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/words/display"
	"longhaul/internal/words/portrange"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

func newStatus(env *env) *cobra.Command {
	var (
		asJSON bool
		limit  = 10
		order  string
		chosen relayChoice
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the running relay: tunnels, flows, last reload",
		Long: `status asks the running relay through its control socket, which its own user
and root may use. Goodput is the mean over the flow's life. An unknown figure
is shown as -, never as 0.

It shows all relays if several run; with --json one object a line for each.`,
		Example: `  longhaul status
  longhaul status --sort bytes --limit 0
  longhaul status --json | jq '.tunnels[] | {name, flows_now}'`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	flags.IntVar(&limit, "limit", limit, "list the first `N` flows; 0: all")
	flags.StringVar(&order, "sort", "goodput", "`ORDER` of the flows: goodput, bytes or age")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		sortFlows, known := flowOrders[order]
		if !known {
			return usageError(remedy.New(fmt.Errorf("invalid order %q", order), "sort by goodput, bytes or age"))
		}
		if limit < 0 {
			return usageError(remedy.New(fmt.Errorf("invalid --limit %d", limit), "give a number of flows, or 0 for all"))
		}
		show := func(body []byte) error {
			var s daemon.Status
			if err := json.Unmarshal(body, &s); err != nil {
				return remedy.New(fmt.Errorf("read the relay's answer: %w", err),
					"the relay may be of another version; try --json")
			}
			sortFlows(s.Flows)
			shown := s.Flows
			if limit > 0 && len(shown) > limit {
				shown = shown[:limit]
			}
			writeStatus(env.stdout, s, shown, time.Now())
			return nil
		}
		paths, err := chosen.paths(cmd.Context(), env)
		if err != nil {
			return err
		}
		answers := askAll(cmd.Context(), paths)
		dir := control.Directory(env.getenv)
		var failed error
		for i, a := range answers {
			if a.err == nil && asJSON {
				_, a.err = env.stdout.Write(a.body)
			} else if a.err == nil {
				if len(answers) > 1 {
					fmt.Fprintf(env.stdout, "%srelay %s\n", strings.Repeat("\n", min(i, 1)), control.NameIn(dir, a.path))
				}
				a.err = show(a.body)
			}
			if failed == nil {
				failed = a.err
			}
		}
		return failed
	}
	return cmd
}

// statusAnswer is a relay's answer.
type statusAnswer struct {
	path string
	body []byte
	err  error
}

// askAll fetches the status of the relays with these control sockets, all at the
// same time. It leaves out a relay of several that has ended meanwhile.
func askAll(ctx context.Context, paths []string) []statusAnswer {
	answers := make([]statusAnswer, len(paths))
	var asking sync.WaitGroup
	for i, path := range paths {
		asking.Go(func() {
			body, err := control.Status(ctx, path)
			answers[i] = statusAnswer{path, body, controlError(err)}
		})
	}
	asking.Wait()
	living := slices.DeleteFunc(slices.Clone(answers), func(a statusAnswer) bool { return errors.Is(a.err, control.ErrNotRunning) })
	if len(living) == 0 {
		return answers[:1]
	}
	return living
}

var flowOrders = map[string]func([]relay.FlowSnapshot){
	"goodput": func(f []relay.FlowSnapshot) {
		sorted.By(f, func(a, b relay.FlowSnapshot) int { return cmp.Compare(goodput(b), goodput(a)) })
	},
	"bytes": func(f []relay.FlowSnapshot) {
		sorted.By(f, func(a, b relay.FlowSnapshot) int { return cmp.Compare(moved(b), moved(a)) })
	},
	"age": func(f []relay.FlowSnapshot) {
		sorted.By(f, func(a, b relay.FlowSnapshot) int { return cmp.Compare(b.AgeSeconds, a.AgeSeconds) })
	},
}

func moved(f relay.FlowSnapshot) int64 { return f.BytesUp + f.BytesDown }

// goodput returns the mean rate of a flow in bits per second, the sum of both
// directions; negative for a flow too young to have one.
func goodput(f relay.FlowSnapshot) float64 {
	if f.AgeSeconds < 0.001 {
		return -1
	}
	return float64(moved(f)) * 8 / f.AgeSeconds
}

// writeStatus prints tables that fit a terminal of 80 columns.
func writeStatus(w io.Writer, s daemon.Status, flows []relay.FlowSnapshot, now time.Time) {
	writeProcess(w, s)
	writeResources(w, s.Resources, now)
	writeQueues(w, s.Tunnels)
	writeReload(w, s.LastReload, s.Confirmation, now)
	writeLacks(w, s, now)
	writeHistory(w, s.History, now)
	if s.Pairs != nil && s.Pairs.KeysProblem != "" {
		fmt.Fprintln(w, display.Fold("keys of pairs: "+display.FirstLine(s.Pairs.KeysProblem), 78, 2))
	}
	writeCertificates(w, s.Pairs, now)
	fmt.Fprintf(w, "\n"+tunnelRow, "TUNNEL", "STATE", "FLOWS/MAX", "TOTAL", "UP", "DOWN", "DENIED", "LIMITED", "FAILED")
	for _, t := range s.Tunnels {
		writeTunnel(w, s, t, now)
	}
	if len(s.Missing) > 0 {
		fmt.Fprintf(w, "\nmissing, since not known within a second: %s\n", strings.Join(s.Missing, ", "))
	}
	switch {
	case len(s.Flows) > 0:
		writeFlows(w, flows, len(s.Flows)-len(flows))
	case !slices.Contains(s.Missing, "flows"):
		fmt.Fprintln(w, "\nno flows")
	}
}

// writeProcess writes what the process is, and whether it accepts.
func writeProcess(w io.Writer, s daemon.Status) {
	fmt.Fprintf(w, "%s\n", s.Version)
	fmt.Fprintf(w, "pid %d, up %s, %s", s.PID, display.Age(s.UptimeSeconds), display.Plural(s.Workers, "worker"))
	if s.ConfigFile != "" {
		fmt.Fprintf(w, ", %s", s.ConfigFile)
	}
	fmt.Fprintln(w)
	switch {
	case s.ReplacedBy > 0:
		fmt.Fprintf(w, "replaced by process %d: no new flows are accepted\n", s.ReplacedBy)
	case s.Draining:
		fmt.Fprintln(w, "draining: no new flows are accepted")
	}
	writeOlderProcesses(w, s.OlderProcesses)
	if s.AcceptPaused {
		fmt.Fprintln(w, "accepting is paused: out of descriptors or memory")
	}
	if m := s.Memory; m != nil {
		short := ""
		if m.Short {
			short = ", senders are slowed down"
		}
		fmt.Fprintf(w, "memory: %s of %s%s\n", display.Quantity(m.UsedBytes), display.Quantity(m.LimitBytes), short)
	}
}

// writeLacks writes what the relay does without, and what it waits for.
func writeLacks(w io.Writer, s daemon.Status, now time.Time) {
	for _, l := range s.Lacks {
		fmt.Fprintf(w, "lacking: %s\n  remedy: %s\n", l.What, l.Remedy)
	}
	writeHostChanges(w, s.Host)
	if s.LogLinesDropped > 0 {
		fmt.Fprintf(w, "log lines dropped: %d\n", s.LogLinesDropped)
	}
	for _, p := range s.Waiting {
		fmt.Fprintln(w, display.Fold(fmt.Sprintf("%s, for %s", p.Problem, display.Age(now.Sub(p.Since).Seconds())), 78, 2))
		display.WriteParagraph(w, "  ", p.Fix)
	}
}

const tunnelRow = "%-14s %-9s %11s %6s %6s %7s %6s %7s %6s\n"

// writeTunnel writes a tunnel's row, and below it a line for each problem.
func writeTunnel(w io.Writer, s daemon.Status, t flow.Tunnel, now time.Time) {
	limit := "-"
	if t.FlowsLimit > 0 {
		limit = fmt.Sprint(t.FlowsLimit)
	}
	fmt.Fprintf(w, tunnelRow, display.Shorten(t.Name, 14), display.Shorten(stateOf(&t), 9), fmt.Sprintf("%d/%s", t.FlowsNow, limit),
		display.Quantity(t.FlowsTotal), display.Quantity(t.BytesUp), display.Quantity(t.BytesDown),
		display.Quantity(t.Denied), display.Quantity(t.Limited+t.Shed), display.Quantity(t.Refused+t.Errors))
	if t.Intercepts != "" {
		fmt.Fprintln(w, display.Shorten("  intercepts "+t.Intercepts+" -> "+leadsTo(&t), 80))
	} else if listens := portrange.Addresses(t.Listen); len(listens) > 0 {
		more := ""
		if len(listens) > 1 {
			more = fmt.Sprintf(" +%d", len(listens)-1)
		}
		fmt.Fprintln(w, display.Shorten("  "+listens[0]+more+" -> "+leadsTo(&t), 80))
	}
	writeHost(w, t, now)
	writeProblems(w, &t, now)
	writeInterception(w, t, now)
	writeService(w, t.Service, now)
	writeHops(w, &t, now)
	writePairs(w, s.Pairs, t.Name, now)
	for _, r := range s.Integrity {
		if r.Tunnel == t.Name {
			fmt.Fprintln(w, r.Line(now))
		}
	}
}

const flowRow = "%-8s %-21s %-21s %4s %6s %8s %-6s\n"

// writeFlows writes a row for each flow, and how many have none.
func writeFlows(w io.Writer, flows []relay.FlowSnapshot, hidden int) {
	fmt.Fprintf(w, "\n"+flowRow, "TUNNEL", "CLIENT", "TARGET", "AGE", "BYTES", "GOODPUT", "STATE")
	for _, f := range flows {
		target, rate := "-", "-"
		if f.Target.IsValid() {
			target = f.Target.String()
		}
		if g := goodput(f); g >= 0 {
			rate = display.CompactRate(g)
		}
		state := flowStates[f.State]
		if state == "" {
			state = f.State
		}
		if f.Pair != nil && f.Pair.MemoryLimited {
			state = "memory"
		}
		fmt.Fprintf(w, flowRow, display.Shorten(f.Tunnel, 8), display.Shorten(f.Client.String(), 21), display.Shorten(target, 21),
			display.Age(f.AgeSeconds), display.Quantity(moved(f)), rate, display.Shorten(state, 6))
	}
	if hidden > 0 {
		fmt.Fprintf(w, "%d more; --limit 0 lists them\n", hidden)
	}
}

// writeHost writes what this host lacks of what the tunnel needs.
func writeHost(w io.Writer, t flow.Tunnel, now time.Time) {
	for _, p := range t.Host {
		display.WriteParagraph(w, "  ", fmt.Sprintf("%s, for %s", p.Problem, display.Age(now.Sub(p.Since).Seconds())))
		if p.Fix != "" {
			display.WriteParagraph(w, "    ", p.Fix)
		}
	}
}

// stateOf is what a tunnel is for new flows, or what its operator did with it.
func stateOf(t *flow.Tunnel) string {
	if t.State != "listening" || t.Usability.State == "" { // an earlier program does not decide
		return t.State
	}
	return string(t.Usability.State)
}

// writeProblems says why a tunnel is not usable. The lines of the host, of the hops and of the pair say it
// of them.
func writeProblems(w io.Writer, t *flow.Tunnel, now time.Time) {
	for i, p := range t.Usability.Problems {
		switch p.Reason {
		case flow.ReasonHopsDown, flow.ReasonHopsDrained, flow.ReasonPairDown, flow.ReasonListener, flow.ReasonNoRules, flow.Reason(t.State):
			continue
		}
		since := ""
		if i == 0 && !t.Usability.Since.IsZero() {
			since = ", for " + display.Age(now.Sub(t.Usability.Since).Seconds())
		}
		display.WriteParagraph(w, "  ", p.Detail+since)
	}
}

// leadsTo says where a tunnel leads.
func leadsTo(t *flow.Tunnel) string {
	switch {
	case t.Service != nil:
		return t.Service.Name
	case len(t.Forward) == 1 && t.Forward[0] == "original":
		return "as dialed"
	}
	return strings.Join(t.Forward, " ")
}

// writeService writes what the records of a tunnel's service lack.
func writeService(w io.Writer, s *flow.Service, now time.Time) {
	if s == nil {
		return
	}
	age := func(since time.Time) string { return display.Age(now.Sub(since).Seconds()) }
	switch {
	case s.State == flow.ServiceAnswered:
	case s.Found > 0:
		display.WriteParagraph(w, "  ", fmt.Sprintf("service: %s, for %s; the targets of %s ago stay in force for a day", s.Error, age(s.Since), age(s.Answered)))
	default:
		display.WriteParagraph(w, "  ", fmt.Sprintf("service: %s, for %s: no hop", cmp.Or(s.Error, "no answer yet"), age(s.Since)))
		display.WriteParagraph(w, "    ", s.Remedy())
	}
	if len(s.LeftOut) > 0 {
		display.WriteParagraph(w, "  ", fmt.Sprintf("%d targets, more than a tunnel has hops; left out: %s", s.Found, strings.Join(s.LeftOut, " ")))
	}
}

// writeInterception writes what keeps an intercepting tunnel from its best.
func writeInterception(w io.Writer, t flow.Tunnel, now time.Time) {
	if b := t.Bypass; b != nil && b.Reason != "" {
		display.WriteParagraph(w, "  ", fmt.Sprintf("%s: new connections go directly, for %s", b.Reason, display.Age(now.Sub(b.Since).Seconds())))
	}
	for _, said := range t.DeadFamilies {
		display.WriteParagraph(w, "  ", said)
	}
	for _, r := range t.ForwardRules {
		if r.Problem != "" {
			display.WriteParagraph(w, "  ", r.Problem)
			display.WriteParagraph(w, "    ", r.Fix)
		}
	}
	if t.Relayed > 0 {
		fmt.Fprintf(w, "  another relay intercepted %s before: pair the two\n", display.Plural(int(t.Relayed), "connection"))
	}
}

// writeHops lists a tunnel's hops, unless the only one is as usual.
func writeHops(w io.Writer, t *flow.Tunnel, now time.Time) {
	if hops := t.Hops; t.Service == nil && len(hops) == 1 && (hops[0].State == flow.HopUp || hops[0].State == flow.HopUntried) {
		return
	}
	for _, h := range t.Hops {
		since := ""
		if !h.Since.IsZero() {
			since = " for " + display.Age(now.Sub(h.Since).Seconds())
		}
		fmt.Fprintf(w, "  hop %-21s %-17s %5s now %5s total %5s failed\n", display.Shorten(h.Name, 21), string(h.State)+since,
			display.Quantity(h.FlowsNow), display.Quantity(h.FlowsTotal), display.Quantity(h.Failed))
		if h.LastError != "" && h.State != flow.HopUp {
			display.WriteParagraph(w, "    ", h.LastError)
		}
	}
}

// flowStates abbreviates the states of a flow.
var flowStates = map[string]string{
	"dialing": "dial", "client-ended": "c-end", "target-ended": "t-end", "delivering": "deliv", "resetting": "reset", "resuming": "resume",
}

func writeReload(w io.Writer, r *daemon.Reload, c *daemon.Confirmation, now time.Time) {
	switch {
	case r == nil:
		fmt.Fprintln(w, "last reload: none since the start")
	case !r.OK:
		fmt.Fprintln(w, display.Fold("last reload: failed: "+r.Error, 78, 2))
		inForce := "the configuration before it"
		if c != nil && c.State == daemon.CannotReturn {
			inForce = "the unconfirmed configuration"
		}
		fmt.Fprintf(w, "  %s ago; %s is in force\n", display.Age(now.Sub(r.At).Seconds()), inForce)
	default:
		fmt.Fprintf(w, "last reload: ok, %s ago: %d added, %d changed, %d removed, %d unchanged\n", display.Age(now.Sub(r.At).Seconds()),
			len(r.Added), len(r.Changed), len(r.Removed), r.Unchanged)
		if len(r.NeedsRestart) > 0 {
			fmt.Fprintf(w, "  waiting for a restart: %s\n", strings.Join(r.NeedsRestart, ", "))
		}
	}
	if c != nil && c.State == daemon.Unconfirmed {
		fmt.Fprintf(w, "unconfirmed: goes back in %s, unless longhaul reload confirms\n", display.Age(max(c.Until.Sub(now).Seconds(), 0)))
	}
}

// resourceNames are the status's names of resources, where they differ.
var resourceNames = map[resources.Resource]string{resources.Memory: "own memory", resources.CgroupMemory: "cgroup", resources.TCPMemory: "TCP"}

// writeResources prints use and thresholds in lines that fit a terminal of 80
// columns.
func writeResources(w io.Writer, s *resources.State, now time.Time) {
	if s == nil {
		return
	}
	line := "resources:"
	add := func(part string) {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(part) > 79 {
			fmt.Fprintln(w, line)
			line = " "
		}
		line += " " + part
	}
	var parts []string
	for _, f := range s.Figures {
		if !f.Used.Known() {
			continue
		}
		name := resourceNames[f.Resource]
		if name == "" {
			name = string(f.Resource)
		}
		part := name + " " + f.Text(f.Used)
		if f.Limit.Known() {
			part += " of " + f.Text(f.Limit)
		}
		parts = append(parts, part)
	}
	for i, part := range parts {
		if i < len(parts)-1 {
			part += ","
		}
		add(part)
	}
	fmt.Fprintln(w, line)
	for _, f := range s.Figures {
		if f.SheddingSince != nil {
			fmt.Fprintf(w, "new flows are shed: %s at its limit for %s\n  remedy: %s\n", f.Resource,
				display.Age(now.Sub(*f.SheddingSince).Seconds()), f.Resource.Remedy())
		}
	}
}

// writeQueues lists the accept queues that are or were too short.
func writeQueues(w io.Writer, tunnels []flow.Tunnel) {
	for _, t := range tunnels {
		for _, q := range t.AcceptQueues {
			if q.Dropped > 0 || q.Limit > 0 && q.Waiting >= q.Limit {
				fmt.Fprintf(w, "accept queue of %s: %d of %d wait, %s dropped\n", display.Shorten(q.Listen.String(), 30), q.Waiting, q.Limit, display.Quantity(int64(q.Dropped)))
			}
		}
	}
}

// writeOlderProcesses prints the older processes that still have flows.
func writeOlderProcesses(w io.Writer, facts []daemon.OlderProcess) {
	for _, f := range facts {
		flows, since := "-", ""
		if f.FlowsNow != nil {
			flows = display.Plural(int(*f.FlowsNow), "flow")
		}
		if f.ReplacedFor != nil {
			since = ", replaced " + display.Age(*f.ReplacedFor) + " ago"
		}
		if f.SecondsLeft != nil {
			since += ", " + display.Age(*f.SecondsLeft) + " left"
		}
		fmt.Fprintf(w, "older process %d: %s%s\n  longhaul status --control-socket %s\n", f.PID, flows, since, f.ControlSocket)
	}
}

// writeHistory prints the history's problems, and a line for each sink of records.
func writeHistory(w io.Writer, s *daemon.History, now time.Time) {
	if s == nil {
		return
	}
	if s.Problem != "" {
		fmt.Fprintln(w, display.Fold("history: "+s.File+" is not written: "+display.FirstLine(s.Problem), 78, 2))
		if s.Remedy != "" {
			fmt.Fprintf(w, "  remedy: %s\n", s.Remedy)
		}
	}
	if s.Dropped > 0 {
		fmt.Fprintf(w, "history: records dropped: %d\n", s.Dropped)
	}
	for i := range s.Ship {
		writeSink(w, &s.Ship[i], now)
	}
}

// writeSink prints how far a sink of records is.
func writeSink(w io.Writer, s *ship.State, now time.Time) {
	text := "records to " + s.Sink + ": "
	switch {
	case s.Waiting > 0:
		text += fmt.Sprintf("%d wait, the oldest for %s", s.Waiting, display.Age(s.Lag.Duration().Seconds()))
	case !s.LastSent.IsZero() && s.Problem == "":
		text += "none waits, the last went " + display.Age(now.Sub(s.LastSent).Seconds()) + " ago"
	case s.Problem != "": // the history is missing or cannot be read
		text += "none goes"
	default:
		text += "none waits"
	}
	if s.Lost > 0 {
		text += fmt.Sprintf("; %d lost", s.Lost)
	}
	fmt.Fprintln(w, display.Fold(text, 78, 2))
	if s.Problem != "" {
		fmt.Fprintln(w, "  "+display.Fold("problem: "+display.FirstLine(s.Problem), 76, 4))
	}
	if s.Remedy != "" {
		fmt.Fprintf(w, "  remedy: %s\n", s.Remedy)
	}
}

// writeHostChanges lists longhaul's changes of this host, and the undo of each.
func writeHostChanges(w io.Writer, h daemon.HostChanges) {
	if len(h.CongestionControls) > 0 {
		fmt.Fprintf(w, "loaded: congestion control %s\n  undo: longhaul cc unload\n", strings.Join(h.CongestionControls, ", "))
	}
	for _, s := range h.Routes {
		fmt.Fprintf(w, "changed: the route to %s has %s\n  undo: longhaul route undo --to %[1]s\n", s.Prefix, route.ValuesText(s.Values()))
	}
	for _, r := range h.MSS {
		fmt.Fprintf(w, "changed: MSS on %s, %s\n  undo: longhaul mss undo --dev %[1]s\n", r.Device, r.Text())
	}
}
