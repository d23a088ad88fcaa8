package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// mixedRun is many flows at once, of every ending, through a pair of relays
// to which things happen.
type mixedRun struct {
	world *world
	seed  uint64

	next  atomic.Uint64 // number of the next flow
	moved atomic.Int64  // bytes read by clients and targets

	mu       sync.Mutex
	open     map[uint64]*liveFlow // by number, until both sides have ended
	finished []*flow
	strange  []string // what no flow can be blamed for
	nothing  int      // connections that ended cleanly without a byte

	targets sync.WaitGroup
}

// liveFlow is a flow of which a side is running, or may still come.
type liveFlow struct {
	flow
	targetCame chan struct{} // closed when the target's side begins
	targetDone chan struct{} // closed when it has ended

	// Guarded by mixedRun.mu.
	came, clientIn, targetIn bool
}

// lateTarget is how long a flow of which only the client's side was seen may
// still reach the target: longer than a relay's connect timeout.
const lateTarget = 35 * time.Second

// runMixed runs flows for a time, lets them finish, and returns what came of
// it. report is told how it goes.
func runMixed(ctx context.Context, w *world, seed uint64, length time.Duration, parallel int, report func(mixedProgress)) (mixedResult, error) {
	m := &mixedRun{world: w, seed: seed, open: map[uint64]*liveFlow{}}
	before, err := w.bothStatus(ctx)
	if err != nil {
		return mixedResult{}, err
	}
	listener, err := w.listen(ctx)
	if err != nil {
		return mixedResult{}, err
	}
	var acceptor sync.WaitGroup
	acceptor.Go(func() { m.accept(ctx, listener) })

	began := time.Now()
	running, stop := context.WithTimeout(ctx, length)
	defer stop()
	d := &director{world: w, counts: map[eventKind]int{}}
	events := make(chan error, 1)
	go func() {
		err := d.run(running, began, schedule(seed, length))
		if err != nil {
			stop() // there is no relay to test any more
		}
		events <- err
	}()
	var clients sync.WaitGroup
	for range parallel {
		clients.Go(func() {
			for running.Err() == nil {
				m.one(ctx, m.next.Add(1))
			}
		})
	}
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	done := make(chan struct{})
	go func() {
		clients.Wait()
		close(done)
	}()
	for waiting := true; waiting; {
		select {
		case <-ticker.C:
			report(m.progress(began, d))
		case <-done:
			waiting = false
		}
	}
	err = <-events
	var left []string
	if err == nil {
		// A flow whose reset was lost on the WAN is found by keepalive.
		for i, r := range []*relayProcess{w.near, w.far} {
			if err = r.reload(ctx, w.config(r, 0)); err != nil {
				break
			}
			if _, err := r.settled(ctx, before[i], lateTarget); err != nil {
				left = append(left, err.Error())
			}
		}
	}
	listener.Close()
	acceptor.Wait()
	m.targets.Wait()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return mixedResult{}, err
	}
	result := m.result(d, time.Since(began))
	result.Violations = append(result.Violations, left...)
	return result, nil
}

// bothStatus asks both relays.
func (w *world) bothStatus(ctx context.Context) (both [2]status, err error) {
	for i, r := range []*relayProcess{w.near, w.far} {
		if both[i], err = r.status(ctx); err != nil {
			return both, err
		}
	}
	return both, nil
}

// one runs the client's side of a flow, and waits for the target's if that
// has begun.
func (m *mixedRun) one(ctx context.Context, number uint64) {
	p := newPlan(m.seed, number)
	p.limitSlow()
	f := &liveFlow{flow: flow{plan: p, began: time.Now()}, targetCame: make(chan struct{}), targetDone: make(chan struct{})}
	f.client.differs, f.target.differs = -1, -1
	m.mu.Lock()
	m.open[number] = f
	m.mu.Unlock()

	port := uint16(mainPort)
	if p.ending == targetRefuses {
		port = refusedPort
	}
	conn, err := m.world.dial(ctx, port)
	switch {
	case errors.Is(err, unix.ECONNRESET): // before connect had returned
		f.client.saw = sawReset
	case err != nil:
		f.refused = err
	default:
		s := &side{
			conn: conn, plan: p.client, moved: &m.moved,
			out: newPattern(m.seed, number, true), in: newPattern(m.seed, number, false),
		}
		f.client = s.run(ctx, nil)
	}
	if p.client.send > 0 && p.ending != targetRefuses && f.refused == nil {
		// What the client sent before it reset or was reset may still arrive.
		timer := time.NewTimer(100 * time.Millisecond)
		if f.client.saw == sawEnd {
			timer.Reset(lateTarget)
		}
		select {
		case <-f.targetCame:
			<-f.targetDone
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	m.finish(f, &f.clientIn)
}

// finish notes that a side has ended, and puts the flow down once both have.
// One that never reaches the target stays open until the end of the run.
func (m *mixedRun) finish(f *liveFlow, side *bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*side = true
	f.done = time.Now()
	if f.clientIn && f.targetIn {
		delete(m.open, f.plan.number)
		m.finished = append(m.finished, &f.flow)
	}
}

// accept runs the targets' sides.
func (m *mixedRun) accept(ctx context.Context, l *net.TCPListener) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return
		}
		m.targets.Go(func() { m.target(ctx, conn) })
	}
}

// target finds out which flow a connection belongs to, and runs its side.
func (m *mixedRun) target(ctx context.Context, conn *net.TCPConn) {
	var header [headerBytes]byte
	conn.SetReadDeadline(time.Now().Add(stallLimit))
	n, err := io.ReadFull(conn, header[:])
	if err != nil {
		defer conn.Close()
		switch s := (&side{conn: conn}); s.meaning(unwrapEOF(err)) {
		case sawReset, sawTimeout:
		case sawEnd:
			_ = conn.CloseWrite()
			m.mu.Lock()
			m.nothing++
			if n > 0 {
				m.strange = append(m.strange, fmt.Sprintf("a connection ended cleanly after %d bytes %x, and no client ends there", n, header[:n]))
			}
			m.mu.Unlock()
		default:
			if ctx.Err() == nil {
				m.note("a connection that reached the target had neither bytes nor an end: %v", err)
			}
		}
		return
	}
	number := binary.BigEndian.Uint64(header[:])
	m.mu.Lock()
	f := m.open[number]
	again := f != nil && f.came
	if f != nil && !again {
		f.came = true
		close(f.targetCame)
	}
	m.mu.Unlock()
	if f == nil || again {
		conn.Close()
		m.note("a connection began with %x, which is no open flow's number (seen before: %v)", header, again)
		return
	}
	s := &side{
		conn: conn, plan: f.plan.target, moved: &m.moved,
		out: newPattern(m.seed, number, false), in: newPattern(m.seed, number, true),
	}
	f.target = s.run(ctx, header[:])
	m.finish(f, &f.targetIn)
	close(f.targetDone)
}

// unwrapEOF makes the two ends of file of io.ReadFull one.
func unwrapEOF(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return err
}

func (m *mixedRun) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.strange = append(m.strange, fmt.Sprintf(format, args...))
}

// running counts the flows of which a side is running.
func (m *mixedRun) running() (n int) {
	for _, f := range m.open {
		if !f.clientIn || f.came {
			n++
		}
	}
	return n
}
