//go:build linux

// Command interception measures what interception costs: CPU time of an intercepting
// relay beside one that its clients address, CPU time of a router for packets that do
// not concern the relay, and how long clients wait for their connect.
package main

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"longhaul/lab"
	"longhaul/lab/progress"
	"longhaul/lab/sandbox"
)

// Options are the options of a run.
type Options struct {
	Program string // the longhaul binary
	Cases   []string
	Repeat  int
	Quick   bool // fewer turns: a first look

	Report progress.Reporter
}

// The ways of a case. Each has hosts of its own, so that they can take short turns.
const (
	wayAddressed = "addressed"    // clients dial the relay
	wayControl   = "control"      // as the reference: what differs by chance
	wayIntercept = "intercept"    // the relay intercepts
	waySource    = "source-relay" // the same with source: relay
	wayPlain     = "plain"        // a router without a relay
	wayEnded     = "ended"        // a router whose relay intercepted, and has stopped
	wayDropped   = "dropped"      // a router that forwards nothing
	wayMirror    = "mirror"       // the relay intercepts, with refuse: mirror
)

// trial is one case.
type trial struct {
	name, about string
	unit        string // of the cost
	per         float64
	ways        []string
	zero        string  // way whose cost is not the router's; empty: none
	reference   string  // way that others are compared with
	atMost      float64 // of a way that intercepts, over the reference
	turns       int     // of each way in a run

	start func(ctx context.Context, o Options, way string) (meter, error)
}

// meter is a way that runs.
type meter interface {
	// turn does a piece of work, and returns its CPU time and its amount.
	turn(ctx context.Context) (cpu time.Duration, amount float64, err error)
	// close returns an error if the work was not what it should be.
	close() error
}

const (
	mostOfRelay   = 1.05
	mostOfForward = 1.02
)

// The cases, in the order of the table.
func trials() (all []trial) {
	for _, segments := range []struct {
		suffix, about string
		most, turns   int
	}{
		{"", "segments of up to 64 kB, as with offloads", 0, 20},
		{"-small", "segments of 1448 bytes, as without offloads", 1, 5},
	} {
		all = append(all, trial{
			name: "relay" + segments.suffix, about: "a flow through a relay, " + segments.about,
			unit: "s/GB", per: 1e9, ways: []string{wayAddressed, wayControl, wayIntercept, waySource},
			reference: wayAddressed, atMost: mostOfRelay, turns: segments.turns,
			start: func(ctx context.Context, o Options, way string) (meter, error) {
				return startFlow(ctx, o, way, segments.most)
			},
		})
	}
	for _, p := range []packets{
		{"udp", false, 64}, {"udp", false, 1400}, {"udp", true, 64}, {"tcp", false, 64}, {"tcp", false, 1400}, {"tcp", true, 64},
	} {
		all = append(all, trial{
			name: "forward-" + p.name(), about: "packets that a router forwards past its relay, " + p.about(),
			unit: "ns/packet", per: 1e9, ways: []string{wayDropped, wayPlain, wayControl, wayIntercept, wayEnded},
			zero: wayDropped, reference: wayPlain, atMost: mostOfForward, turns: 20,
			start: func(ctx context.Context, o Options, way string) (meter, error) {
				return startPackets(ctx, o, way, p)
			},
		})
	}
	return all
}

// Cases returns the names of all cases.
func Cases() (names []string) {
	for _, t := range trials() {
		names = append(names, t.name)
	}
	return append(names, connectCase)
}

// Run runs the cases. The process must be inside a sandbox.
func Run(ctx context.Context, o Options) (Result, error) {
	result := Result{Experiment: "interception", Kernel: lab.KernelRelease(), Quick: o.Quick, Repeat: o.Repeat}
	if err := sandbox.PrivateRun(); err != nil {
		return result, err
	}
	for _, t := range trials() {
		if !slices.Contains(o.Cases, t.name) {
			continue
		}
		c, err := t.measure(ctx, o)
		if err != nil {
			return result, err
		}
		result.Cases = append(result.Cases, c)
	}
	if slices.Contains(o.Cases, connectCase) {
		c, err := measureConnects(ctx, o)
		if err != nil {
			return result, err
		}
		result.Connect = &c
	}
	return result, nil
}

// spent is what the turns of one way cost in one run.
type spent struct {
	own, machine time.Duration
	amount       float64
}

// measure runs a case. The ways take short turns, so that a slow second of the machine
// meets all of them.
func (t trial) measure(ctx context.Context, o Options) (c Case, err error) {
	c = Case{Name: t.name, About: t.about, Unit: t.unit}
	meters := make([]meter, len(t.ways))
	defer func() {
		for _, m := range meters {
			if m == nil {
				continue
			}
			if closing := m.close(); err == nil {
				err = closing
			}
		}
	}()
	for i, way := range t.ways {
		if meters[i], err = t.start(ctx, o, way); err != nil {
			return c, err
		}
		if _, _, err = meters[i].turn(ctx); err != nil { // caches and windows grow
			return c, err
		}
	}
	turns := t.turns
	if o.Quick {
		turns = max(1, turns/10)
	}
	runs := make([][]spent, len(t.ways))
	for run := range o.Repeat {
		o.Report.Linef("%s, %d of %d", t.name, run+1, o.Repeat)
		sums := make([]spent, len(t.ways))
		for turn := range turns {
			for k := range t.ways {
				i := (k + turn) % len(t.ways)
				if err := sums[i].take(ctx, meters[i]); err != nil {
					return c, err
				}
			}
		}
		for i := range sums {
			runs[i] = append(runs[i], sums[i])
		}
	}
	c.Figures = t.figures(runs)
	return c, nil
}

// take adds a turn.
func (s *spent) take(ctx context.Context, m meter) error {
	before, err := machineTime()
	if err != nil {
		return err
	}
	cpu, amount, err := m.turn(ctx)
	if err != nil {
		return err
	}
	after, err := machineTime()
	s.own, s.machine, s.amount = s.own+cpu, s.machine+after-before, s.amount+amount
	return err
}

// machineTime is the time for which this machine's CPUs were busy, interrupts included.
func machineTime() (time.Duration, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return 0, err
	}
	c := stat.CPUTotal
	return time.Duration((c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ) * float64(time.Second)), nil
}
