package measure

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// test is one under way, on either side.
type test struct {
	parameters Parameters
	control    net.Conn
	streams    streams
	begun      time.Time // when data began to move
	start      time.Time // of what counts
}

// Interval is what happened between two reports.
type Interval struct {
	Start, End time.Duration // since the start that counts; negative in what does not
	Omitted    bool
	Streams    []IntervalStream
}

// IntervalStream is a stream's part of an interval.
type IntervalStream struct {
	ID          int
	Sends       bool
	Bytes       int64
	Retransmits int64 // -1 if unknown
	Sample      Sample
}

// ready notes where the streams stand before anything moves.
func (t *test) ready() {
	t.begun = time.Now()
	t.start = t.begun.Add(time.Duration(t.parameters.Omit) * time.Second)
	for _, s := range t.streams {
		s.omitted = s.sample()
	}
}

// watch reports intervals until the context ends, and forgets the start that
// does not count.
func (t *test) watch(ctx context.Context, every time.Duration, report func(Interval)) {
	begin, omit := t.begun, t.start.Sub(t.begun)
	before := make([]Sample, len(t.streams))
	for i, s := range t.streams {
		before[i] = s.omitted
	}
	last := begin
	tell := func(now time.Time, omitted bool) {
		if now.Sub(last) <= 0 {
			return
		}
		interval := Interval{Start: last.Sub(t.start), End: now.Sub(t.start), Omitted: omitted}
		for i, s := range t.streams {
			sample := s.sample()
			one := IntervalStream{ID: s.id, Sends: s.sends, Bytes: sample.Bytes - before[i].Bytes, Retransmits: -1, Sample: sample}
			if sample.Retransmits >= 0 && s.sends {
				one.Retransmits = sample.Retransmits - max(before[i].Retransmits, 0)
			}
			interval.Streams = append(interval.Streams, one)
			before[i] = sample
		}
		last = now
		if report != nil {
			report(interval)
		}
	}
	omitting := omit > 0
	next := begin.Add(every)
	for {
		due := next
		if omitting && t.start.Before(due) {
			due = t.start
		}
		timer := time.NewTimer(time.Until(due))
		select {
		case <-ctx.Done():
			timer.Stop()
			tell(time.Now(), omitting)
			return
		case <-timer.C:
		}
		now := time.Now()
		tell(now, omitting)
		if omitting && !now.Before(t.start) {
			omitting = false
			for i, s := range t.streams {
				s.omitted = before[i]
			}
			next = now
		}
		for !next.After(now) {
			next = next.Add(every)
		}
	}
}

// watchBoth watches the streams and what the kernel says of them until end is
// called or the context ends. It returns when all has been reported.
func (t *test) watchBoth(ctx context.Context, every, sampling time.Duration, report func(Interval)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { t.watch(ctx, every, report) })
	group.Go(func() { t.watchKernel(ctx, sampling) })
	return func() {
		cancel()
		group.Wait()
	}
}

// expect reads the next state, which is to be one of those wanted. What ends the
// test becomes an error.
func (t *test) expect(within time.Duration, want ...state) (state, error) {
	if err := t.control.SetReadDeadline(time.Now().Add(within)); err != nil {
		return 0, err
	}
	defer t.control.SetReadDeadline(time.Time{})
	got, err := readState(t.control)
	switch {
	case err != nil:
		return 0, fmt.Errorf("waiting for the other side's next step: %w", err)
	case slices.Contains(want, got):
		return got, nil
	case got == accessDenied:
		return 0, ErrBusy
	case got == serverTerminate:
		return 0, errStopped
	case got == clientTerminate:
		return 0, errEnded
	case got == serverError:
		return 0, t.readRefusal()
	}
	return got, fmt.Errorf("%w: step %d where %d was due", errNotIperf, got, want[0])
}

// listen reads the control connection while nothing is to come there: what does
// come, or its end, is the end of the test, and is told as an error once. The
// channel is closed by end, after which the connection is to be read as before.
func (t *test) listen() (gone <-chan error, end func()) {
	told := make(chan error, 1)
	done := make(chan struct{})
	_ = t.control.SetReadDeadline(time.Time{})
	go func() {
		defer close(done)
		defer close(told)
		switch got, err := readState(t.control); {
		case err == nil && got == serverError:
			told <- t.readRefusal()
		case err == nil && got == serverTerminate:
			told <- errStopped
		case !errors.Is(err, os.ErrDeadlineExceeded):
			told <- errEnded
		}
	}()
	return told, func() {
		_ = t.control.SetReadDeadline(time.Unix(1, 0))
		<-done
		_ = t.control.SetReadDeadline(time.Time{})
	}
}

// readRefusal reads why a server serves no test: iperf3's error number, the
// system's, and what another longhaul says of it.
func (t *test) readRefusal() error {
	var numbers [8]byte
	if _, err := io.ReadFull(t.control, numbers[:]); err != nil {
		return fmt.Errorf("%w: it refuses without a reason", errNotIperf)
	}
	text, _ := io.ReadAll(io.LimitReader(t.control, 300))
	for i, b := range text {
		if b < ' ' || b > '~' {
			text[i] = '?'
		}
	}
	number := binary.BigEndian.Uint32(numbers[:])
	switch {
	case len(text) > 0 && number == iperfCongestion:
		return fmt.Errorf("%w: %s", ErrCongestionControl, text)
	case len(text) > 0:
		return fmt.Errorf("it refuses the test: %s", text)
	case number != iperfUnauthorized:
		return fmt.Errorf("it refuses the test: iperf3's error %d", number)
	}
	return errors.New("it refuses the test: we are not authorized")
}

// Errors that callers tell apart.
var (
	// ErrBusy: the server is running another test.
	ErrBusy = errors.New("the server is busy with another test")
	// ErrCongestionControl: the server does not send as the client asks.
	ErrCongestionControl = errors.New("it refuses the test")

	errEnded = errors.New("the other side ended the test")
	// errStopped: the server's user stopped it.
	errStopped = fmt.Errorf("%w: it was stopped", errEnded)
)
