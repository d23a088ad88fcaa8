// Command failover ends one of two far relays under a stream of new connections, and
// counts the failures.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/progress"
	"longhaul/lab/relays"
	"longhaul/lab/sandbox"
	"longhaul/lab/tcpserver"
)

// The ways in which a relay dies.
const (
	CaseProcess = "process" // killed by SIGKILL: its host answers with resets
	CaseHost    = "host"    // its WAN is cut: nothing answers
)

// Cases returns all cases.
func Cases() []string { return []string{CaseProcess, CaseHost} }

// Options are the options of a run.
type Options struct {
	Program   string // the longhaul binary
	PerSecond int    // new connections
	Standing  int    // standing connections, on both relays in total
	Before    time.Duration
	After     time.Duration // the death; each at least a second

	// Patience is the timeout of connections that the death may have cut off
	// silently: those of the dead relay, and those begun until halfASecond after
	// it. 0 means 15 s.
	Patience time.Duration

	Report progress.Reporter
}

// Result is the result of one death.
type Result struct {
	Case      string `json:"case"`
	Flows     int    `json:"flows"`       // new connections in all
	FlowsOnB2 int    `json:"flows_on_b2"` // those that the other relay served

	// Failed connections by their start: before the death, in the second after it,
	// and later.
	FailedBefore      int `json:"failed_before"`
	FailedFirstSecond int `json:"failed_first_second"`
	FailedLater       int `json:"failed_later"`

	// The slowest successful one, from connect to the last byte of the reply.
	SlowestBeforeSeconds      float64 `json:"slowest_before_seconds"`
	SlowestFirstSecondSeconds float64 `json:"slowest_first_second_seconds"`
	SlowestLaterSeconds       float64 `json:"slowest_later_seconds"`

	Standing          int     `json:"standing"`            // on the surviving relay
	Disturbed         int     `json:"disturbed"`           // those that were cut or received wrong bytes
	LongestGapSeconds float64 `json:"longest_gap_seconds"` // between two replies
	Lost              int     `json:"lost"`                // connections of the dead relay that got a reset

	FirstError string `json:"first_error,omitempty"`
}

// The ports, and the path.
const (
	port       = 6000
	targetPort = 5000
	rtt        = 20 * time.Millisecond
	rateBps    = 300e6
)

// patience bounds each connection that the death does not affect, on a busy machine.
const patience = time.Minute

// Run ends a relay in one way. The process must be inside a sandbox.
func Run(ctx context.Context, name string, o Options) (Result, error) {
	r := Result{Case: name}
	o.Patience = cmp.Or(o.Patience, 15*time.Second)
	w, err := newWorld(ctx, o.Program)
	if err != nil {
		return r, err
	}
	defer w.close()
	standing, err := w.stand(ctx, o.Standing)
	if err != nil {
		return r, err
	}
	stopStanding := standing.begin(ctx, o.Patience)
	defer stopStanding()

	var death time.Time
	died := make(chan error, 1)
	timer := time.AfterFunc(o.Before, func() {
		death = time.Now()
		died <- w.die(name)
	})
	defer timer.Stop()
	flows := w.stream(ctx, name, o)
	if err := errors.Join(<-died, ctx.Err()); err != nil {
		return r, err
	}
	stopStanding()
	r.count(flows, death)
	r.countStanding(standing)
	return r, nil
}

// count sorts the new connections by their start.
func (r *Result) count(flows []attempt, death time.Time) {
	r.Flows = len(flows)
	for _, f := range flows {
		failed, slowest := &r.FailedBefore, &r.SlowestBeforeSeconds
		switch since := f.began.Sub(death); {
		case since >= time.Second:
			failed, slowest = &r.FailedLater, &r.SlowestLaterSeconds
		case since >= 0:
			failed, slowest = &r.FailedFirstSecond, &r.SlowestFirstSecondSeconds
		}
		if f.err != nil {
			*failed++
			if r.FirstError == "" {
				r.FirstError = fmt.Sprintf("%+.3f s: %v", f.began.Sub(death).Seconds(), f.err)
			}
			continue
		}
		if f.relay == 2 {
			r.FlowsOnB2++
		}
		*slowest = max(*slowest, f.took.Seconds())
	}
}

func (r *Result) countStanding(s *standing) {
	for _, f := range s.flows {
		switch {
		case f.relay == 1 && f.err != nil:
			r.Lost++
		case f.relay == 2:
			r.Standing++
			if f.err != nil {
				r.Disturbed++
			}
			r.LongestGapSeconds = max(r.LongestGapSeconds, f.longest.Seconds())
		}
	}
}

// world is the lab with its relays and the target.
type world struct {
	lab    *lab.Lab
	dir    string
	relays []*relays.Process // relay-b, relay-b2, relay-a
	stop   func()            // of the target; nil before it serves
}

func newWorld(ctx context.Context, program string) (*world, error) {
	// In the sandbox's own /run, which disappears with the sandbox.
	if err := sandbox.PrivateRun(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/run", "failover-")
	if err != nil {
		return nil, err
	}
	c := lab.MitreConditions()
	c.RTT, c.RateBps = rtt, rateBps
	built, err := lab.Build(lab.TwoFarRelays(c))
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	w := &world{lab: built, dir: dir}
	if err := w.start(ctx, program); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) start(ctx context.Context, program string) error {
	l, err := w.lab.Host("host-b").ListenTCP(ctx, targetPort)
	if err != nil {
		return err
	}
	w.stop = tcpserver.Serve(l, answer)
	to := netip.AddrPortFrom
	for _, one := range []struct{ name, tunnel string }{
		{"relay-b", fmt.Sprintf("listen: %v, forward: %v", to(lab.WANB, port), to(lab.HostB, targetPort))},
		{"relay-b2", fmt.Sprintf("listen: %v, forward: %v", to(lab.WANB2, port), to(lab.HostBOnB2, targetPort))},
		{"relay-a", fmt.Sprintf("listen: %v, forward: [%v, %v], balance: least-flows, health: {check: connect, interval: 500ms, timeout: 500ms}",
			to(lab.RelayA, port), to(lab.WANB, port), to(lab.WANB2, port))},
	} {
		r := &relays.Process{Name: one.name, Host: w.lab.Host(one.name), Program: program, Dir: w.dir}
		w.relays = append(w.relays, r)
		text := fmt.Sprintf("control_socket: %s\nlog: {level: info}\ntunnels:\n  - {name: main, %s}\n", r.Socket(), one.tunnel)
		if err := r.Start(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// die kills relay-b or cuts its WAN.
func (w *world) die(name string) error {
	if name == CaseProcess {
		return w.relays[0].Kill()
	}
	return w.lab.Link(lab.WAN).Change(func(s *link.Settings) { s.Down = true })
}

func (w *world) close() {
	for _, r := range w.relays {
		if r.Running() {
			_ = r.Kill()
		}
	}
	if w.stop != nil {
		w.stop()
	}
	w.lab.Close()
	os.RemoveAll(w.dir)
}
