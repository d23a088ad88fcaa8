package examine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/pcap"
	"longhaul/internal/words/remedy"
)

// Capture observes the direction of a capture that carried the most data, among
// connections between two ends. It may be in several files, of which directories stand for
// all captures in them.
func (e *Examiner) Capture(ctx context.Context, paths []string, local, remote End) (doctor.Observation, error) {
	sources, err := e.sources(ctx, paths)
	if err != nil {
		return doctor.Observation{}, err
	}
	path := strings.Join(paths, ", ")
	if path == Stdin {
		path = stdinName
	}
	if len(paths) > 2 {
		path = fmt.Sprintf("%s and %d other files", paths[0], len(paths)-1)
	}
	e.Progress("reading %s", path)
	options := pcap.Options{
		Between: [2]pcap.End{{Hosts: local.Addresses, Port: local.Port}, {Hosts: remote.Addresses, Port: remote.Port}},
	}
	result, err := e.read(sources, options)
	var truncated *pcap.TruncatedError
	var link *pcap.LinkTypeError
	switch {
	case ctx.Err() != nil:
		return doctor.Observation{}, context.Cause(ctx)
	case errors.As(err, &truncated) && len(result.Connections) > 0:
		e.Note(fmt.Errorf("%s: %w", path, err))
	case isExport(err):
		return doctor.Observation{}, err
	case errors.Is(err, pcap.ErrNoTCP):
		return doctor.Observation{}, nothing(path, &result)
	case errors.As(err, &link):
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s: %w", path, err), linkAdvice(link.Name))
	case errors.Is(err, pcap.ErrManyInterfaces):
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s: %w", path, err), "capture again as FILE.pcap with tcpdump -w: that format has no list of interfaces")
	case errors.Is(err, pcap.ErrManyTogether):
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s: %w", path, err), "join them first: mergecap -w FILE ...")
	case errors.Is(err, pcap.ErrNoCapture):
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s: %w", path, err), "name files that tcpdump -w or Wireshark wrote")
	case errors.Is(err, pcap.ErrNotCapture) && len(sources) > 1:
		return doctor.Observation{}, remedy.New(fmt.Errorf("%w, and doctor reads all files as one capture", err), "leave it out")
	case errors.Is(err, pcap.ErrNotCapture):
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s: %w", path, err),
			"convert it first: editcap FILE OUT.pcap; or decompress it: lz4 -dc FILE | longhaul doctor --pcap -")
	case err != nil:
		return doctor.Observation{}, fmt.Errorf("%s: %w", path, err)
	}
	e.leftOut(&result)
	if err := e.oneWay(&result); err != nil {
		return doctor.Observation{}, err
	}
	return e.busiest(result)
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
			(d.connection != most.connection || d.Direction == most.Direction) && d.connection.Server == most.connection.Server && d.connection.Network == most.connection.Network {
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
		e.Note(handshakeNote(&most.connection.Handshake))
	}
	if most.Missing {
		e.Note(fmt.Errorf("the capture lacks %d bytes that were acknowledged", most.MissingBytes))
	}
	e.doubts(most.connection)
	return o, nil
}
