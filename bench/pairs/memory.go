package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/relays"
)

// The crowd of case memory.
const (
	memoryFlows = 1000
	memoryLimit = 512 << 20 // bytes, of each relay
	evenShares  = 0.9       // Jain's index, at least
)

// memory measures what relays hold of one bulk flow, and how a crowd of bulk flows keeps
// to memory_limit.
func memory(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	c := conditions(stripeRTT, stripeRate(o))
	c.Policer = perConnection(c.RateBps / 8)
	bdp := c.LimitBps() / 8 * stripeRTT.Seconds()
	if way == WayPair {
		bdp /= 8 // its connection gets no more
	}
	one, err := holdFlows(ctx, o, c, way, 1, kit.Pick(o, 20*time.Second, 10*time.Second), settings{})
	if err != nil {
		return err
	}
	for i, site := range farNear {
		note(kit.Measured{Name: site + ": one flow, most held ÷ BDP", Value: float64(one.held[i]) / bdp, Bound: kit.AtMost(stripeMemoryBDPs)})
	}
	flows := kit.Pick(o, memoryFlows, memoryFlows/10)
	if o.Flows > 0 {
		flows = o.Flows
	}
	limit := kit.Pick(o, int64(memoryLimit), int64(memoryLimit)/4)
	many, err := holdFlows(ctx, o, c, way, flows, kit.Pick(o, 40*time.Second, 20*time.Second),
		settings{process: fmt.Sprintf("memory_limit: %dMiB", limit>>20)})
	if err != nil {
		return err
	}
	note(kit.Measured{Name: "flows at once", Value: float64(flows)})
	if way == WayLanes {
		note(kit.Measured{Name: "lanes of all, at most", Value: float64(many.lanes)})
	}
	note(kit.Measured{Name: "flows that failed", Value: float64(many.failed), Bound: kit.AtMost(0), Exact: true, Example: many.example})
	note(kit.Measured{Name: "goodput of all, of the limit", Value: many.goodputBps / c.LimitBps()})
	note(kit.Measured{Name: "Jain's index of the flows' bytes, second half", Value: many.jain, Bound: kit.AtLeast(evenShares)})
	for i, site := range farNear {
		note(kit.Measured{Name: site + ": most held ÷ memory_limit", Value: float64(many.held[i]) / float64(limit), Bound: kit.AtMost(0.25)})
		note(kit.Measured{Name: site + ": most memory ÷ memory_limit", Value: float64(many.memory[i]) / float64(limit), Bound: kit.AtMost(1)})
	}
	return nil
}

// farNear are the sites in the order of a world's relays.
var farNear = [2]string{"far", "near"}

// holding is what relays held at most, far and near.
type holding struct {
	held       [2]int64 // bytes of streams
	memory     [2]int64 // of the processes: heap, stacks
	lanes      int      // busy ones of the near relay
	failed     int64    // flows that ended before they were to
	example    string   // of what the near relay says of them
	goodputBps float64
	jain       float64 // Jain's index of what the flows have moved in the second half of the time
}

// arrivals counts what has come of each flow.
type arrivals struct {
	mu   sync.Mutex
	each []*atomic.Int64
}

// begin returns the counter of another flow.
func (a *arrivals) begin() *atomic.Int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.each = append(a.each, new(atomic.Int64))
	return a.each[len(a.each)-1]
}

// all returns the bytes of each flow, in the order in which they began.
func (a *arrivals) all() (bytes []float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.each {
		bytes = append(bytes, float64(n.Load()))
	}
	return bytes
}

// holdFlows sends on some flows at once, as fast as they go.
func holdFlows(ctx context.Context, o kit.Options, c lab.Conditions, way string, flows int, lasts time.Duration, s settings) (h holding, err error) {
	var failed atomic.Int64
	var each arrivals
	w, err := buildWorld(ctx, o, lab.TwoSites(c), way, func(conn net.Conn) { countAll(conn, each.begin()) }, s)
	if err != nil {
		return h, err
	}
	defer w.close()
	var senders sync.WaitGroup
	var conns []*net.TCPConn
	defer func() {
		for _, conn := range conns {
			_ = conn.SetLinger(0)
			conn.Close()
		}
		senders.Wait()
	}()
	for range flows { // before any of them takes memory
		conn, err := w.dial(ctx)
		if err != nil {
			return h, w.errorf("dial: %w", err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		senders.Go(func() {
			if sendForever(conn) != nil {
				failed.Add(1)
			}
		})
	}
	var half []float64
	began := time.Now()
	for time.Since(began) < lasts {
		if err := kit.Pause(ctx, 100*time.Millisecond); err != nil {
			return h, err
		}
		for i, r := range []*relays.Process{w.far(), w.near()} {
			used, err := usageOf(r.PID())
			if err != nil {
				return h, err
			}
			status, err := r.Status(ctx)
			if err != nil {
				return h, w.errorf("status: %w", err)
			}
			h.memory[i] = max(h.memory[i], used.memoryBytes)
			if status.Pairs == nil {
				continue
			}
			h.held[i] = max(h.held[i], status.Pairs.RetainedBytes)
			for _, session := range status.Pairs.Sessions {
				if r == w.near() {
					h.lanes = max(h.lanes, session.LanesBusy)
				}
			}
		}
		if half == nil && time.Since(began) > lasts/2 {
			half = each.all()
		}
	}
	last := each.all()
	h.goodputBps = sum(last) * 8 / time.Since(began).Seconds()
	for i := range half {
		last[i] -= half[i]
	}
	h.jain = stats.Jain(last)
	h.failed = failed.Load()
	for _, line := range w.heard("msg=flow ") {
		h.example = line
	}
	return h, nil
}
