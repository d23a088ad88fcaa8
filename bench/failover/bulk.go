package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// bulkFlows fill the WAN, so that each wants several lanes.
const bulkFlows = 4

// bulk are flows that send all the time, and compare what comes back.
type bulk struct {
	stop func()
	errs [bulkFlows]error
}

// fill begins them.
func (w *world) fill(ctx context.Context) *bulk {
	b := &bulk{}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range b.errs {
		all.Go(func() { b.errs[i] = w.fillOne(ctx) })
	}
	b.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	return b
}

// end waits for them. It may be called again.
func (b *bulk) end() error {
	b.stop()
	return errors.Join(b.errs[:]...)
}

// fillOne sends random bytes to an echo until the context ends, and reads all of them.
func (w *world) fillOne(ctx context.Context) error {
	conn, err := w.dial(ctx, false)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{})
	seed := [32]byte{byte(rand.Uint32())}
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write([]byte{serviceEcho})
		block := make([]byte, 64<<10)
		source := rand.NewChaCha8(seed)
		for err == nil && ctx.Err() == nil {
			_, _ = source.Read(block)
			_, err = conn.Write(block)
		}
		if err == nil {
			err = conn.CloseWrite()
		}
		sent <- err
	}()
	want := rand.NewChaCha8(seed)
	got, expected := make([]byte, 64<<10), make([]byte, 64<<10)
	_, err = io.ReadFull(conn, got[:1]) // the relay
	for total := 0; err == nil; total += len(got) {
		if _, err = io.ReadFull(conn, got); err == nil {
			_, _ = want.Read(expected)
			if string(got) != string(expected) {
				err = fmt.Errorf("bytes differ within 64 KiB from %d", total)
			}
		}
	}
	if err == io.EOF { // whole blocks, and all of them as far as the end says
		err = nil
	}
	conn.Close() // the sender may wait
	return errors.Join(err, <-sent)
}
