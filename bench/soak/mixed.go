package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
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

	targets  sync.WaitGroup
	acceptor sync.WaitGroup
	listener *net.TCPListener          // guarded by mu
	held     map[*net.TCPConn]struct{} // the target's connections, guarded by mu
	samples  []Sample                  // of what the near relay holds
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
var lateTarget = 35 * time.Second

// runMixed runs flows for a time while events happen, lets them finish, and returns what came of
// it. report is told how it goes.
func runMixed(ctx context.Context, w *world, seed uint64, length time.Duration, events []event, parallel int, report func(mixedProgress)) (MixedResult, error) {
	m := &mixedRun{world: w, seed: seed, open: map[uint64]*liveFlow{}, held: map[*net.TCPConn]struct{}{}}
	before, err := w.statuses(ctx)
	if err != nil {
		return MixedResult{}, err
	}
	if err := m.newTarget(ctx); err != nil {
		return MixedResult{}, err
	}

	began := time.Now()
	running, stop := context.WithTimeout(ctx, length)
	defer stop()
	d := &director{
		world: w, counts: map[eventKind]int{},
		killTarget: m.killTarget,
		// Even if the run ends now: flows that are under way need it.
		newTarget: func() error { return m.newTarget(context.WithoutCancel(ctx)) },
	}
	directed := make(chan error, 1)
	go func() {
		err := d.run(running, began, events)
		if err != nil {
			stop()
		}
		directed <- err
	}()
	var clients sync.WaitGroup
	for range parallel {
		clients.Go(func() {
			for running.Err() == nil {
				m.one(ctx, m.next.Add(1))
			}
		})
	}
	ticker := time.NewTicker(min(progressEvery, length/10))
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
			if since := time.Since(began); since > length/mortalShare && since < length {
				m.sample(ctx, since)
			}
		case <-done:
			waiting = false
		}
	}
	err = <-directed
	var left []string
	if err == nil {
		// A flow whose reset was lost on the WAN is found by keepalive.
		for i, r := range w.all() {
			if err = r.Reload(ctx, w.config(r, 0)); err != nil {
				break
			}
			if _, err := r.Settled(ctx, before[i], lateTarget); err != nil {
				left = append(left, err.Error())
			}
		}
	}
	m.mu.Lock()
	m.listener.Close()
	m.mu.Unlock()
	m.acceptor.Wait()
	m.targets.Wait()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return MixedResult{}, err
	}
	took := time.Since(began)
	m.awaitLog(ctx, d)
	result := m.result(d, took)
	result.Violations = append(result.Violations, left...)
	return result, nil
}

// awaitLog waits until relay-a has said why the flows ended of which it has to. It
// writes its log beside its flows, and on a busy machine some time after them.
func (m *mixedRun) awaitLog(ctx context.Context, d *director) {
	lines := map[netip.AddrPort]int{} // by client
	m.mu.Lock()
	for _, f := range m.finished {
		if f.mustBeLogged(d.faults) {
			lines[f.from]++
		}
	}
	for _, f := range m.open {
		if f.mustBeLogged(d.faults) {
			lines[f.from]++
		}
	}
	m.mu.Unlock()
	for begun := time.Now(); !m.world.hasLogged(lines) && time.Since(begun) < lateTarget && ctx.Err() == nil; {
		pause(ctx, 20*time.Millisecond)
	}
}

// newTarget begins to accept on host-b.
func (m *mixedRun) newTarget(ctx context.Context) error {
	l, err := m.world.listen(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.listener = l
	m.mu.Unlock()
	m.acceptor.Go(func() { m.accept(ctx, l) })
	return nil
}

// killTarget ends the target like a killed program with data in its sockets: every
// connection is reset, and nothing listens.
func (m *mixedRun) killTarget() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for conn := range m.held {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
	return m.listener.Close()
}

// sample notes what the near relay holds. A relay that does not answer is
// found by other means.
func (m *mixedRun) sample(ctx context.Context, since time.Duration) {
	s, err := m.world.near.Status(ctx)
	if err != nil {
		return
	}
	m.samples = append(m.samples, Sample{
		Seconds:       since.Seconds(),
		Flows:         s.FlowsNow,
		ResidentBytes: s.Process.ResidentBytes,
		Descriptors:   s.OpenBeyondPipes(),
		Goroutines:    s.Process.Goroutines,
	})
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
		f.from = conn.LocalAddr().(*net.TCPAddr).AddrPort()
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
		m.mu.Lock()
		if m.listener == l { // and not of a target that has just been killed
			m.held[conn] = struct{}{}
		} else {
			_ = conn.SetLinger(0)
			_ = conn.Close()
		}
		m.mu.Unlock()
		m.targets.Go(func() {
			m.target(ctx, conn)
			m.mu.Lock()
			delete(m.held, conn)
			m.mu.Unlock()
		})
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
		case sawReset, sawTimeout, sawOwn:
		case sawEnd:
			_ = conn.CloseWrite()
			m.mu.Lock()
			if n == 0 {
				m.nothing++
			} else if header[0] != garbageMark {
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
	if header[0] == garbageMark {
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
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
