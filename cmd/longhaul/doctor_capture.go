//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"longhaul/internal/doctor"
	"longhaul/internal/pcap"
	"longhaul/internal/remedy"
)

// fromCapture makes an observation of the direction of data in a capture file
// that carried the most.
func (f *doctorFlags) fromCapture(ctx context.Context, env *env) (doctor.Observation, error) {
	ends, err := f.captureEnds()
	if err != nil {
		return doctor.Observation{}, err
	}
	file, err := os.Open(f.pcap)
	if err != nil {
		return doctor.Observation{}, err
	}
	defer file.Close()
	progressNote(env, "reading %s", f.pcap)
	result, err := pcap.Read(untilDone{ctx, file}, pcap.Options{Between: ends})
	var truncated *pcap.TruncatedError
	switch {
	case ctx.Err() != nil:
		return doctor.Observation{}, context.Cause(ctx)
	case errors.As(err, &truncated) && len(result.Connections) > 0:
		note(env, fmt.Errorf("%s: %w", f.pcap, err))
	case errors.Is(err, pcap.ErrNoTCP):
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s: %w", f.pcap, err), "leave --local and --remote out to read all of it")
	case err != nil:
		return doctor.Observation{}, fmt.Errorf("%s: %w", f.pcap, err)
	}
	return chooseCaptured(env, result)
}

// untilDone is a file that ends with a context.
type untilDone struct {
	ctx  context.Context
	file *os.File
}

func (u untilDone) Read(b []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.file.Read(b)
}

// captureEnds are the ends that --local and --remote name.
func (f *doctorFlags) captureEnds() (ends [2]pcap.End, err error) {
	for i, flag := range []struct{ name, text string }{{"local", f.local}, {"remote", f.remote}} {
		end, err := endpoint(flag.name, flag.text)
		if err != nil {
			return ends, err
		}
		ends[i].Port = end.Port()
		if end.Addr().IsValid() {
			ends[i].Host = netip.PrefixFrom(end.Addr(), end.Addr().BitLen())
		}
	}
	return ends, nil
}

// chooseCaptured picks the direction that carried the most, and counts the
// connections like it.
func chooseCaptured(env *env, result pcap.Result) (doctor.Observation, error) {
	type way struct {
		connection *pcap.Connection
		*pcap.Direction
	}
	var ways []way
	for _, c := range result.Connections {
		for i := range c.Directions {
			ways = append(ways, way{c, &c.Directions[i]})
		}
	}
	most := slices.MaxFunc(ways, func(a, b way) int { return cmp.Compare(a.Delivered, b.Delivered) })
	o := most.Observation
	o.Elsewhere = true
	o.Time = result.End.Sub(result.Start)
	for _, w := range ways {
		if w.Delivered > 0 && w.Observation.Local.Addr() == o.Local.Addr() && w.Observation.Remote.Addr() == o.Remote.Addr() &&
			w.connection.Server == most.connection.Server {
			o.Connections++
			o.TotalBytes += w.Delivered
		}
	}
	switch {
	case len(o.Samples) == 0 || most.Delivered == 0:
		return o, &doctor.ErrTooLittle{Seen: "no data in the capture", Needed: "a capture of a transfer"}
	case most.Place != pcap.AtSender:
		note(env, fmt.Errorf("the capture was not taken at the host that sends: what limits it there is not all to be seen"))
	}
	if !most.connection.Handshake.Complete() {
		note(env, errors.New("the capture lacks the handshake, without which the windows are not known: capture from the connection's start"))
	}
	if most.Missing {
		note(env, fmt.Errorf("the capture lacks %d bytes that were acknowledged", most.MissingBytes))
	}
	return o, nil
}
