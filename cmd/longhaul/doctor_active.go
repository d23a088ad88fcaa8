//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"longhaul/internal/display"
	"longhaul/internal/doctor"
	"longhaul/internal/measure"
	"longhaul/internal/remedy"
)

// active makes a connection of its own to a measure server, and observes it.
func (f *doctorFlags) active(ctx context.Context, env *env, host string) (doctor.Observation, error) {
	if name, port, err := net.SplitHostPort(host); err == nil {
		n, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
		if err != nil {
			return doctor.Observation{}, usageError(fmt.Errorf("%q has no port that is one", host))
		}
		host, f.testPort = name, uint16(n)
	}
	server := f.testServer(host)
	options := measure.Options{Duration: f.during.Truncate(time.Second), SampleEvery: sampleEvery, Patience: 5 * time.Second, Token: f.token, Version: "longhaul " + version()}
	if f.receive {
		options.Direction = measure.Receive
	}
	if options.Duration < 4*time.Second {
		return doctor.Observation{}, usageError(fmt.Errorf("--for %v is too short for a test: use 4s or more", f.during))
	}
	progressNote(env, "sending to %s for %v", server, options.Duration)
	probing, stop := context.WithCancel(ctx)
	defer stop()
	probed := f.probeBeside(probing, server)
	summary, err := measure.Run(ctx, server, options)
	if err != nil {
		stop()
		<-probed
		return doctor.Observation{}, f.unserved(ctx, env, server, err)
	}
	o, err := observed(summary)
	if err != nil {
		return o, err
	}
	found := <-probed
	o.Path = found.path
	if o.Elsewhere { // so that the way of the data is the other one
		o.Path = doctor.Path{MTU: found.path.ReverseMTU, ReverseMTU: found.path.MTU}
	}
	if found.err != nil {
		note(env, found.err)
	}
	progressNote(env, "trying what the path carries")
	err = f.try(ctx, &o, trial{server: server, token: f.token, direction: options.Direction})
	return o, err
}

// probed is what came of probing a path.
type probed struct {
	path doctor.Path
	err  error
}

// probeBeside probes the path to a server while something else goes on.
func (f *doctorFlags) probeBeside(ctx context.Context, server string) <-chan probed {
	result := make(chan probed, 1)
	go func() {
		if f.noProbe {
			result <- probed{}
			return
		}
		here, there, err := addressesTo(ctx, server)
		if err != nil {
			result <- probed{err: err}
			return
		}
		path, err := probePath(ctx, here, there.Addr(), 0)
		result <- probed{path, err}
	}()
	return result
}

// observed makes an observation of a test's one stream.
func observed(s measure.Summary) (doctor.Observation, error) {
	var o doctor.Observation
	if len(s.Streams) != 1 || len(s.Streams[0].Samples) == 0 {
		return o, remedy.New(errors.New("the far end does not tell how it sent"), "it takes a longhaul measure --serve there: an iperf3 -s only counts")
	}
	stream := s.Streams[0]
	local, remote := addrPort(s.Local), addrPort(s.Remote)
	if !stream.Sends {
		o.Elsewhere = true
		local, remote = remote, local
	}
	o.Local, o.Remote, o.CongestionControl, o.Time = local, remote, stream.CongestionControl, s.Elapsed
	// What the start does is not what limits a long transfer.
	last := stream.Samples[len(stream.Samples)-1]
	start := min(max(time.Second, 10*last.Info.RTT), s.Elapsed/2)
	for _, t := range stream.Samples {
		if t.At < start {
			continue
		}
		o.Samples = append(o.Samples, doctor.Sample{At: t.At, Info: t.Info, SendBuffer: t.SendBuffer, SendQueued: t.SendQueued, RecvQueue: -1, CPU: t.CPU})
	}
	if len(o.Samples) == 0 {
		return o, errors.New("the test was too short to say anything")
	}
	return o, nil
}

func addrPort(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		both := tcp.AddrPort()
		return netip.AddrPortFrom(both.Addr().Unmap(), both.Port())
	}
	return netip.AddrPort{}
}

// unserved says what can be said of a path without a far end that takes data,
// if there is a host at all.
func (f *doctorFlags) unserved(ctx context.Context, env *env, server string, err error) error {
	var dns *net.DNSError
	explained := remedy.New(measure.Explain(server, err), "run longhaul measure --serve there, or watch a connection that is there: longhaul doctor --remote ADDRESS")
	if ctx.Err() != nil || errors.As(err, &dns) || errors.Is(err, measure.ErrBusy) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		return explained
	}
	s, surveyErr := f.runSurvey(ctx, env, server)
	if surveyErr != nil || s.Info == nil && s.Path.MTU == 0 {
		return explained
	}
	note(env, explained)
	if f.json {
		surveyErr = display.WriteJSON(env.stdout, s)
	} else {
		writeSurvey(env.stdout, s)
	}
	if surveyErr != nil {
		return surveyErr
	}
	return remedy.New(errNoVerdict, explained.Fix)
}
