package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"longhaul/internal/carry/pair/preface"
	"longhaul/lab/hosts"
	"longhaul/lab/tcpserver"
)

// box is a middlebox that ends each connection and makes another one, like a proxy with a
// process for each. What a stopped process has taken from its sockets goes nowhere, and its
// kernel goes on to acknowledge what comes until its buffers are full.
type box struct {
	host   *hosts.Host
	to     netip.AddrPort
	closed context.Context
	stop   func()

	mu   sync.Mutex
	open map[*passage]bool // without the stopped ones
}

// passage is what a process of the box has.
type passage struct {
	stopped context.Context
	stop    context.CancelFunc
	control bool // it carries a control connection; the box's lock guards it
}

// startBox starts a box on a host.
func startBox(ctx context.Context, h *hosts.Host, listen uint16, to netip.AddrPort) (*box, error) {
	l, err := h.ListenTCP(ctx, listen)
	if err != nil {
		return nil, err
	}
	b := &box{host: h, to: to, open: map[*passage]bool{}}
	closed, closeAll := context.WithCancel(ctx)
	b.closed = closed
	stopServing := tcpserver.Serve(l, b.serve)
	b.stop = func() {
		closeAll()
		stopServing()
	}
	return b, nil
}

func (b *box) serve(near net.Conn) {
	far, err := b.host.DialTCP(b.closed, b.to, patience)
	if err != nil {
		return
	}
	defer far.Close()
	p := &passage{}
	p.stopped, p.stop = context.WithCancel(context.Background())
	defer p.stop()
	b.mu.Lock()
	b.open[p] = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.open, p)
		b.mu.Unlock()
	}()
	defer context.AfterFunc(b.closed, func() {
		near.Close()
		far.Close()
	})()
	var both sync.WaitGroup
	both.Go(func() { b.pass(p, far, near.(*net.TCPConn), true) })
	both.Go(func() { b.pass(p, near.(*net.TCPConn), far, false) })
	both.Wait()
}

// pass copies one direction, until its end or for as long as the process runs.
func (b *box) pass(p *passage, to, from *net.TCPConn, first bool) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if p.stopped.Err() != nil {
			<-b.closed.Done() // neither end is told anything
			return
		}
		if n > 0 && first {
			first = false
			b.mu.Lock()
			p.control = isControl(buffer[:n])
			b.mu.Unlock()
		}
		if _, writeErr := to.Write(buffer[:n]); writeErr != nil {
			err = writeErr
		}
		switch {
		case err == nil:
		case err == io.EOF:
			_ = to.CloseWrite() // if it is gone, the other direction finds that
			return
		case p.stopped.Err() != nil:
			<-b.closed.Done()
			return
		default:
			to.Close()
			from.Close()
			return
		}
	}
}

// isControl reports whether a connection that begins so is a control connection.
func isControl(begin []byte) bool {
	const kindAt = 9 // in the preface (docs/design/pairs-wire.md, connections)
	return len(begin) > kindAt && preface.Kind(begin[kindAt]) == preface.Control
}

// stopSome stops a share of the processes for good.
func (b *box) stopSome(dice *rand.Rand, share float64) (lanes, controls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.open {
		if dice.Float64() >= share {
			continue
		}
		p.stop()
		delete(b.open, p)
		if p.control {
			controls++
		} else {
			lanes++
		}
	}
	return lanes, controls
}
