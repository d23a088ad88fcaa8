package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"longhaul/test/hostile"
)

// target answers each connection as its first byte asks, until it is closed.
func target(ctx context.Context) (io.Closer, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", fmt.Sprintf("%s:%d", targetHost, echoPort))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			go func() {
				defer stop()
				defer c.Close()
				answer(c)
			}()
		}
	}()
	return l, nil
}

func answer(c net.Conn) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(c, first); err != nil {
		return
	}
	switch first[0] {
	case hostile.TargetEcho:
		_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 4<<10))
	case hostile.TargetSends:
		block := make([]byte, 64<<10)
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	default:
		_, _ = io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, make([]byte, 4<<10))
	}
}

// dialWithin bounds a connect of a client and its first answer.
const dialWithin = 10 * time.Second

func dial(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialWithin}
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp", address)
}

// probeSize is the size of a message that the target returns.
const probeSize = 64

// greet opens a connection to the target's echo and waits for an answer through it.
func greet(ctx context.Context, address string) (net.Conn, error) {
	c, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(dialWithin))
	if _, err = c.Write([]byte{hostile.TargetEcho, 'x'}); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// echoes measures round trips through a connection that stands, and new connections, until
// ctx ends.
func (o *observer) echoes(ctx context.Context, address string) {
	const interval = 10 * time.Millisecond
	every(ctx, interval, func() {
		c, err := greet(ctx, address)
		if err != nil {
			o.note(ctx, func(p *phase) { p.EchoFailed++ })
			return
		}
		defer c.Close()
		probe := make([]byte, probeSize)
		every(ctx, interval, func() {
			begun := time.Now()
			_ = c.SetDeadline(begun.Add(dialWithin))
			if _, err = c.Write(probe); err == nil {
				_, err = io.ReadFull(c, probe)
			}
			took := time.Since(begun)
			o.note(ctx, func(p *phase) {
				p.echo = append(p.echo, took)
				if err != nil {
					p.EchoFailed++
				}
			})
		}, func() bool { return err == nil })
	})
}

// newFlows opens a connection each second.
func (o *observer) newFlows(ctx context.Context, address string, into func(*phase) *opened) {
	every(ctx, time.Second, func() {
		begun := time.Now()
		c, err := greet(ctx, address)
		took := time.Since(begun)
		o.note(ctx, func(p *phase) {
			to := into(p)
			to.Tried++
			to.Longest = max(to.Longest, took.Seconds())
			if err != nil {
				to.Failed++
			}
		})
		if err == nil {
			c.Close()
		}
	})
}

// The steady flow of the honest pair.
const (
	steadyBlock    = 16 << 10
	steadyInterval = 20 * time.Millisecond
)

// steady has a flow of the honest pair go on, checks each byte that comes back, and notes the
// longest time in which none did.
func (o *observer) steady(ctx context.Context, address string) {
	for number := uint64(0); ctx.Err() == nil; number++ {
		err := o.stream(ctx, address, number)
		o.note(ctx, func(p *phase) {
			p.Honest.Ended++
			p.Honest.Why = err.Error()
		})
		pause(ctx, 100*time.Millisecond)
	}
}

func (o *observer) stream(ctx context.Context, address string, number uint64) error {
	c, err := dial(ctx, address)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write([]byte{hostile.TargetEcho}); err != nil {
		return err
	}
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	failed := make(chan error, 1)
	go func() {
		want := rand.New(rand.NewPCG(number, 1))
		r := bufio.NewReaderSize(c, steadyBlock)
		block := make([]byte, 1024)
		for {
			n, err := r.Read(block)
			for _, b := range block[:n] {
				if b != byte(want.Uint32()) && err == nil {
					err = fmt.Errorf("a byte is not the one that was sent")
					o.note(ctx, func(p *phase) { p.Honest.Broken++ })
				}
			}
			if err != nil {
				failed <- err
				return
			}
			last.Store(time.Now().UnixNano())
			o.note(ctx, func(p *phase) { p.Honest.Bytes += int64(n) })
		}
	}()
	send := rand.New(rand.NewPCG(number, 1))
	block := make([]byte, steadyBlock)
	ticker := time.NewTicker(steadyInterval)
	defer ticker.Stop()
	sent := make(chan error, 1)
	sending := false
	for {
		silent := time.Duration(time.Now().UnixNano() - last.Load())
		o.note(ctx, func(p *phase) { p.Honest.Stalled = max(p.Honest.Stalled, silent.Seconds()) })
		if !sending {
			for i := range block {
				block[i] = byte(send.Uint32())
			}
			sending = true
			go func() {
				_, err := c.Write(block)
				sent <- err
			}()
		}
		select {
		case err := <-failed:
			return err
		case err := <-sent:
			if err != nil {
				return err
			}
			sending = false
			<-ticker.C
		case <-ticker.C:
		}
	}
}

// attackedClients are clients of the tunnel that leads to a hostile far end: they send, and
// begin anew when they are reset.
func attackedClients(ctx context.Context, address string) {
	const clients = 16
	for range clients {
		go every(ctx, 100*time.Millisecond, func() {
			c, err := dial(ctx, address)
			if err != nil {
				return
			}
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			_ = c.SetDeadline(time.Now().Add(dialWithin))
			go func() { _, _ = io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, make([]byte, 4<<10)) }()
			block := make([]byte, 64<<10)
			for {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		})
	}
}

// every calls do at once and then at an interval, until ctx ends or a condition does not hold.
func every(ctx context.Context, interval time.Duration, do func(), while ...func() bool) {
	for ctx.Err() == nil {
		do()
		for _, holds := range while {
			if !holds() {
				return
			}
		}
		pause(ctx, interval)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
