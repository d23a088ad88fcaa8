// Package calibrate measures an emulated link from outside, with packets of
// the hosts' kernels, and holds it against what it was asked to be.
//
// Nothing else must use the link meanwhile. Where a measurement would be
// blurred by another setting (a rate by loss, a pattern by the queue) it takes
// that setting out of the way and puts it back.
package calibrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"longhaul/lab/link"
)

// Host is one end of the link.
type Host struct {
	Addr netip.Addr // on the link; both ends of one family
	// Run runs a function in the host's network namespace, on a thread that
	// no other goroutine uses.
	Run func(func() error) error
}

// Path is a running link with the hosts at its ends.
type Path struct {
	Link *link.Link
	A, B Host
}

// Row is one measured property beside what was asked.
type Row struct {
	What  string `json:"what"`
	Asked string `json:"asked"`
	Got   string `json:"got"`
	OK    bool   `json:"ok"`
}

// Tolerances of the measurements.
const (
	RTTTolerance  = 500 * time.Microsecond
	RateTolerance = 0.01 // share
	LossSigmas    = 3
	TCPShare      = 0.97 // of what full segments can carry
)

// LossPackets is the number of packets that a measurement of loss sends.
const LossPackets = 100_000

// All runs every measurement of both directions that the settings give a meaning to.
// It takes some 20 s, most of it for 100 000 packets twice each way, and 16 s for each
// row of a managed queue.
func (p Path) All(ctx context.Context) ([]Row, error) {
	var row Row
	constant := func(s *link.Settings) {
		s.Trace, s.AQM, s.MarkAbove, s.Aggregate = nil, link.AQM{}, 0, link.Aggregation{}
	}
	err := p.withBoth(constant, func() (err error) {
		row, err = p.IdleRTT(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	rows := []Row{row}
	for _, dir := range []link.Direction{link.AToB, link.BToA} {
		s := p.Link.Settings(dir)
		for _, m := range []struct {
			set     bool
			measure func(context.Context, link.Direction) (Row, error)
		}{
			{s.RateBps > 0, p.Rate},
			{s.Trace != nil, p.Trace},
			{s.Policer.RateBps > 0, p.Policer},
			{s.AQM.Algorithm != link.NoAQM, p.Wait},
			{s.AQM.Algorithm == link.FQCoDel, p.Isolation},
			{s.AQM.ECN, p.Marks},
			{s.MarkAbove > 0, p.MarkAbove},
			{s.ACKThinning > 1, p.Thinning},
			{s.Aggregate.Every > 0, p.Aggregation},
			{s.RateLoss.Share > 0, p.RateLoss},
		} {
			if !m.set {
				continue
			}
			row, err := m.measure(ctx, dir)
			if err != nil {
				return rows, err
			}
			rows = append(rows, row)
		}
		lost, pattern, err := p.Loss(ctx, dir, LossPackets)
		if err != nil {
			return rows, err
		}
		rows = append(rows, lost, pattern)
	}
	return rows, nil
}

func (p Path) ends(dir link.Direction) (from, to Host) {
	if dir == link.AToB {
		return p.A, p.B
	}
	return p.B, p.A
}

// with runs f under changed settings of a direction.
func (p Path) with(dir link.Direction, change func(*link.Settings), f func() error) (err error) {
	was := p.Link.Settings(dir)
	s := was
	change(&s)
	if err := p.Link.Set(dir, s); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Link.Set(dir, was)) }()
	return f()
}

// withBoth runs f under changed settings of both directions.
func (p Path) withBoth(change func(*link.Settings), f func() error) error {
	return p.with(link.AToB, change, func() error { return p.with(link.BToA, change, f) })
}

// Loss sends that many packets, counts those that do not arrive, and sends
// them again under the same seed to see the same ones go missing. Afterwards
// the direction's random choices begin anew.
func (p Path) Loss(ctx context.Context, dir link.Direction, packets int) (loss, pattern Row, err error) {
	var first, second *arrivals
	s := p.Link.Settings(dir)
	isolate := func(s *link.Settings) {
		loss, reorder, jitter := s.Loss, s.Reorder, s.Jitter
		noBottleneck(s)
		steady(s)
		s.Loss, s.Reorder, s.Jitter = loss, reorder, jitter
	}
	for _, got := range []**arrivals{&first, &second} {
		// Another seed and back restarts the generators.
		if err := p.with(dir, func(s *link.Settings) { s.Seed++ }, func() error { return nil }); err != nil {
			return loss, pattern, err
		}
		err := p.with(dir, isolate, func() (err error) {
			*got, err = p.numbered(ctx, dir, packets)
			return err
		})
		if err != nil {
			return loss, pattern, fmt.Errorf("loss %v: %w", dir, err)
		}
	}
	want, sigma, got := s.Loss.Share(), s.Loss.Sigma(packets), 1-float64(first.count.Load())/float64(packets)
	loss = Row{
		What:  fmt.Sprintf("loss %v", dir),
		Asked: fmt.Sprintf("%.3f %% ± %.3f %%", want*100, LossSigmas*sigma*100),
		Got:   fmt.Sprintf("%.3f %% of %d", got*100, packets),
		OK:    math.Abs(got-want) <= LossSigmas*sigma+1e-12,
	}
	differ := 0
	for i := range first.seen {
		if first.seen[i] != second.seen[i] {
			differ++
		}
	}
	pattern = Row{
		What:  fmt.Sprintf("same seed, same loss %v", dir),
		Asked: "0 differ",
		Got:   fmt.Sprintf("%d of %d differ", differ, packets),
		OK:    differ == 0,
	}
	return loss, pattern, nil
}

// noBottleneck leaves a link without bounds on what it carries.
func noBottleneck(s *link.Settings) {
	s.RateBps, s.Trace, s.PacketsPerSecond, s.ATM, s.QueueBytes, s.QueueBDP = 0, nil, 0, false, 0, 0
	s.AQM, s.MarkAbove = link.AQM{}, 0
}

// steady leaves a link that only its bottleneck keeps from passing everything in order.
func steady(s *link.Settings) {
	s.Loss, s.RateLoss, s.Reorder, s.Jitter = link.Loss{}, link.RateLoss{}, link.Reorder{}, 0
	s.Policer, s.AQM, s.MarkAbove = link.Policer{}, link.AQM{}, 0
	s.ACKThinning, s.Aggregate = 0, link.Aggregation{}
}

// Rate sends faster than the bottleneck serves and times what arrives. The
// packets are as large as the link carries, and count as whole IP packets.
func (p Path) Rate(ctx context.Context, dir link.Direction) (Row, error) {
	s := p.Link.Settings(dir)
	if s.RateBps == 0 {
		return Row{}, fmt.Errorf("rate %v: it has no bound, so there is none to measure", dir)
	}
	rate := s.CarriesBps(cmp.Or(s.MTU, link.DefaultMTU))
	var got float64
	isolate := func(s *link.Settings) {
		steady(s)
		s.QueueBDP = 0
		// The queue must bridge moments in which the sender is not scheduled.
		s.QueueBytes = max(int(rate/8/5), 64*link.DefaultMTU, 8*s.MTU)
	}
	err := p.with(dir, isolate, func() (err error) {
		got, err = p.flood(ctx, dir, rate)
		return err
	})
	if err != nil {
		return Row{}, fmt.Errorf("rate %v: %w", dir, err)
	}
	return Row{
		What:  fmt.Sprintf("rate %v", dir),
		Asked: formatRate(rate),
		Got:   fmt.Sprintf("%s (%+.2f %%)", formatRate(got), (got/rate-1)*100),
		OK:    math.Abs(got/rate-1) <= RateTolerance,
	}, nil
}

// Policer sends faster than the policer admits, over a bottleneck without
// bound, and times what arrives. Where each flow has a policer, two do so at once. The bucket's depth comes on top of the rate.
func (p Path) Policer(ctx context.Context, dir link.Direction) (Row, error) {
	policer := p.Link.Settings(dir).Policer
	if policer.RateBps == 0 {
		return Row{}, fmt.Errorf("policer %v: there is none to measure", dir)
	}
	isolate := func(s *link.Settings) {
		noBottleneck(s)
		steady(s)
		s.Policer = policer
	}
	flows := 1
	if policer.PerFlow {
		flows = 2
	}
	rates := make([]float64, flows)
	err := p.with(dir, isolate, func() error {
		return together(flows, func(i int) (err error) {
			rates[i], err = p.flood(ctx, dir, float64(policer.RateBps))
			return err
		})
	})
	if err != nil {
		return Row{}, fmt.Errorf("policer %v: %w", dir, err)
	}
	rate := float64(policer.RateBps)
	burst := float64(policer.BurstBytes) * 8 / (rate * floodTime.Seconds())
	row := Row{
		What:  fmt.Sprintf("policer %v", dir),
		Asked: fmt.Sprintf("%s + %.1f %%", formatRate(rate), burst*100),
		OK:    true,
	}
	if policer.PerFlow {
		row.Asked += " each"
	}
	var got []string
	for _, r := range rates {
		got = append(got, fmt.Sprintf("%s (%+.2f %%)", formatRate(r), (r/rate-1)*100))
		row.OK = row.OK && r/rate-1 >= -RateTolerance && r/rate-1 <= burst+RateTolerance
	}
	row.Got = strings.Join(got, ", ")
	return row, nil
}

// together runs f for each number below n at once.
func together(n int, f func(i int) error) error {
	ended := make(chan error, n)
	for i := range n {
		go func() { ended <- f(i) }()
	}
	var errs []error
	for range n {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

func formatRate(bps float64) string { return fmt.Sprintf("%.3f Mb/s", bps/1e6) }
