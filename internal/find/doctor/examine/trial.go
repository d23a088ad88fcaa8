package examine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/measure"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/stats"
)

const (
	// trialStreams is the usual number of connections of a trial. They fill a path on
	// which a window or losses limit a single one, and each gets a share of a small
	// queue.
	trialStreams = 4

	// manyStreams is the number if a small window limits each, or if they must
	// outweigh the observed connection.
	manyStreams = 16

	// fastBps is the minimum goodput, in bit/s, of a path that needs four times
	// manyStreams and carries them without harm.
	fastBps = 10e6

	// farRTT is the minimum round trip time at which a trial needs longer to reach
	// full speed.
	farRTT = 200 * time.Millisecond

	// smallMSS fits every path: IPv6's minimum MTU less its headers, in bytes.
	smallMSS = 1220
)

// trial is a test that measures the capacity of a path.
type trial struct {
	server    string // HOST:PORT of a measure server
	direction measure.Direction
	mss       int // bytes; 0: as the ends agree
	rtt       time.Duration
	streams   int // 0: trialStreams
	// own reads the progress of an observed connection, which continues meanwhile.
	// Nil without one.
	own func() delivered
}

// delivered is the progress of a connection since it was opened.
type delivered struct{ bytes, segments float64 }

// try measures the capacity of an observation's path. It measures again with twice as many
// connections if packets were dropped without a queue, and with smaller segments if the
// observed segments leave room in the packets. If a further measurement fails, it notes that:
// a server may refuse so many connections.
func (e *Examiner) try(ctx context.Context, o *doctor.Observation, t trial) error {
	figures := o.Figures()
	t.rtt = figures.RTT
	if figures.Stalled > time.Second {
		t.mss = smallMSS
	}
	small := o.Path.MTU > 0 && float64(figures.MSS+figures.Headers) < 0.95*float64(o.Path.MTU)
	switch held := figures.Rwnd > 0.1 || !figures.WindowScaling || figures.BufferFull(); {
	case held && figures.GoodputBps > fastBps:
		t.streams = 4 * manyStreams
	case held || small:
		t.streams = manyStreams
	}
	got, err := e.run(ctx, t)
	if err != nil {
		hint := "run longhaul measure --serve or iperf3 -s there"
		if errors.Is(err, measure.ErrBusy) {
			hint = "wait until its test has ended, or start another server on another port and name it with --test-port"
		}
		return remedy.New(fmt.Errorf("test the path's throughput: %w", measure.Explain(t.server, err)), hint)
	}
	o.Capacity = &got
	if got.DropsWithoutQueue() {
		twice := t
		twice.streams = 2 * got.Streams
		more, err := e.run(ctx, twice)
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil:
			e.Note(fmt.Errorf("test with more connections: %w", measure.Explain(t.server, err)))
		default:
			o.MoreStreams = &more
		}
	}
	if small {
		t.mss = max((figures.MSS+figures.Headers-40)/2, 88)
		half, err := e.run(ctx, t)
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil:
			e.Note(fmt.Errorf("test smaller segments: %w", measure.Explain(t.server, err)))
		default:
			o.SmallSegments = &half
		}
	}
	return nil
}

// retryWhileBusy repeats a test for at most 5 s while the far end is busy, for example
// with the rest of this host's last test.
func retryWhileBusy(ctx context.Context, run func() (measure.Summary, error)) (measure.Summary, error) {
	for deadline := time.Now().Add(5 * time.Second); ; {
		summary, err := run()
		if !errors.Is(err, measure.ErrBusy) || time.Now().After(deadline) {
			return summary, err
		}
		select {
		case <-ctx.Done():
			return summary, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// run measures a trial with several connections at once.
func (e *Examiner) run(ctx context.Context, t trial) (doctor.Trial, error) {
	options := measure.Options{
		Direction: t.direction, Streams: cmp.Or(t.streams, trialStreams), MSS: t.mss, AtOnce: true, Token: e.Token, Version: e.Version,
		Duration: 3 * time.Second,
	}
	if t.rtt > farRTT { // slow start takes about ten round trips
		options.Duration = 4 * time.Second
	}
	if cc.MayUse("bbr") {
		options.CongestionControl = "bbr"
	}
	// All samples cross the path at the end. Those of many connections would take
	// longer than the test.
	options.SampleEvery = 100 * time.Millisecond * time.Duration(max(1, options.Streams/8))
	// Only the second half counts, also of the observed connection.
	var own []delivered
	if t.own != nil {
		options.Interval = options.Duration / 2
		options.Report = func(measure.Interval) { own = append(own, t.own()) }
	}
	summary, err := retryWhileBusy(ctx, func() (measure.Summary, error) { return measure.Run(ctx, t.server, options) })
	if errors.Is(err, measure.ErrCongestionControl) { // the far end has no bbr
		options.CongestionControl = ""
		summary, err = retryWhileBusy(ctx, func() (measure.Summary, error) { return measure.Run(ctx, t.server, options) })
	}
	if err != nil {
		return doctor.Trial{}, err
	}
	return trialOf(summary, options, own)
}

// trialOf computes the figures of a trial from the second half of a test. own has the
// progress of an observed connection at half time and at the end, or is empty.
func trialOf(summary measure.Summary, options measure.Options, own []delivered) (doctor.Trial, error) {
	result := doctor.Trial{Streams: options.Streams}
	half := options.Duration / 2
	var all delivered
	var sent, again float64
	var windowLimited time.Duration
	bufferLimited := 0.0 // samples
	var rtts []time.Duration
	for _, s := range summary.Streams {
		counted := s.Samples
		for len(counted) > 0 && counted[0].At < half {
			counted = counted[1:]
		}
		if len(counted) < 2 {
			return result, errors.New("the far end sends no samples of the test: run longhaul measure --serve there")
		}
		first, last := counted[0], counted[len(counted)-1]
		// Bytes acknowledged in order would wait for lost segments.
		segments := float64(last.Info.Delivered - first.Info.Delivered)
		result.GoodputBps += segments * float64(last.Info.SndMSS) * 8 / (last.At - first.At).Seconds()
		all.segments, all.bytes = all.segments+segments, all.bytes+segments*float64(last.Info.SndMSS)
		result.CongestionControl = s.CongestionControl
		windowLimited += last.Info.RwndLimited - first.Info.RwndLimited
		again += float64(last.Info.TotalRetrans - first.Info.TotalRetrans)
		sent += float64(last.Info.DataSegsOut - first.Info.DataSegsOut)
		if last.Info.Has(tcpinfo.FieldMinRTT) && (result.MinRTT == 0 || last.Info.MinRTT < result.MinRTT) {
			result.MinRTT = last.Info.MinRTT
		}
		for _, one := range counted {
			rtts = append(rtts, one.Info.RTT)
			result.PeerWindow = max(result.PeerWindow, float64(one.Info.SndWnd))
			if isBufferLimited(&one.Info) {
				bufferLimited++
			}
		}
	}
	// Buffers of the sending host bound it as the windows do.
	result.WindowLimited = windowLimited.Seconds() > 0.3*float64(result.Streams)*half.Seconds() || bufferLimited > 0.6*float64(len(rtts))
	if sent > 0 {
		result.LossShare = min(again/sent, 1) // a FIN is no segment
	}
	if len(own) >= 2 && own[1].bytes > own[0].bytes {
		all.bytes, all.segments = all.bytes+own[1].bytes-own[0].bytes, all.segments+own[1].segments-own[0].segments
		result.GoodputBps += (own[1].bytes - own[0].bytes) * 8 / half.Seconds()
	}
	if all.segments > 0 {
		result.SegmentBytes, result.PacketsPerSecond = all.bytes/all.segments, all.segments/half.Seconds()
	}
	slices.Sort(rtts)
	result.RTT = stats.At(rtts, 0.5)
	return result, nil
}

// isBufferLimited reports whether a connection with endless data has sent all that its
// buffer holds, and its congestion window has room.
func isBufferLimited(i *tcpinfo.Info) bool {
	return i.Has(tcpinfo.FieldNotsentBytes) && i.NotsentBytes < 4*i.SndMSS && float64(i.Unacked) < 0.7*float64(i.SndCwnd)
}
