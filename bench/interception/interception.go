//go:build linux

// Command interception measures what interception costs: CPU time of an intercepting
// relay beside one that its clients address, CPU time of a router for packets that do
// not concern the relay, and how long clients wait for their connect.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"longhaul/bench/kit"
	"longhaul/lab/experiment"
)

func main() { kit.Main(suite().Entry()) }

func suite() kit.Suite {
	s := kit.Suite{Usual: kit.Options{Repeat: 5}, Experiment: experiment.Experiment{
		Name:    "interception",
		Summary: "CPU time of relays that intercept and of packets that pass them, and what clients wait",
		Source:  "no report: a relay that clients address, and a router without one",
		Short:   "What relays that intercept cost",
		Long: `interception compares CPU times, all of the kernel's work included:

  relay    a bulk flow through a relay on a router that intercepts it, beside a
           relay that the client addresses: of both ends and of the relay
  forward  packets that a router forwards past the relay, beside a router
           without one: of the sending thread, less that of packets which the
           router drops at once. ended is a router whose relay has stopped
  connect  how long clients wait for their connect, directly and through relays:
           not CPU time, but time

The ways take turns of some 50 ms, each between hosts of its own. control is
another of the reference's kind: it shows what differs by chance. The machine's
figures are those of all its CPUs: keep it idle otherwise.

Exit codes: 0 every bound was kept, 1 one was not.`,
		Example: `  go run ./bench/interception --repeat 5
  go run ./bench/interception --case forward-udp4-64 --json`,
	}}
	for _, t := range trials() {
		s.Trials = append(s.Trials, kit.Trial{Name: t.name, About: t.about, Ways: t.ways, All: t.measure})
	}
	s.Trials = append(s.Trials, kit.Trial{Name: "connect", About: fmt.Sprintf("time of a connect, the target %v away", connectRTT),
		Ways: connectWays, All: measureConnects})
	return s
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
	ways        []string
	zero        string  // way whose cost is not the router's; empty: none
	reference   string  // way that others are compared with
	atMost      float64 // of a way that intercepts, over the reference
	turns       int     // of each way in a run

	start func(ctx context.Context, o kit.Options, way string) (meter, error)
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
			unit: "s/GB", ways: []string{wayAddressed, wayControl, wayIntercept, waySource},
			reference: wayAddressed, atMost: mostOfRelay, turns: segments.turns,
			start: func(ctx context.Context, o kit.Options, way string) (meter, error) {
				return startFlow(ctx, o, way, segments.most)
			},
		})
	}
	for _, p := range []packets{
		{"udp", false, 64}, {"udp", false, 1400}, {"udp", true, 64}, {"tcp", false, 64}, {"tcp", false, 1400}, {"tcp", true, 64},
	} {
		all = append(all, trial{
			name: "forward-" + p.name(), about: "packets that a router forwards past its relay, " + p.about(),
			unit: "ns/packet", ways: []string{wayDropped, wayPlain, wayControl, wayIntercept, wayEnded},
			zero: wayDropped, reference: wayPlain, atMost: mostOfForward, turns: 20,
			start: func(ctx context.Context, o kit.Options, way string) (meter, error) {
				return startPackets(ctx, o, way, p)
			},
		})
	}
	return all
}

// spent is what the turns of one way cost in one run.
type spent struct {
	own, machine time.Duration
	amount       float64
}

// measure runs a case once. The ways take short turns, so that a slow second of the machine
// meets all of them.
func (t trial) measure(ctx context.Context, o kit.Options, _ int, note func(string, kit.Measured)) (err error) {
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
			return err
		}
		if _, _, err = meters[i].turn(ctx); err != nil { // caches and windows grow
			return err
		}
	}
	sums := map[string]*spent{}
	for turn := range kit.Pick(o, t.turns, max(1, t.turns/10)) {
		for k := range t.ways {
			i := (k + turn) % len(t.ways)
			if sums[t.ways[i]] == nil {
				sums[t.ways[i]] = &spent{}
			}
			if err := sums[t.ways[i]].take(ctx, meters[i]); err != nil {
				return err
			}
		}
	}
	t.figures(sums, note)
	return nil
}

// figures compares the costs of the ways in a run: CPU time for an amount, of the threads
// that take part and of the whole machine. A ratio leaves out the cost of the way zero.
func (t trial) figures(sums map[string]*spent, note func(string, kit.Measured)) {
	cost := func(way string) (own, machine float64) {
		s := sums[way]
		if s == nil {
			return 0, 0
		}
		return s.own.Seconds() / s.amount, s.machine.Seconds() / s.amount
	}
	zero, zeroMachine := cost(t.zero)
	reference, referenceMachine := cost(t.reference)
	for _, way := range t.ways {
		own, machine := cost(way)
		note(way, kit.Measured{Name: "CPU", Unit: t.unit, Value: own})
		note(way, kit.Measured{Name: "machine", Unit: t.unit, Value: machine})
		if way == t.reference || way == t.zero {
			continue
		}
		ratio := kit.Measured{Name: "ratio", Value: (own - zero) / (reference - zero)}
		if way == wayIntercept || way == waySource {
			ratio.Bound = kit.AtMost(t.atMost)
		}
		note(way, ratio)
		note(way, kit.Measured{Name: "machine's ratio", Value: (machine - zeroMachine) / (referenceMachine - zeroMachine)})
	}
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
