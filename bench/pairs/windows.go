package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab"
	"longhaul/lab/relays"
	"longhaul/lab/tcpcc"
)

// widePath is a path that holds more than 64 MiB, the window of a TCP connection whose buffers the
// usual sysctls bound.
type widePath struct {
	rateBps int64
	rtt     time.Duration
}

// wideControl neither fills a queue, which would take memory, nor stops for a round trip every 10 s, as
// BBR does to measure the path.
const wideControl = "haul"

// wideAlgorithm is wideControl, or what kernels have where it cannot be loaded.
func wideAlgorithm() string {
	if tcpcc.IsAvailable(wideControl) {
		return wideControl
	}
	return "cubic"
}

// A flow starts for so many round trips, and is measured for so many then.
const (
	wideStart    = 30
	wideMeasured = 10
)

// The bounds of a flow on such a path.
const (
	wideShare      = 0.9 // of the path's goodput, after the start
	wideMemoryBDPs = 2.2 // of a site: what the relay keeps, and the kernel for its sockets
)

// windows measures one flow on each wide path.
func windows(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	for _, p := range kit.Pick(o, []widePath{{1e9, time.Second}, {2e9, 500 * time.Millisecond}}, []widePath{{300e6, 2 * time.Second}}) {
		if err := p.measure(ctx, o, way, note); err != nil {
			return err
		}
	}
	return nil
}

func (p widePath) measure(ctx context.Context, o kit.Options, way string, note func(kit.Measured)) error {
	c := conditions(p.rtt, p.rateBps)
	s := settings{both: fmt.Sprintf(", wan: {rate: %dMbit, congestion_control: %s}", p.rateBps/1e6, wideAlgorithm())}
	if way == WayPlain { // legs of a side that is named may have wide windows
		s.tunnel, s.far = ", wan_side: forward", ", wan_side: listen"
	}
	var received atomic.Int64
	w, err := buildWorld(ctx, o, lab.TwoSites(c), way, func(conn net.Conn) { countAll(conn, &received) }, s)
	if err != nil {
		return err
	}
	defer w.close()
	var before [2]footprint
	if err := w.footprints(ctx, &before); err != nil {
		return err
	}
	conn, err := w.dial(ctx)
	if err != nil {
		return w.errorf("dial: %w", err)
	}
	defer sendOn(conn)()
	var whole, after [2]footprint // the most, of each
	began, from, fromAt := time.Now(), int64(0), time.Time{}
	for lasts := (wideStart + wideMeasured) * p.rtt; time.Since(began) < lasts; {
		if err := kit.Pause(ctx, p.rtt/4); err != nil {
			return err
		}
		var now [2]footprint
		if err := w.footprints(ctx, &now); err != nil {
			return err
		}
		started := time.Since(began) > wideStart*p.rtt
		if started && fromAt.IsZero() {
			from, fromAt = received.Load(), time.Now()
		}
		for i := range now {
			now[i].residentBytes -= before[i].residentBytes
			whole[i].atLeast(now[i])
			if started {
				after[i].atLeast(now[i])
			}
		}
	}
	goodput := float64(received.Load()-from) * 8 / time.Since(fromAt).Seconds()
	bdp := c.LimitBps() / 8 * p.rtt.Seconds()
	name := func(what string) string { return fmt.Sprintf("%g Mb/s, %v: %s", float64(p.rateBps)/1e6, p.rtt, what) }
	note(kit.Measured{Name: name("BDP, MB"), Value: bdp / 1e6})
	note(kit.Measured{Name: name("goodput after the start ÷ the limit"), Value: goodput / c.LimitBps(), Bound: kit.AtLeast(wideShare)})
	for i, site := range farNear {
		note(kit.Measured{Name: name(site + ", most kept ÷ BDP"), Value: float64(after[i].keptBytes) / bdp})
		note(kit.Measured{Name: name(site + ", most in the kernel ÷ BDP"), Value: float64(after[i].kernelBytes) / bdp})
		note(kit.Measured{Name: name(site + ", most of both ÷ BDP"), Value: float64(after[i].bothBytes) / bdp, Bound: kit.AtMost(wideMemoryBDPs)})
		note(kit.Measured{Name: name(site + ", the same with the start"), Value: float64(whole[i].bothBytes) / bdp})
		note(kit.Measured{Name: name(site + ", most resident ÷ BDP"), Value: float64(whole[i].residentBytes) / bdp})
		if way != WayPlain {
			note(kit.Measured{Name: name(site + ", most kept ÷ budget"), Value: float64(whole[i].keptBytes) / float64(whole[i].budgetBytes), Bound: kit.AtMost(1)})
		}
	}
	return nil
}

// footprint is the memory that a flow takes at a site.
type footprint struct {
	keptBytes     int64 // of streams, by the relay
	budgetBytes   int64 // for that
	kernelBytes   int64 // of all sockets of the site's relay, with the overhead of packets
	residentBytes int64 // of the process, without files
	bothBytes     int64 // the most of keptBytes and kernelBytes at one moment; see atLeast
}

// atLeast raises all figures to those of another moment.
func (f *footprint) atLeast(now footprint) {
	f.bothBytes = max(f.bothBytes, now.keptBytes+now.kernelBytes)
	f.keptBytes, f.kernelBytes = max(f.keptBytes, now.keptBytes), max(f.kernelBytes, now.kernelBytes)
	f.budgetBytes, f.residentBytes = max(f.budgetBytes, now.budgetBytes), max(f.residentBytes, now.residentBytes)
}

// footprints looks at both sites, far and near.
func (w *world) footprints(ctx context.Context, all *[2]footprint) error {
	for i, r := range []*relays.Process{w.far(), w.near()} {
		f := &all[i]
		used, err := usageOf(r.PID())
		if err != nil {
			return err
		}
		status, err := r.Status(ctx)
		if err != nil {
			return w.errorf("status: %w", err)
		}
		f.residentBytes = used.memoryBytes
		if p := status.Pairs; p != nil {
			f.keptBytes, f.budgetBytes = p.RetainedBytes, p.RetainedLimitBytes
		}
		if err := r.Host.Do(func() error { return kernelMemory(&f.kernelBytes) }); err != nil {
			return err
		}
	}
	return nil
}

// kernelMemory adds up what the kernel holds for TCP in the calling thread's network namespace.
func kernelMemory(bytes *int64) error {
	d, err := tcpinfo.OpenDiag()
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Each(tcpinfo.Connections, func(c *tcpinfo.Connection) {
		*bytes += int64(c.Memory.RcvAlloc) + int64(c.Memory.SndQueued)
	})
}
