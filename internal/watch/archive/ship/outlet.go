package ship

import (
	"context"
	"errors"
	"time"

	"longhaul/internal/watch/archive"
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

// deliver has the sink take rows.
func (o *outlet) deliver(ctx context.Context, rows []archive.Row) error {
	return o.do(ctx, func() error {
		if o.sink == nil {
			sink, err := o.open()
			if err != nil {
				return err
			}
			o.sink = sink
		}
		return o.sink.Deliver(ctx, rows)
	})
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
