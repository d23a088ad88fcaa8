package pairs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"longhaul/internal/lab"
	"longhaul/internal/lab/link"
	"longhaul/internal/lab/tcpserver"
)

// The link of the stripes, a quarter of 400 Mb/s: a machine with two cores emulates it with
// both relays beside.
const (
	stripeRTT     = 63 * time.Millisecond
	stripeRateBps = 100e6
	// stripeLaneBps is what one connection gets where connections have limits.
	stripeLaneBps = stripeRateBps / 8
	stripeBurst   = 64 << 10
)

// The bounds of the stripes.
const (
	stripeShare      = 0.95
	stripeCold       = 6 * time.Second
	stripeKnown      = time.Second
	stripeUnlimited  = 2   // lanes where one connection gets everything
	stripeEchoFactor = 1.1 // of the echoes beside a flow with one lane
)

// stripe is one setting of case stripes.
type stripe struct {
	name    string
	lanes   string // of the near tunnel
	limited bool   // connections have limits
	lane    int64  // bits a second of each connection; 0: stripeLaneBps
}

// stripes measures flows with several lanes: where each connection has a limit, and where
// none has.
func stripes(ctx context.Context, o Options, way string, _ int, note func(measured)) error {
	for _, s := range []stripe{
		{name: "limited, 1 lane", lanes: "1", limited: true},
		{name: "limited, 8 lanes", lanes: "8", limited: true},
		{name: "limited, auto", lanes: "auto", limited: true},
		{name: "unlimited, auto", lanes: "auto", limited: false},
	} {
		if err := s.measure(ctx, o, way, note); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return echoesBeside(ctx, o, way, note)
}

func (s stripe) conditions() lab.Conditions {
	c := conditions(stripeRTT, stripeRateBps)
	if s.limited {
		c.Policer = link.Policer{RateBps: cmp.Or(s.lane, int64(stripeLaneBps)), BurstBytes: stripeBurst, PerFlow: true}
	}
	return c
}

// measure sends twice, one flow after the other: the second finds what the first has learnt.
func (s stripe) measure(ctx context.Context, o Options, way string, note func(measured)) error {
	var received atomic.Int64
	w, err := buildWorld(ctx, o, lab.TwoSites(s.conditions()), way, func(conn net.Conn) { countAll(conn, &received) },
		settings{pair: ", lanes: " + s.lanes})
	if err != nil {
		return err
	}
	defer w.close()
	many := s.limited && s.lanes != "1"
	for _, run := range []struct {
		name string
		by   time.Duration
	}{{"cold", stripeCold}, {"known", stripeKnown}} {
		f, err := w.stripe(ctx, &received, pick(o, 20*time.Second, 12*time.Second))
		if err != nil {
			return err
		}
		name := s.name + ", " + run.name
		share := measured{name: name + ": last 4 s, of the limit", value: f.last * 8 / s.conditions().LimitBps()}
		soon := measured{name: fmt.Sprintf("%s: 95 %% after", name), unit: "s", value: f.reached(stripeShare * s.conditions().LimitBps() / 8).Seconds()}
		lanes := measured{name: name + ": lanes", value: float64(f.lanes)}
		switch {
		case many:
			share.bound, soon.bound = atLeast(stripeShare), atMost(run.by.Seconds())
		case !s.limited:
			lanes.bound = atMost(stripeUnlimited)
		}
		note(share)
		if many {
			note(soon)
		}
		for _, line := range w.heard("lanes of a flow") {
			o.Report.Linef("  %s", line)
		}
		note(lanes)
		note(measured{name: name + ": CPU of both sites, s/GB", value: f.cpuPerGB})
	}
	return nil
}

// striped is what one flow did.
type striped struct {
	ticks    []int64 // bytes that the target had after each stripeTick
	last     float64 // bytes a second of the last 4 s
	lanes    int     // at the end
	cpuPerGB float64
}

const stripeTick = 100 * time.Millisecond

// reached is when the flow first had a rate for a second; the whole time if never.
func (s striped) reached(rate float64) time.Duration {
	const window = int(time.Second / stripeTick)
	for i := range max(len(s.ticks)-window, 0) {
		if float64(s.ticks[i+window]-s.ticks[i]) >= rate {
			return time.Duration(i) * stripeTick
		}
	}
	return time.Duration(len(s.ticks)) * stripeTick
}

// stripe runs one bulk flow for a while.
func (w *world) stripe(ctx context.Context, received *atomic.Int64, lasts time.Duration) (s striped, err error) {
	end, err := w.sendTo(ctx, w.to)
	if err != nil {
		return s, err
	}
	defer end()
	before, err := cpuTime(w.pids())
	from := received.Load()
	ticker := time.NewTicker(stripeTick)
	defer ticker.Stop()
	for began := time.Now(); err == nil && time.Since(began) < lasts; {
		select {
		case <-ticker.C:
			s.ticks = append(s.ticks, received.Load()-from)
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
	const latest = int(4 * time.Second / stripeTick)
	total := s.ticks[len(s.ticks)-1]
	s.last = float64(total-s.ticks[len(s.ticks)-1-latest]) / 4
	s.cpuPerGB = (after - before).Seconds() * 1e9 / float64(total)
	s.lanes, err = w.lanesBusy(ctx)
	return s, err
}

// echoesBeside times echoes of 64 bytes beside a bulk flow with one lane, and beside one
// with eight. All eight take half of the link, so that its queue is empty: what is left
// are the relays.
func echoesBeside(ctx context.Context, o Options, way string, note func(measured)) error {
	medians := map[string]float64{}
	for _, lanes := range []string{"1", "8"} {
		s := stripe{lanes: lanes, limited: true, lane: stripeLaneBps / 2}
		w, err := buildWorld(ctx, o, lab.TwoSites(s.conditions()), way, tcpserver.Echo, settings{pair: ", lanes: " + lanes})
		if err != nil {
			return err
		}
		medians[lanes], err = w.echoes(ctx, pick(o, 12*time.Second, 6*time.Second))
		w.close()
		if err != nil {
			return err
		}
		note(measured{name: "echo beside " + lanes + " lanes, median", unit: "s", value: medians[lanes]})
	}
	note(measured{name: "echo beside 8 lanes ÷ 1 lane", value: medians["8"] / medians["1"], bound: atMost(stripeEchoFactor)})
	return nil
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
