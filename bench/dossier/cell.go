package main

import (
	"fmt"
	"slices"
	"time"

	"longhaul/bench/kit/congestion"
	"longhaul/internal/words/stats"
)

// family is a set of cells that are judged alike: a table of the document.
type family struct {
	name  string
	title string
	about string   // what is measured, and where the bounds come from
	items []string // sections of RFC 9743; the family's table stands in the first
	cells []cell
}

// cell is one path with its flows and the bounds for them.
type cell struct {
	name   string // unique within the family
	about  string // path and flows
	trials map[role]trial
	claims []claim
	quick  bool // part of --quick
	// excludes reports, by what was measured without the subject, that no flow at all could
	// hold every claim; nil: it could.
	excludes func(runs) bool
}

// role is the part of a trial in a cell's bounds.
type role string

// trial is a run that a cell needs. Cells that need equal trials share them.
type trial struct {
	congestion.Trial
	Fault string // of package congestion: Path and the first group's algorithm apply
	Alone bool   // of all trials: it measures CPU time
}

// measured is what one run of a trial measured.
type measured struct {
	congestion.Outcome
	Fault *congestion.FaultResult `json:"fault,omitempty"`
}

// runs are the runs of a cell's trials.
type runs map[role][]measured

// claim is what a cell claims: every part of it has to be within its bounds.
type claim struct {
	title string // head of its column
	parts []part
	// of is the role that the claim is about, if the cell can be judged without it.
	of role
}

// part is a figure with its bounds.
type part struct {
	label       string // distinguishes the parts of a claim
	unit        unit
	value       func(runs) float64
	least, most func(runs) float64 // nil: no bound
}

// unit is how a figure is written.
type unit string

// The units.
const (
	ratio     unit = ""
	percent   unit = "%"
	ms        unit = "ms"
	seconds   unit = "s"
	mbps      unit = "Mb/s"
	cpuPerGB  unit = "s/GB"
	countUnit unit = "n"
)

func (u unit) write(v float64) string {
	switch {
	case v != v || v > 1e300 || v < -1e300:
		return "none"
	case u == percent:
		return fmt.Sprintf("%.1f %%", 100*v)
	case u == ms:
		return fmt.Sprintf("%.0f ms", v)
	case u == seconds:
		return fmt.Sprintf("%.2f s", v)
	case u == mbps:
		return fmt.Sprintf("%.2f Mb/s", v/1e6)
	case u == cpuPerGB:
		return fmt.Sprintf("%.2f s/GB", v)
	case u == countUnit:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// constant is a bound that does not depend on the runs.
func constant(v float64) func(runs) float64 { return func(runs) float64 { return v } }

// median returns the median of a figure over the runs of a role.
func median(of role, figure func(measured) float64) func(runs) float64 {
	return func(r runs) float64 { return stats.Median(r[of], figure) }
}

// times returns a multiple of a figure.
func times(factor float64, figure func(runs) float64) func(runs) float64 {
	return func(r runs) float64 { return factor * figure(r) }
}

// steady returns the goodput of a group's flows in the second half of the run, each, bit/s.
func steady(group int) func(measured) float64 {
	return func(m measured) float64 { return stats.Mean(m.Groups[group].SteadyBps) }
}

// goodput returns the goodput of a group's flows over the whole run, each, bit/s.
func goodput(group int) func(measured) float64 {
	return func(m measured) float64 { return stats.Mean(m.Groups[group].GoodputBps) }
}

// shareOf returns a figure in bit/s as a share of a limit.
func shareOf(limitBps float64, figure func(measured) float64) func(measured) float64 {
	return func(m measured) float64 { return figure(m) / limitBps }
}

// ofFair returns the first group's goodput, of an equal share for each flow.
func ofFair(m measured) float64 {
	var all []float64
	for _, g := range m.Groups {
		all = append(all, g.SteadyBps...)
	}
	return stats.Mean(m.Groups[0].SteadyBps) / stats.Mean(all)
}

func queueP95(m measured) float64 { return m.QueueP95Ms }

// completion returns a quantile of the completion times of a group's flows, in seconds.
// A flow that did not end takes longer than any.
func completion(group int, q float64) func(measured) float64 {
	return func(m measured) float64 {
		return stats.Quantile(m.Groups[group].Seconds, q, func(v congestion.Value) float64 { return float64(v) })
	}
}

// atLeast returns a claim of one figure.
func atLeast(title string, u unit, value, least func(runs) float64) claim {
	return claim{title: title, parts: []part{{unit: u, value: value, least: least}}}
}

// atMost returns a claim of one figure.
func atMost(title string, u unit, value, most func(runs) float64) claim {
	return claim{title: title, parts: []part{{unit: u, value: value, most: most}}}
}

// lasts returns the duration of the trial's run.
func (t trial) lasts() time.Duration {
	if t.Fault == "" {
		return t.Time + t.WarmUp()
	}
	i := slices.IndexFunc(congestion.Faults(), func(f congestion.Fault) bool { return f.Name == t.Fault })
	return congestion.FaultTime(congestion.Faults()[i])
}

// sharedRateBps is the largest rate of a path whose trials may run beside others.
const sharedRateBps = 30e6

// isAlone reports whether nothing else may run beside the trial.
func (t trial) isAlone() bool {
	rate := t.Path.RateBps
	for _, change := range t.Changes {
		rate = max(rate, change.To.RateBps)
	}
	return t.Alone || rate > sharedRateBps
}

// lacks are algorithms that this kernel does not have, and why.
type lacks map[string]string

// ofTrial returns why a trial cannot be run; empty if it can.
func (l lacks) ofTrial(t trial) string {
	for _, g := range t.Groups {
		if why := l[g.Algorithm]; why != "" {
			return g.Algorithm + " " + why
		}
	}
	return ""
}

// ofCell returns why a cell cannot be judged; empty if it can.
func (l lacks) ofCell(c cell) string {
	for _, name := range c.roles() {
		if why := l.ofTrial(c.trials[name]); why != "" && !c.isOptional(name) {
			return why
		}
	}
	return ""
}

// isOptional reports whether the cell can be judged without a role.
func (c cell) isOptional(name role) bool {
	return slices.ContainsFunc(c.claims, func(cl claim) bool { return cl.of == name })
}

// roles returns the roles of a cell's trials in a fixed order.
func (c cell) roles() []role {
	var all []role
	for name := range c.trials {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
