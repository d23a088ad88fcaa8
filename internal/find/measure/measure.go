// Package measure is a throughput test over TCP, memory to memory. It speaks
// iperf3's protocol, so that its client measures to an ordinary "iperf3 -s" and
// its server serves an ordinary "iperf3 -c".
//
// One control connection carries the steps of a test: the client's parameters,
// the streams' connections, start, end, and what each side counted.
package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"longhaul/internal/words/units"
)

// DefaultPort is iperf3's.
const DefaultPort = 5201

// Direction is which way data goes, seen from the client.
type Direction string

// The directions.
const (
	Send    Direction = "send"
	Receive Direction = "receive"
	Both    Direction = "both"
)

// Options are what a client measures. The zero value of a field is a sensible
// choice or the kernel's own.
type Options struct {
	Direction Direction     // Send if empty
	Streams   int           // each way; 1 if zero
	Duration  time.Duration // 10 s if zero and Bytes is, too; whole seconds
	Bytes     int64         // ends the test once so many were sent, each way
	Omit      time.Duration // start that does not count, whole seconds
	Interval  time.Duration // between two reports; a second if zero

	WriteBytes        int // of each write; 128 KiB if zero
	MSS               int
	WindowBytes       int // socket buffers of both sides, as SO_SNDBUF and SO_RCVBUF
	PacingBps         int64
	CongestionControl string
	NoDelay           bool
	Title             string

	// AtOnce has the streams' connections made all at once, and not one after
	// the other, which takes a round trip each. The server tells streams apart
	// by their order: it is then not known which of its figures is of which. It
	// is for tests of one direction.
	AtOnce bool

	// SampleEvery is the time between two samples of what the kernels of both
	// sides say of the streams they send; 100 ms if zero.
	SampleEvery time.Duration

	// Patience bounds the wait for the server's next step, besides the time
	// that the test itself takes; 15 s if zero.
	Patience time.Duration

	// Token is shown to a server that asks for one.
	Token Token

	// Closing Interrupt ends the test early. [Run] then returns what both sides have
	// counted until then, with [ErrInterrupted].
	Interrupt <-chan struct{}

	Version string         // of the program, for the server
	Report  func(Interval) // called at every interval, if it is not nil

	// Dialer makes the connections, in another network namespace perhaps, and
	// calls control with each socket before it connects, as a [net.Dialer]
	// does. If it is nil a [net.Dialer] makes them.
	Dialer func(ctx context.Context, network, address string, control Control) (net.Conn, error)
}

// Control prepares a socket; see [net.Dialer].
type Control = func(network, address string, c syscall.RawConn) error

// Bounds of what a client may ask for.
const (
	maxStreams    = 128
	maxDuration   = 24 * time.Hour
	maxOmit       = time.Minute
	maxWriteBytes = 1 << 20
	maxWindow     = 512 << 20
)

func (o Options) withDefaults() Options {
	if o.Direction == "" {
		o.Direction = Send
	}
	if o.Streams == 0 {
		o.Streams = 1
	}
	if o.Duration == 0 && o.Bytes == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	if o.WriteBytes == 0 {
		o.WriteBytes = 128 << 10
	}
	if o.Patience == 0 {
		o.Patience = controlPatience
	}
	if o.SampleEvery == 0 {
		o.SampleEvery = 100 * time.Millisecond
	}
	return o
}

// Check returns an error for invalid options.
func (o Options) Check() error {
	o = o.withDefaults()
	switch {
	case o.Direction != Send && o.Direction != Receive && o.Direction != Both:
		return fmt.Errorf("unknown direction %q: use send, receive or both", o.Direction)
	case o.Streams < 1 || o.Streams > maxStreams:
		return fmt.Errorf("%d streams: use 1 to %d", o.Streams, maxStreams)
	case o.Duration < 0 || o.Duration > maxDuration || o.Duration%time.Second != 0:
		return fmt.Errorf("a test of %s: use whole seconds up to %s", units.FormatDuration(o.Duration), units.FormatDuration(maxDuration))
	case o.Omit < 0 || o.Omit > maxOmit || o.Omit%time.Second != 0:
		return fmt.Errorf("a start of %v that does not count: use whole seconds up to a minute", o.Omit)
	case o.AtOnce && o.Direction == Both:
		return errors.New("the streams of both directions at once are told apart by their order")
	case o.Bytes < 0:
		return errors.New("a test of less than no bytes")
	case o.Duration > 0 && o.Bytes > 0:
		return errors.New("a test ends after a time or an amount, not both")
	case o.WriteBytes < 1 || o.WriteBytes > maxWriteBytes:
		return fmt.Errorf("writes of %d bytes: use 1 to %d", o.WriteBytes, maxWriteBytes)
	case o.WindowBytes < 0 || o.WindowBytes > maxWindow:
		return fmt.Errorf("a window of %d bytes: use up to %d", o.WindowBytes, maxWindow)
	case o.MSS != 0 && (o.MSS < 88 || o.MSS > 32767):
		return fmt.Errorf("an MSS of %d bytes: use 88 to 32767", o.MSS)
	case o.Patience < 100*time.Millisecond || o.Patience > time.Hour:
		return fmt.Errorf("a wait of %v for the server: use 100ms to 1h", o.Patience)
	case o.SampleEvery < minSampling || o.SampleEvery > maxSampling:
		return fmt.Errorf("a sample every %v: use %v to %v", o.SampleEvery, minSampling, maxSampling)
	case o.PacingBps < 0:
		return fmt.Errorf("a pacing rate of %d bit/s", o.PacingBps)
	}
	return nil
}

// parameters are the options as the protocol has them.
func (o Options) parameters() Parameters {
	return Parameters{
		TCP: true, Omit: int(o.Omit / time.Second), Time: int(o.Duration / time.Second), Bytes: o.Bytes,
		MSS: o.MSS, NoDelay: o.NoDelay, Parallel: o.Streams, Reverse: o.Direction == Receive,
		Window: o.WindowBytes, Length: o.WriteBytes, Bandwidth: o.PacingBps, FQRate: o.PacingBps, PacingTimer: 1000,
		Congestion: o.CongestionControl, Title: o.Title, Version: o.Version, Bidirectional: o.Direction == Both,
		Longhaul: &longhaulParameters{int(o.SampleEvery.Milliseconds()), o.Token.Name},
	}
}
