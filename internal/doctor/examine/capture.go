package examine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/pcap"
	"longhaul/internal/remedy"
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
	if rest := last.Info.BytesAcked - samples[after].Info.BytesAcked; rest < (last.Info.BytesAcked-samples[0].Info.BytesAcked)/2 {
		return samples // most of it happened at the start
	}
	return samples[after:]
}

// startOf returns the duration of a connection's start.
func startOf(rtt time.Duration) time.Duration { return max(time.Second, 10*rtt) }

// direction is one direction of data of a connection.
type direction struct {
	connection *pcap.Connection
	*pcap.Direction
}

// leastStall is the time without an answer after which a direction suffers.
const leastStall = 2 * time.Second

// suffers reports whether the data of a direction waits for an answer in vain, and is more
// than another direction has moved, or stands for most of the time of the same connection.
func (d direction) suffers(busiest *pcap.Direction, same bool) bool {
	n, s := &d.Observation.Capture.Counts, d.Observation.Capture.Counts.Stall
	if !s.AtEnd || s.Time < leastStall || s.Retransmissions < 2 || n.ZeroWindowAtEnd {
		return false
	}
	return n.Bytes-d.Delivered > busiest.Delivered || same && 3*s.Time > d.Observation.Capture.Time
}

// busiest returns the direction that carried the most data, or one that suffers, and counts the
// connections between the same hosts to the same server port.
func (e *Examiner) busiest(result pcap.Result) (doctor.Observation, error) {
	var directions []direction
	for _, c := range result.Connections {
		for i := range c.Directions {
			directions = append(directions, direction{c, &c.Directions[i]})
		}
	}
	most := slices.MaxFunc(directions, func(a, b direction) int { return cmp.Compare(a.Delivered, b.Delivered) })
	for _, d := range directions {
		if d.suffers(most.Direction, d.connection == most.connection) {
			most = d
		}
	}
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
	case len(o.Samples) == 0 || o.Capture.Counts.Bytes == 0 && most.Delivered == 0:
		return o, &doctor.ErrTooLittle{Seen: "no data in the capture", Needed: "a capture of a transfer"}
	case most.Place == pcap.PlaceUnknown:
		e.Note(errors.New("no packets show at which host the capture was taken: one of the sending host shows most"))
	case most.Place != pcap.AtSender:
		e.Note(errors.New("the capture is not from the sending host: it does not show every limit there"))
	}
	if !most.connection.Handshake.Complete() {
		e.Note(errors.New("the capture lacks the handshake, so the windows are unknown: capture from the connection's start"))
	}
	if most.Missing {
		e.Note(fmt.Errorf("the capture lacks %d bytes that were acknowledged", most.MissingBytes))
	}
	e.doubts(most.connection)
	return o, nil
}
