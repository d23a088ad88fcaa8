package examine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/measure"
	"longhaul/internal/words/remedy"
)

// MinTransfer is the minimum duration of [Examiner.Transfer].
const MinTransfer = 4 * time.Second

// NoVerdictError reports that the far end takes no data, with a survey of the path.
// Its remedy is Reason's.
type NoVerdictError struct {
	Survey Survey
	Reason error // why the transfer failed
}

func (e *NoVerdictError) Error() string {
	return "no verdict: no server there takes data, and a verdict needs a transfer"
}

func (e *NoVerdictError) Unwrap() error { return e.Reason }

// Transfer opens a connection to the measure server at HOST:PORT, observes it, and
// tests the capacity of the path. If no server there takes data, the error is a
// [*NoVerdictError], provided that the path shows anything.
func (e *Examiner) Transfer(ctx context.Context, server string, direction measure.Direction) (doctor.Observation, error) {
	options := measure.Options{
		Direction: direction, Duration: e.During.Truncate(time.Second), SampleEvery: sampleEvery, Patience: 5 * time.Second,
		Token: e.Token, Version: e.Version,
	}
	e.Progress("sending to %s for %v", server, options.Duration)
	probing, stop := context.WithCancel(ctx)
	defer stop()
	probed := e.probeBeside(probing, server)
	summary, err := measure.Run(ctx, server, options)
	if err != nil {
		stop()
		<-probed
		if pair := e.pairDownToward(ctx, server); pair != nil {
			return doctor.Observation{Pair: pair}, nil
		}
		return doctor.Observation{}, e.withoutServer(ctx, server, err)
	}
	o, err := observed(summary)
	if err != nil {
		return o, err
	}
	found := <-probed
	o.Path = found.path
	if o.Elsewhere { // the far end sends
		o.Path = doctor.Path{MTU: found.path.ReverseMTU, ReverseMTU: found.path.MTU}
	}
	if found.err != nil {
		e.Note(found.err)
	}
	e.Progress("testing the path's capacity")
	err = e.try(ctx, &o, trial{server: server, direction: direction})
	return o, err
}

// probed is the result of probing a path.
type probed struct {
	path doctor.Path
	err  error
}

// probeBeside probes the path to a server in the background.
func (e *Examiner) probeBeside(ctx context.Context, server string) <-chan probed {
	result := make(chan probed, 1)
	go func() {
		if e.SkipProbe {
			result <- probed{}
			return
		}
		here, there, err := addressesToward(ctx, server)
		if err != nil {
			result <- probed{err: err}
			return
		}
		path, err := probePath(ctx, here, there.Addr(), 0)
		result <- probed{path, err}
	}()
	return result
}

// observed returns an observation of a test's one stream.
func observed(s measure.Summary) (doctor.Observation, error) {
	var o doctor.Observation
	if len(s.Streams) != 1 || len(s.Streams[0].Samples) == 0 {
		return o, remedy.New(errors.New("the far end sends no samples of its connection"),
			"run longhaul measure --serve there: iperf3 -s only counts bytes")
	}
	o.Own = true
	stream := s.Streams[0]
	local, remote := addrPort(s.Local), addrPort(s.Remote)
	if !stream.Sends {
		o.Elsewhere = true
		local, remote = remote, local
	}
	o.Local, o.Remote, o.CongestionControl, o.Time = local, remote, stream.CongestionControl, s.Elapsed
	// The start does not limit a long transfer.
	last := stream.Samples[len(stream.Samples)-1]
	start := min(startOf(last.Info.RTT), s.Elapsed/2)
	for _, t := range stream.Samples {
		if t.At < start {
			continue
		}
		o.Samples = append(o.Samples, doctor.Sample{At: t.At, Info: t.Info, SendBuffer: t.SendBuffer, SendQueued: t.SendQueued, RecvQueue: -1, CPU: t.CPU})
	}
	if len(o.Samples) == 0 {
		return o, errors.New("the test was too short for a verdict")
	}
	return o, nil
}

// addrPort returns the address of a TCP socket; zero for any other.
func addrPort(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		both := tcp.AddrPort()
		return netip.AddrPortFrom(both.Addr().Unmap(), both.Port())
	}
	return netip.AddrPort{}
}

// pairDownToward returns the pair without a session whose far relay is a server's
// host; nil: none.
func (e *Examiner) pairDownToward(ctx context.Context, server string) *doctor.Pair {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil
	}
	there, err := ParseEnd(ctx, host)
	if err != nil {
		return nil
	}
	return e.pairDown(ctx, End{}, there)
}

// withoutServer turns an error of a test into a [*NoVerdictError] if the host exists
// and its path shows anything.
func (e *Examiner) withoutServer(ctx context.Context, server string, err error) error {
	var dns *net.DNSError
	reason := remedy.New(measure.Explain(server, err),
		"run longhaul measure --serve there, or watch an existing connection: longhaul doctor --remote ADDRESS")
	if ctx.Err() != nil || errors.As(err, &dns) || errors.Is(err, measure.ErrBusy) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		return reason
	}
	s, err := e.survey(ctx, server)
	if err != nil || s.Info == nil && s.Path.MTU == 0 {
		return reason
	}
	return &NoVerdictError{s, reason}
}
