package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"longhaul/bench/kit"
	"longhaul/lab/pattern"
	"longhaul/lab/relays"
)

// The clients of case storm, all at once.
const (
	stormFlows  = 5000
	stormRTT    = 10 * time.Millisecond
	stormRate   = 1e9
	stormLeast  = 200      // bytes that a client sends, and that it gets
	stormMost   = 20 << 10 // bytes
	stormRSS    = 150e6    // bytes of each relay at most
	stormWithin = 5 * time.Minute
)

// stormCores are the bounds of each relay's CPU; 0: none.
var stormCores = []float64{0, 0.5, 0.2}

// storm has thousands of clients connect at once, while each relay has so much CPU.
func storm(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	for _, cores := range stormCores {
		if err := stormWith(ctx, o, way, cores, o.SeedOf(run), note); err != nil {
			return err
		}
	}
	return nil
}

func stormWith(ctx context.Context, o kit.Options, way string, cores float64, seed uint64, note func(kit.Measured)) (err error) {
	n := kit.Pick(o, stormFlows, 1000)
	if o.Flows > 0 {
		n = o.Flows
	}
	w, err := newWorld(ctx, o, conditions(stormRTT, stormRate), way, target{}.serve)
	if err != nil {
		return err
	}
	shares, err := mountCPUShares(w.Dir)
	if err != nil {
		w.close()
		return err
	}
	w.AtClose(func() { err = errors.Join(err, shares.remove()) })
	defer w.close()
	for _, r := range w.Relays {
		if err := shares.put(r.PID(), r.Name, cores); err != nil {
			return err
		}
	}
	before, err := cpuTime(w.pids())
	if err != nil {
		return err
	}
	began := time.Now()
	ends := w.stormOf(ctx, n, seed)
	took := time.Since(began)

	said := "unbounded"
	if cores > 0 {
		said = fmt.Sprintf("%g cores each", cores)
	}
	failed := slices.DeleteFunc(ends, func(e stormEnd) bool { return e.err == nil })
	failures := kit.Measured{Name: said + ": flows not served", Value: float64(len(failed)), Bound: kit.AtMost(0), Exact: true}
	if len(failed) > 0 {
		failures.Example = w.whyFailed(failed)
	}
	note(kit.Measured{Name: said + ": flows served", Value: float64(n - len(failed))})
	note(failures)
	note(kit.Measured{Name: said + ": all done after", Unit: "s", Value: took.Seconds()})
	after, err := cpuTime(w.pids())
	if err != nil {
		return err
	}
	note(kit.Measured{Name: said + ": CPU of both relays", Unit: "s", Value: (after - before).Seconds()})
	for i, r := range []*relays.Process{w.far(), w.near()} {
		peak, err := peakRSS(r.PID())
		if err != nil {
			return err
		}
		note(kit.Measured{Name: fmt.Sprintf("%s: most memory, %s relay", said, farNear[i]), Unit: "MB", Value: peak / 1e6, Bound: kit.AtMost(stormRSS / 1e6)})
	}
	return nil
}

// stormEnd is the end of one client of a storm.
type stormEnd struct {
	local string
	err   error // nil: it was served
}

// stormOf has so many clients connect at once. Each sends some bytes, reads as many others, and ends.
func (w *world) stormOf(ctx context.Context, n int, seed uint64) []stormEnd {
	ends := make([]stormEnd, n)
	var all sync.WaitGroup
	for i := range ends {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(seed, uint64(i)))
			up, down := stormLeast+dice.Int64N(stormMost-stormLeast), stormLeast+dice.Int64N(stormMost-stormLeast)
			ends[i].local, ends[i].err = w.serveOne(ctx, up, down)
		})
	}
	all.Wait()
	return ends
}

// serveOne sends up bytes and reads down others over a connection of its own.
func (w *world) serveOne(ctx context.Context, up, down int64) (local string, err error) {
	conn, err := w.Host("host-a").DialTCP(ctx, w.to, stormWithin)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	local = conn.LocalAddr().String()
	_ = conn.SetDeadline(time.Now().Add(stormWithin))
	asked := slices.Concat(request(askReceive, up), pattern.At(0, up), request(askSend, down))
	if err := write(conn, asked); err != nil {
		return local, err
	}
	if err := readOne(conn); err != nil {
		return local, fmt.Errorf("receipt: %w", err)
	}
	if _, err := readPattern(conn, down, nil); err != nil {
		return local, fmt.Errorf("answer: %w", err)
	}
	if err := conn.CloseWrite(); err != nil {
		return local, fmt.Errorf("end: %w", err)
	}
	if rest, err := io.Copy(io.Discard, conn); err != nil || rest > 0 {
		return local, fmt.Errorf("end: %d bytes too many, %w", rest, err)
	}
	return local, nil
}

// whyFailed counts what the near relay's log says of clients that were not served.
func (w *world) whyFailed(failed []stormEnd) string {
	t := tally{example: failed[0].err.Error()}
	for _, e := range failed {
		lines := w.heard("client=" + e.local + " ")
		if t.reasons = append(t.reasons, reasonOf(lines)); len(t.reasons) == 1 && len(lines) > 0 {
			t.example += "; " + lines[len(lines)-1]
		}
	}
	return fmt.Sprintf("the near relay's log says %s; %s", t.said(), t.example)
}

// peakRSS is the most memory that a process has had, in bytes.
func peakRSS(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := p.NewStatus()
	return float64(status.VmHWM), err
}
