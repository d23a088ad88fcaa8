package main

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/pattern"
)

// The WAN of cost-wan.
const (
	costRTT     = 10 * time.Millisecond
	costRateBps = 1e9
)

// Figures of a cost.
const (
	figureCost  = "CPU of both sites, s/GB"
	figureCores = "CPU of both sites, cores"
)

// The bounds of the costs over a cable, in CPU seconds for a gigabyte through both
// relays. Over a WAN of a fixed rate programs wake up for fewer bytes at a time.
const (
	costOfPair      = 1.15
	costOfPairClear = 0.40
	costOfSplicing  = 0.26
)

// cost measures the CPU time of the programs at both sites while one flow goes as fast
// as it can over a cable between the relays' hosts.
func cost(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	return costOver(ctx, o, cabled(lab.TwoSites(lab.MitreConditions())), way, func(m kit.Measured) {
		if m.Name == figureCost {
			m.Bound = kit.AtMost(map[string]float64{WayPair: costOfPair, WayNoResume: costOfPair, WayClear: costOfPairClear, WayClearNoResume: costOfSplicing}[way])
		}
		note(m)
	})
}

// costWAN does the same over a WAN.
func costWAN(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	return costOver(ctx, o, lab.TwoSites(conditions(costRTT, costRateBps)), way, note)
}

// cabled returns the topology with cables in place of its emulated links: segments of up
// to 64 kB pass whole, as between network cards that split and join them.
func cabled(t lab.Topology) lab.Topology {
	for _, l := range t.Links {
		t.Cables = append(t.Cables, lab.Cable{A: l.A, B: l.B, MTU: l.AB.MTU})
	}
	t.Links = nil
	return t
}

func costOver(ctx context.Context, o kit.Options, t lab.Topology, way string, note func(kit.Measured)) error {
	var received atomic.Int64
	w, err := buildWorld(ctx, o, t, way, func(conn net.Conn) { countAll(conn, &received) }, settings{})
	if err != nil {
		return err
	}
	defer w.close()
	conn, err := w.dial(ctx)
	if err != nil {
		return w.errorf("dial: %w", err)
	}
	sent := make(chan error, 1)
	go func() { sent <- sendForever(conn) }()
	defer func() {
		conn.Close()
		<-sent
	}()
	if err := kit.Pause(ctx, kit.Pick(o, 3*time.Second, time.Second)); err != nil {
		return err
	}
	before, err := cpuTime(w.pids())
	bytes, began := received.Load(), time.Now()
	if err == nil {
		err = kit.Pause(ctx, kit.Pick(o, 15*time.Second, 4*time.Second))
	}
	if err != nil {
		return err
	}
	after, err := cpuTime(w.pids())
	if err != nil {
		return err
	}
	took := time.Since(began)
	bytes = received.Load() - bytes
	if bytes <= 0 {
		return w.errorf("no byte arrived in %v", took)
	}
	note(kit.Measured{Name: figureCost, Value: (after - before).Seconds() * 1e9 / float64(bytes)})
	note(kit.Measured{Name: figureCores, Value: (after - before).Seconds() / took.Seconds()})
	note(kit.Measured{Name: "goodput, Mb/s", Value: float64(bytes) * 8 / took.Seconds() / 1e6})
	return nil
}

// countAll receives until the end, and counts correct bytes.
func countAll(conn net.Conn, received *atomic.Int64) {
	buffer := make([]byte, 256<<10)
	for at := int64(0); ; {
		n, err := conn.Read(buffer)
		if err != nil || !pattern.Match(at, buffer[:n]) {
			return
		}
		at += int64(n)
		received.Add(int64(n))
	}
}

func sendForever(conn net.Conn) error {
	for sent := int64(0); ; {
		n, err := conn.Write(pattern.At(sent, 256<<10))
		sent += int64(n)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
	}
}

// compareCosts adds the pair's cost as a share of that of the others, in the same run.
func compareCosts(c *kit.CaseResult) {
	pair := c.Of(WayPair, figureCost)
	for _, peer := range []struct {
		way  string
		most float64
	}{{WayHAProxy, 1}, {WayStunnel, 0.7}, {WayWireGuard, 0.5}} {
		theirs := c.Of(peer.way, figureCost)
		for run := range min(len(pair), len(theirs)) {
			c.Add(WayPair, kit.Measured{Name: "CPU ÷ that of " + peer.way, Value: pair[run] / theirs[run], Bound: kit.AtMost(peer.most)})
		}
	}
}
