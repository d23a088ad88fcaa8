package main

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"longhaul/lab/link"
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
	if len(w.Relays) == 0 || w.way == WayPlain {
		return s, nil
	}
	s.lanes, err = w.lanesBusy(ctx)
	return s, err
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
