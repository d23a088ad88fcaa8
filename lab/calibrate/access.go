package calibrate

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"time"

	"golang.org/x/net/ipv4"

	"longhaul/internal/words/stats"
	"longhaul/lab/link"
)

// Trace sends faster than the trace carries and holds what arrives against it. The trace
// begins anew for that, and so does it afterwards.
func (p Path) Trace(ctx context.Context, dir link.Direction) (Row, error) {
	const tolerance = 0.02
	trace := p.Link.Settings(dir).Trace
	if trace == nil {
		return Row{}, fmt.Errorf("trace %v: this direction replays none", dir)
	}
	// The queue is never empty: the flood exceeds each tenth of a second.
	const window = 100 * time.Millisecond
	peak := 0.0
	for at := time.Duration(0); at < floodTimeMax; at += window {
		peak = max(peak, trace.Bytes(at, at+window)*8/window.Seconds())
	}
	again := *trace
	var got flooded
	var began time.Time
	isolate := func(s *link.Settings) {
		steady(s)
		s.Trace, s.QueueBDP = &again, 0
		s.QueueBytes = max(int(3*window.Seconds()*peak/8), 64*link.DefaultMTU, 8*s.MTU)
	}
	err := p.with(dir, isolate, func() (err error) {
		began = time.Now()
		got, err = p.floodFor(ctx, dir, peak, 2*floodTime)
		return err
	})
	if err != nil {
		return Row{}, fmt.Errorf("trace %v: %w", dir, err)
	}
	delay := p.Link.Settings(dir).Delay
	from, to := max(got.first.Sub(began)-delay, 0), got.last.Sub(began)-delay
	want := trace.Bytes(from, to) * 8 / (to - from).Seconds()
	rate := got.bytes * 8 / (to - from).Seconds()
	return Row{
		What:  fmt.Sprintf("trace %v", dir),
		Asked: fmt.Sprintf("%s from %.2f to %.2f s", formatRate(want), from.Seconds(), to.Seconds()),
		Got:   fmt.Sprintf("%s (%+.2f %%)", formatRate(rate), (rate/want-1)*100),
		OK:    math.Abs(rate/want-1) <= tolerance,
	}, nil
}

// thinningBps is a rate at which the acknowledgements come several in a millisecond.
const thinningBps = 100_000_000

// Thinning sends TCP the other way and counts the acknowledgements that pass. Those
// that a pause of the sender holds back leave alone.
func (p Path) Thinning(ctx context.Context, dir link.Direction) (Row, error) {
	n := p.Link.Settings(dir).ACKThinning
	var ratio float64
	short := func(s *link.Settings) {
		noBottleneck(s)
		steady(s)
		s.Delay = managedDelay
	}
	err := p.withBoth(short, func() error {
		thin := func(s *link.Settings) { s.ACKThinning = n }
		data := func(s *link.Settings) { s.RateBps, s.QueueBytes = thinningBps, managedQueue }
		return p.with(dir, thin, func() error {
			return p.with(1-dir, data, func() error {
				before := p.Link.Counters(dir)
				to, from := p.ends(dir)
				_, _, err := p.stream(ctx, from, to, 0, floodTime)
				c := p.Link.Counters(dir)
				in, thinned := float64(c.PacketsIn-before.PacketsIn), float64(c.Thinned-before.Thinned)
				ratio = in / (in - thinned)
				return err
			})
		})
	})
	if err != nil {
		return Row{}, fmt.Errorf("thinning of ACKs %v: %w", dir, err)
	}
	const tolerance = 0.15
	return Row{
		What:  fmt.Sprintf("ACKs that pass %v", dir),
		Asked: fmt.Sprintf("1 of %.2f to %d", (1-tolerance)*float64(n), n),
		Got:   fmt.Sprintf("1 of %.2f", ratio),
		OK:    ratio >= (1-tolerance)*float64(n) && ratio <= float64(n)+1e-9,
	}, nil
}

// aggregationBps is the rate behind which bursts are measured.
const aggregationBps = 50_000_000

// Aggregation floods a bottleneck and takes the median time between two bursts. A burst
// begins with a packet, so the next is up to a packet's time later than asked; or it
// is full before.
func (p Path) Aggregation(ctx context.Context, dir link.Direction) (Row, error) {
	a := p.Link.Settings(dir).Aggregate
	const bytes = 1000 // of an IP packet
	var times []time.Time
	isolate := func(s *link.Settings) {
		noBottleneck(s)
		steady(s)
		s.RateBps, s.QueueBytes, s.Aggregate = aggregationBps, managedQueue, a
	}
	receive := func(messages []ipv4.Message, _ time.Time, _ uint32) error {
		for i := range messages {
			at, _ := control(messages[i].OOB[:messages[i].NN])
			times = append(times, at)
		}
		return nil
	}
	from, _ := p.ends(dir)
	payload := make([]byte, bytes-udpHeaders(from))
	const each = 10 // packets every 1.4 ms: 57 Mb/s
	pause := time.Duration(math.Round(each * bytes * 8e9 / (aggregationBps * floodExcess)))
	err := p.with(dir, isolate, func() error {
		return p.exchange(dir, receive, func(tx *net.UDPConn) error {
			return paced(ctx, pause, int(floodTime/pause), func(int) error {
				for range each {
					if _, err := tx.Write(payload); err != nil {
						return fmt.Errorf("send: %w", err)
					}
				}
				return nil
			})
		})
	})
	if err != nil {
		return Row{}, fmt.Errorf("bursts %v: %w", dir, err)
	}
	perPacket := time.Duration(bytes * 8e9 / aggregationBps)
	want := a.Every + perPacket/2
	if a.Bytes > 0 {
		want = min(want, time.Duration((a.Bytes+bytes-1)/bytes)*perPacket)
	}
	var gaps []time.Duration
	begin := times[0]
	for i := 1; i < len(times); i++ {
		if times[i].Sub(times[i-1]) > want/3 {
			gaps = append(gaps, times[i].Sub(begin))
			begin = times[i]
		}
	}
	if len(gaps) == 0 {
		gaps = []time.Duration{0}
	}
	slices.Sort(gaps)
	got := stats.At(gaps, 0.5)
	tolerance := perPacket + 300*time.Microsecond
	return Row{
		What:  fmt.Sprintf("time between bursts %v", dir),
		Asked: fmt.Sprintf("%.2f ms ± %.2f ms", want.Seconds()*1e3, tolerance.Seconds()*1e3),
		Got:   fmt.Sprintf("%.2f ms, %d packets each", got.Seconds()*1e3, len(times)/len(gaps)),
		OK:    (got - want).Abs() <= tolerance,
	}, nil
}

// RateLoss sends at the middle of the two rates, where half of the share is lost.
func (p Path) RateLoss(ctx context.Context, dir link.Direction) (Row, error) {
	loss := p.Link.Settings(dir).RateLoss
	middle := float64(loss.FromBps+loss.ToBps) / 2
	want := loss.ShareAt(middle)
	var got, packets float64
	isolate := func(s *link.Settings) {
		noBottleneck(s)
		steady(s)
		s.RateLoss = loss
	}
	err := p.with(dir, isolate, func() error {
		before := p.Link.Counters(dir)
		_, err := p.flood(ctx, dir, middle/floodExcess)
		c := p.Link.Counters(dir)
		packets = float64(c.PacketsIn - before.PacketsIn)
		got = float64(c.Lost-before.Lost) / packets
		return err
	})
	if err != nil {
		return Row{}, fmt.Errorf("loss by rate %v: %w", dir, err)
	}
	// The first 0.2 s, while the mean grows, and the sender's bursts count too.
	tolerance := LossSigmas*math.Sqrt(want*(1-want)/packets) + 0.15*want
	return Row{
		What:  fmt.Sprintf("loss at %s %v", formatRate(middle), dir),
		Asked: fmt.Sprintf("%.2f %% ± %.2f %%", want*100, tolerance*100),
		Got:   fmt.Sprintf("%.2f %% of %.0f", got*100, packets),
		OK:    math.Abs(got-want) <= tolerance,
	}, nil
}
