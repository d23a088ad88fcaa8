package main

import (
	"context"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/tcpserver"
)

// perConnection is a policer that gives each connection a rate.
func perConnection(rateBps int64) link.Policer {
	return link.Policer{RateBps: rateBps, BurstBytes: stripeBurst, PerFlow: true}
}

// striped is what one flow did.
type striped struct {
	arrived  []arrival // that of each stripeTick
	last     float64   // bytes a second of the last 4 s
	lanes    int       // at the end
	cpuPerGB float64   // 0: no program has carried it
}

const stripeTick = 100 * time.Millisecond

// reached is when the flow first had a rate for a second; the whole time if never.
func (s striped) reached(rate float64) time.Duration {
	from := 0
	for _, now := range s.arrived {
		for now.at-s.arrived[from].at > time.Second+stripeTick/2 {
			from++
		}
		first := s.arrived[from]
		if span := now.at - first.at; span > time.Second-stripeTick/2 && float64(now.total-first.total) >= rate*span.Seconds() {
			return first.at
		}
	}
	return s.arrived[len(s.arrived)-1].at
}

// rateOfLast is the rate of the last time, in bytes a second.
func (s striped) rateOfLast(last time.Duration) float64 {
	end := s.arrived[len(s.arrived)-1]
	i := slices.IndexFunc(s.arrived, func(a arrival) bool { return end.at-a.at <= last })
	return float64(end.total-s.arrived[i].total) / (end.at - s.arrived[i].at).Seconds()
}

// stripe runs one bulk flow for a while.
func (w *world) stripe(ctx context.Context, received *atomic.Int64, lasts time.Duration) (s striped, err error) {
	conn, err := w.dial(ctx)
	if err != nil {
		return s, w.errorf("dial: %w", err)
	}
	defer sendOn(conn)()
	before, err := cpuTime(w.pids())
	from := received.Load()
	ticker := time.NewTicker(stripeTick)
	defer ticker.Stop()
	for began := time.Now(); err == nil && time.Since(began) < lasts; {
		select {
		case <-ticker.C:
			s.arrived = append(s.arrived, arrival{time.Since(began), received.Load() - from})
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return s, err
	}
	after, err := cpuTime(w.pids())
	if err != nil {
		return s, err
	}
	s.last = s.rateOfLast(4 * time.Second)
	s.cpuPerGB = (after - before).Seconds() * 1e9 / float64(s.arrived[len(s.arrived)-1].total)
	if len(w.relays) == 0 || w.way == WayPlain {
		return s, nil
	}
	s.lanes, err = w.lanesBusy(ctx)
	return s, err
}

const figureEcho = "echo, median"

// echoesBeside times echoes of 64 bytes beside a bulk flow. Eight connections of it take
// half of the link, so that its queue is empty: what is left are the relays.
func echoesBeside(ctx context.Context, o Options, way string, _ int, note func(measured)) error {
	c := conditions(stripeRTT, stripeRate(o))
	c.Policer = perConnection(c.RateBps / 16)
	w, err := buildWorld(ctx, o, lab.TwoSites(c), way, tcpserver.Echo, settings{})
	if err != nil {
		return err
	}
	defer w.close()
	median, err := w.echoes(ctx, pick(o, 12*time.Second, 6*time.Second))
	if err != nil {
		return err
	}
	note(measured{name: figureEcho, unit: "s", value: median})
	return nil
}

// compareEchoes holds the echoes beside many lanes against those beside one.
func compareEchoes(c *CaseResult) {
	one, many := c.of(WayPair, figureEcho), c.of(WayLanes, figureEcho)
	for run := range min(len(one), len(many)) {
		c.add(WayLanes, measured{name: "echo ÷ that beside one lane", value: many[run] / one[run], bound: atMost(stripeEchoFactor)})
	}
}

func (w *world) echoes(ctx context.Context, lasts time.Duration) (median float64, err error) {
	bulk, err := w.dial(ctx)
	if err != nil {
		return 0, w.errorf("dial: %w", err)
	}
	sent := make(chan error, 1)
	go func() { sent <- sendForever(bulk) }()
	go func() { _, _ = io.Copy(io.Discard, bulk) }()
	defer func() {
		_ = bulk.SetLinger(0)
		bulk.Close()
		<-sent
	}()
	if err := pause(ctx, 3*time.Second); err != nil {
		return 0, err
	}
	conn, err := w.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	var took []float64
	message := make([]byte, 64)
	for began := time.Now(); time.Since(began) < lasts; {
		at := time.Now()
		_ = conn.SetDeadline(at.Add(patience))
		if _, err := conn.Write(message); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(conn, message); err != nil {
			return 0, err
		}
		took = append(took, time.Since(at).Seconds())
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// sendOn sends on a connection until end, which resets it.
func sendOn(conn *net.TCPConn) (end func()) {
	sent := make(chan error, 1)
	go func() { sent <- sendForever(conn) }()
	return func() {
		_ = conn.SetLinger(0)
		conn.Close()
		<-sent
	}
}

// lanesBusy is the number of lanes that carry flows.
func (w *world) lanesBusy(ctx context.Context) (n int, err error) {
	status, err := w.near().Status(ctx)
	if err == nil && status.Pairs != nil && len(status.Pairs.Sessions) > 0 {
		n = status.Pairs.Sessions[0].LanesBusy
	}
	return n, err
}
