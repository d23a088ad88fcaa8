package examine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/pcap"
	"longhaul/internal/words/remedy"
)

// Capture observes the direction of a capture file that carried the most data, among
// connections between two ends.
func (e *Examiner) Capture(ctx context.Context, path string, local, remote End) (doctor.Observation, error) {
	file, err := os.Open(path)
	if err != nil {
		return doctor.Observation{}, err
	}
	defer file.Close()
	e.Progress("reading %s", path)
	result, err := pcap.Read(cancelledFile{ctx, file}, pcap.Options{
		Between: [2]pcap.End{{Hosts: local.Addresses, Port: local.Port}, {Hosts: remote.Addresses, Port: remote.Port}},
	})
	var truncated *pcap.TruncatedError
	switch {
	case ctx.Err() != nil:
		return doctor.Observation{}, context.Cause(ctx)
	case errors.As(err, &truncated) && len(result.Connections) > 0:
		e.Note(fmt.Errorf("%s: %w", path, err))
	case errors.Is(err, pcap.ErrNoTCP):
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s: %w", path, err), "leave --local and --remote out to read all of it")
	case errors.Is(err, pcap.ErrManyInterfaces):
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s: %w", path, err), "capture again as FILE.pcap with tcpdump -w: that format has no list of interfaces")
	case err != nil:
		return doctor.Observation{}, fmt.Errorf("%s: %w", path, err)
	}
	return e.busiest(result)
}

// cancelledFile is a file whose reads fail once the context ends.
type cancelledFile struct {
	ctx  context.Context
	file *os.File
}

func (f cancelledFile) Read(b []byte) (int, error) {
	if f.ctx.Err() != nil {
		return 0, context.Cause(f.ctx)
	}
	return f.file.Read(b)
}

// minRest is the minimum duration of the samples that withoutStart leaves.
const minRest = 3 * time.Second

// withoutStart returns the samples after a connection's start, which does not limit a
// long transfer, if they suffice.
func withoutStart(samples []doctor.Sample) []doctor.Sample {
	if len(samples) == 0 {
		return nil
	}
	first, last := samples[0].At, &samples[len(samples)-1]
	start := first + startOf(last.Info.RTT)
	if last.At-start < minRest {
		return samples
	}
	after := slices.IndexFunc(samples, func(s doctor.Sample) bool { return s.At >= start })
	return samples[after:]
}

// startOf returns the duration of a connection's start.
func startOf(rtt time.Duration) time.Duration { return max(time.Second, 10*rtt) }

// busiest returns the direction that carried the most data, and counts the
// connections between the same hosts to the same server port.
func (e *Examiner) busiest(result pcap.Result) (doctor.Observation, error) {
	type direction struct {
		connection *pcap.Connection
		*pcap.Direction
	}
	var directions []direction
	for _, c := range result.Connections {
		for i := range c.Directions {
			directions = append(directions, direction{c, &c.Directions[i]})
		}
	}
	most := slices.MaxFunc(directions, func(a, b direction) int { return cmp.Compare(a.Delivered, b.Delivered) })
	o := most.Observation
	o.Elsewhere = true
	o.Time = result.End.Sub(result.Start)
	if most.connection.Handshake.Complete() {
		o.Samples = withoutStart(o.Samples)
	}
	for _, d := range directions {
		if d.Delivered > 0 && d.Observation.Local.Addr() == o.Local.Addr() && d.Observation.Remote.Addr() == o.Remote.Addr() &&
			d.connection.Server == most.connection.Server {
			o.Connections++
			o.TotalBytes += d.Delivered
		}
	}
	switch {
	case len(o.Samples) == 0 || most.Delivered == 0:
		return o, &doctor.ErrTooLittle{Seen: "no data in the capture", Needed: "a capture of a transfer"}
	case most.Place != pcap.AtSender:
		e.Note(errors.New("the capture is not from the sending host: it does not show every limit there"))
	}
	if !most.connection.Handshake.Complete() {
		e.Note(errors.New("the capture lacks the handshake, so the windows are unknown: capture from the connection's start"))
	}
	if most.Missing {
		e.Note(fmt.Errorf("the capture lacks %d bytes that were acknowledged", most.MissingBytes))
	}
	return o, nil
}
