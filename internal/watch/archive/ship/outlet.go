package ship

import (
	"context"
	"errors"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/remedy"
)

// outlet is a sink that is opened when it is needed. What it does it does in a goroutine of its own,
// one thing at a time: a sink that hangs, in a file or in the network, must not hold up its shipper.
type outlet struct {
	open func() (archive.Sink, error)
	sink archive.Sink  // nil: not open
	busy chan struct{} // closed when a sink that hung has returned and is closed; nil: none has hung
}

// errHangs is of a sink that goes on after its time.
var errHangs = remedy.New(errors.New("the sink has not returned from a delivery in time"),
	"see whether its server and the disks of its files answer")

// do calls a function of the sink. It returns when that has, or returnPatience after the context ends.
func (o *outlet) do(ctx context.Context, call func() error) error {
	if o.hangs() {
		return errHangs
	}
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = call()
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(returnPatience)
	defer late.Stop()
	select {
	case <-done:
		return err
	case <-late.C:
	}
	busy := make(chan struct{})
	o.busy = busy
	go func() {
		defer close(busy)
		<-done
		o.end()
	}()
	return errHangs
}

// hangs is whether a call has not returned yet.
func (o *outlet) hangs() bool {
	if o.busy == nil {
		return false
	}
	select {
	case <-o.busy:
		o.busy = nil
		return false
	default:
		return true
	}
}

// isOpen is whether the sink may be handed rows.
func (o *outlet) isOpen() bool { return !o.hangs() && o.sink != nil }

// begin opens the sink, and asks its place what it has of epochs; nil: the place does not say.
func (o *outlet) begin(ctx context.Context, epochs []history.Epoch) (map[int64]int64, error) {
	var last map[int64]int64
	err := o.do(ctx, func() error {
		sink, err := o.open()
		if err != nil {
			return err
		}
		o.sink = sink
		r, says := sink.(archive.Resumer)
		if !says {
			return nil
		}
		asked := make([]int64, len(epochs))
		for i := range epochs {
			asked[i] = epochs[i].Epoch
		}
		last, err = r.Last(ctx, asked)
		return err
	})
	if err != nil {
		return nil, err
	}
	return last, nil
}

// deliver has the sink take rows, once it is open.
func (o *outlet) deliver(ctx context.Context, rows []archive.Row) error {
	return o.do(ctx, func() error { return o.sink.Deliver(ctx, rows) })
}

// close closes the sink. One that hangs is closed when it returns.
func (o *outlet) close() {
	if o.hangs() || o.sink == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), returnPatience)
	defer cancel()
	_ = o.do(ctx, func() error {
		o.end()
		return nil
	})
}

func (o *outlet) end() {
	if sink := o.sink; sink != nil {
		o.sink = nil
		_ = sink.Close() // what it had not taken is delivered again
	}
}
