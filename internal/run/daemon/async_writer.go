package daemon

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// asyncWriter passes lines to a goroutine that writes them. Write never waits. It
// drops and counts lines if the log's reader is stuck and the queue is full. It
// reports the count once the reader reads again.
type asyncWriter struct {
	out     io.Writer
	lines   chan []byte
	dropped atomic.Uint64 // not yet reported
	total   atomic.Uint64 // since the start
	report  func(lines uint64)

	stop     chan struct{}
	stopOnce sync.Once
	done     chan struct{}
}

const logQueueLines = 4096

// newAsyncWriter writes to out; report must write to out as well.
func newAsyncWriter(out io.Writer, report func(lines uint64)) *asyncWriter {
	w := &asyncWriter{
		out:    out,
		lines:  make(chan []byte, logQueueLines),
		report: report,
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	go w.loop()
	return w
}

// Write queues one line.
func (w *asyncWriter) Write(line []byte) (int, error) {
	select {
	case w.lines <- bytes.Clone(line):
	default:
		w.dropped.Add(1)
		w.total.Add(1)
	}
	return len(line), nil
}

func (w *asyncWriter) loop() {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.put(line)
			continue
		case <-w.stop:
		}
		for {
			select {
			case line := <-w.lines:
				w.put(line)
			default:
				return
			}
		}
	}
}

// put writes a line. It ignores errors: the log itself is gone.
func (w *asyncWriter) put(line []byte) {
	_, _ = w.out.Write(line)
	if n := w.dropped.Swap(0); n > 0 {
		w.report(n)
	}
}

// close writes the queued lines and waits at most within.
func (w *asyncWriter) close(within time.Duration) {
	w.stopOnce.Do(func() { close(w.stop) })
	select {
	case <-w.done:
	case <-time.After(within):
	}
}
