package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/measure"
	"longhaul/internal/tcpinfo"
)

// trialStreams are enough to fill a path where a window or losses hold one back,
// and few enough to leave each a share of a small queue.
const trialStreams = 4

// try finds out what the path carries, by several connections at once, while
// the observed one goes on.
func (f *doctorFlags) try(ctx context.Context, env *env, o *doctor.Observation, diag *tcpinfo.Diag) error {
	server := net.JoinHostPort(o.Remote.Addr().String(), strconv.Itoa(int(f.testPort)))
	own := func() float64 {
		c, err := diag.Get(o.Local, o.Remote)
		if err != nil {
			return 0
		}
		return float64(c.Info.BytesAcked)
	}
	figures := o.Figures()
	mss := 0
	if figures.Stalled > time.Second {
		mss = smallMSS
	}
	trial, err := runTrial(ctx, server, mss, figures.RTT, own)
	if err != nil {
		return &hintError{fmt.Errorf("cannot try what the path carries: %w", measure.Explain(server, err)), "run longhaul measure --serve or iperf3 -s there, or leave --test out"}
	}
	o.Capacity = &trial
	if f := o.Figures(); o.Path.MTU > 0 && float64(f.MSS+f.Headers) < 0.95*float64(o.Path.MTU) {
		small, err := runTrial(ctx, server, max(f.MSS/2, 88), f.RTT, own)
		if err != nil {
			return &hintError{fmt.Errorf("cannot try smaller segments: %w", measure.Explain(server, err)), "leave --test out"}
		}
		o.SmallSegments = &small
	}
	return nil
}

// smallMSS fits into every path: it is IPv6's least MTU less its headers.
const smallMSS = 1220

// runTrial sends with several connections at once. own tells how much an
// observed connection has sent by now, which counts.
func runTrial(ctx context.Context, server string, mss int, rtt time.Duration, own func() float64) (doctor.Trial, error) {
	options := measure.Options{Streams: trialStreams, MSS: mss, Interval: 100 * time.Millisecond}
	// Bandwidth is found within some ten round trips from the start.
	options.Duration = min(max(3*time.Second, 16*rtt), 5*time.Second).Truncate(time.Second)
	if isAvailable("bbr") {
		options.CongestionControl = "bbr"
	}
	type moment struct {
		at                      time.Duration
		acked, own, again, sent float64
		rtt                     []float64
	}
	var moments []moment
	trial := doctor.Trial{Streams: options.Streams, CongestionControl: options.CongestionControl}
	_, err := measure.Run(ctx, server, options, "longhaul "+version(), func(i measure.Interval) {
		m := moment{at: i.End, own: own()}
		for _, s := range i.Streams {
			info, ok := s.Sample.Info.(*tcpinfo.Info)
			if !ok {
				continue
			}
			m.acked += float64(info.BytesAcked)
			m.again += float64(info.TotalRetrans)
			m.sent += float64(info.DataSegsOut)
			m.rtt = append(m.rtt, info.RTT.Seconds())
			trial.MSS = int(info.SndMSS)
			if trial.MinRTT == 0 || info.MinRTT < trial.MinRTT {
				trial.MinRTT = info.MinRTT
			}
		}
		moments = append(moments, m)
	})
	if err != nil {
		return trial, err
	}
	if len(moments) < 4 {
		return trial, fmt.Errorf("the test ended after %d samples", len(moments))
	}
	first, last := moments[len(moments)/2], moments[len(moments)-1]
	passed := (last.at - first.at).Seconds()
	trial.GoodputBps = (last.acked - first.acked + max(last.own-first.own, 0)) * 8 / passed
	if sent := last.sent - first.sent; sent > 0 {
		trial.LossShare = (last.again - first.again) / sent
	}
	var rtts []float64
	for _, m := range moments[len(moments)/2:] {
		rtts = append(rtts, m.rtt...)
	}
	if len(rtts) > 0 {
		slices.Sort(rtts)
		trial.RTT = time.Duration(rtts[len(rtts)/2] * float64(time.Second))
	}
	return trial, nil
}
