//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"longhaul/internal/cc"
	"longhaul/internal/doctor"
	"longhaul/internal/measure"
	"longhaul/internal/remedy"
	"longhaul/internal/tcpinfo"
)

// trialStreams are enough to fill a path where a window or losses hold one back,
// and few enough to leave each a share of a small queue.
const trialStreams = 4

// farRTT is from which round trip time on a trial takes longer to come to speed.
const farRTT = 200 * time.Millisecond

// manyStreams are enough where each is held to a small window, and where what
// they do must outweigh an observed connection that goes on.
const manyStreams = 16

// fastBps is from where on a path is taken for one on which four times as many
// do no harm, and are needed.
const fastBps = 10e6

// trial says how to find out what a path carries.
type trial struct {
	server    string
	token     measure.Token
	direction measure.Direction
	mss       int // 0 is what the ends agree on
	rtt       time.Duration
	// streams are the connections; 0 is the usual number.
	streams int
	// own tells of an observed connection, which goes on meanwhile: the bytes
	// that it has got across, and the segments. Nil if there is none.
	own func() (bytes, segments float64)
}

// try finds out what the path of an observation carries.
func (f *doctorFlags) try(ctx context.Context, o *doctor.Observation, t trial) error {
	figures := o.Figures()
	t.rtt = figures.RTT
	if figures.Stalled > time.Second {
		t.mss = smallMSS
	}
	small := o.Path.MTU > 0 && float64(figures.MSS+figures.Headers) < 0.95*float64(o.Path.MTU)
	switch held := figures.Rwnd > 0.1 || !figures.WindowScaling; {
	case held && figures.GoodputBps > fastBps:
		t.streams = 4 * manyStreams
	case held || small:
		t.streams = manyStreams
	}
	got, err := t.run(ctx)
	if err != nil {
		return remedy.New(fmt.Errorf("cannot try what the path carries: %w", measure.Explain(t.server, err)), "run longhaul measure --serve or iperf3 -s there")
	}
	o.Capacity = &got
	if small {
		t.mss = max((figures.MSS+figures.Headers-40)/2, 88)
		half, err := t.run(ctx)
		if err != nil {
			return fmt.Errorf("cannot try smaller segments: %w", measure.Explain(t.server, err))
		}
		o.SmallSegments = &half
	}
	return nil
}

// patiently tries again for some seconds while the far end is busy: it may be
// with what this host's own last test has left.
func patiently(ctx context.Context, run func() (measure.Summary, error)) (measure.Summary, error) {
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

// smallMSS fits into every path: it is IPv6's least MTU less its headers.
const smallMSS = 1220

// run sends with several connections at once.
func (t trial) run(ctx context.Context) (doctor.Trial, error) {
	options := measure.Options{
		Direction: t.direction, Streams: cmp.Or(t.streams, trialStreams), MSS: t.mss, AtOnce: true, Token: t.token, Version: "longhaul " + version(),
		Duration: 3 * time.Second,
	}
	if t.rtt > farRTT { // the rate is found within some ten round trips from the start
		options.Duration = 4 * time.Second
	}
	if cc.MayUse("bbr") {
		options.CongestionControl = "bbr"
	}
	// The samples of all connections cross the path in the end, which with many
	// of them took longer than the test.
	options.SampleEvery = 100 * time.Millisecond * time.Duration(max(1, options.Streams/8))
	// The second half counts: what the observed connection does in it, too.
	var ownBytes, ownSegments []float64
	if t.own != nil {
		options.Interval = options.Duration / 2
		options.Report = func(measure.Interval) {
			bytes, segments := t.own()
			ownBytes, ownSegments = append(ownBytes, bytes), append(ownSegments, segments)
		}
	}
	summary, err := patiently(ctx, func() (measure.Summary, error) { return measure.Run(ctx, t.server, options) })
	if errors.Is(err, measure.ErrCongestionControl) { // then by what it has
		options.CongestionControl = ""
		summary, err = patiently(ctx, func() (measure.Summary, error) { return measure.Run(ctx, t.server, options) })
	}
	if err != nil {
		return doctor.Trial{}, err
	}
	result := doctor.Trial{Streams: options.Streams}
	var bytes, delivered, sent, again float64
	var windowLimited time.Duration
	var rtts []time.Duration
	for _, s := range summary.Streams {
		counted := s.Samples
		for len(counted) > 0 && counted[0].At < options.Duration/2 {
			counted = counted[1:]
		}
		if len(counted) < 2 {
			return result, fmt.Errorf("the far end does not tell how its test went: it takes a longhaul measure --serve")
		}
		first, last := counted[0], counted[len(counted)-1]
		// Not what was acknowledged in order, which waits for what was lost.
		segments := float64(last.Info.Delivered - first.Info.Delivered)
		result.GoodputBps += segments * float64(last.Info.SndMSS) * 8 / (last.At - first.At).Seconds()
		delivered, bytes = delivered+segments, bytes+segments*float64(last.Info.SndMSS)
		result.CongestionControl = s.CongestionControl
		windowLimited += last.Info.RwndLimited - first.Info.RwndLimited
		again += float64(last.Info.TotalRetrans - first.Info.TotalRetrans)
		sent += float64(last.Info.DataSegsOut - first.Info.DataSegsOut)
		if last.Info.Has(tcpinfo.FieldMinRTT) && (result.MinRTT == 0 || last.Info.MinRTT < result.MinRTT) {
			result.MinRTT = last.Info.MinRTT
		}
		for _, one := range counted {
			rtts = append(rtts, one.Info.RTT)
		}
	}
	result.WindowLimited = windowLimited.Seconds() > 0.3*float64(options.Streams)*(options.Duration/2).Seconds()
	if sent > 0 {
		result.LossShare = again / sent
	}
	passed := (options.Duration / 2).Seconds()
	if len(ownBytes) >= 2 && ownBytes[1] > ownBytes[0] {
		bytes, delivered = bytes+ownBytes[1]-ownBytes[0], delivered+ownSegments[1]-ownSegments[0]
		result.GoodputBps += (ownBytes[1] - ownBytes[0]) * 8 / passed
	}
	if delivered > 0 {
		result.SegmentBytes, result.PacketsPerSecond = bytes/delivered, delivered/passed
	}
	slices.Sort(rtts)
	result.RTT = rtts[len(rtts)/2]
	return result, nil
}

// testServer is where the far end of a test listens.
func (f *doctorFlags) testServer(host string) string {
	return net.JoinHostPort(host, strconv.Itoa(int(f.testPort)))
}
