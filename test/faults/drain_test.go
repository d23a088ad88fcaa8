package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"longhaul/lab/link"
	"longhaul/test/nettest"
)

// newcomers connect all the time, each with a byte that must come back.
type newcomers struct {
	served, refused atomic.Int64
	late            atomic.Int64 // were cut since their handshakes took longer than the relay waits for one
	stop            context.CancelFunc
	all             sync.WaitGroup

	mu     sync.Mutex
	broken []error // connections that stood, and were cut
}

func startNewcomers(t *testing.T, every time.Duration, dial dialFunc) *newcomers {
	ctx, cancel := context.WithCancel(t.Context())
	n := &newcomers{stop: cancel}
	n.all.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			n.all.Go(func() {
				if err := n.one(t.Context(), dial); err != nil {
					n.mu.Lock()
					n.broken = append(n.broken, err)
					n.mu.Unlock()
				}
			})
		}
	})
	return n
}

func (n *newcomers) one(ctx context.Context, dial dialFunc) error {
	// A listener that ends waits so long for the handshakes that it has answered.
	const settleWithin = 1400 * time.Millisecond
	began := time.Now()
	c, err := dial(ctx)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		n.refused.Add(1)
		return nil
	case err != nil:
		return err
	}
	defer c.Close()
	stood := time.Since(began)
	_ = c.SetDeadline(time.Now().Add(patience))
	var b [1]byte
	if _, err = c.Write([]byte{'?'}); err == nil {
		_, err = io.ReadFull(c, b[:])
	}
	took := time.Since(began)
	switch {
	case err == nil:
		n.served.Add(1)
	case took >= settleWithin:
		n.late.Add(1)
	default:
		return fmt.Errorf("connected after %v, and after %v %w", stood, took, err)
	}
	return nil
}

// answered is how many were served or refused.
func (n *newcomers) answered() int64 { return n.served.Load() + n.refused.Load() }

// end lets no more come, and waits for those that have.
func (n *newcomers) end() {
	n.stop()
	n.all.Wait()
}

// expectServed ends the newcomers. Each of them must have been served.
func (n *newcomers) expectServed(t *testing.T) {
	t.Helper()
	n.end()
	if len(n.broken) > 0 || n.refused.Load() > 0 || n.served.Load() == 0 {
		t.Errorf("%d served, %d refused, %d broken: %v", n.served.Load(), n.refused.Load(), len(n.broken), n.broken)
	}
}

func (n *newcomers) expectWhole(t *testing.T) {
	t.Helper()
	n.end()
	t.Logf("%d served, %d refused, %d too late", n.served.Load(), n.refused.Load(), n.late.Load())
	if len(n.broken) > 0 {
		t.Errorf("%d connections stood and were cut, the first: %v", len(n.broken), n.broken[0])
	}
	if n.served.Load() == 0 || n.refused.Load() == 0 {
		t.Error("nothing was tested")
	}
}

// TestHandshakesOutliveListener has clients connect over a slow path while
// tunnels stop listening: drained, taken away by a reload, or with the relay.
// Who has a connection keeps it, though the relay learns of it only a round trip
// after it has answered. A handshake that takes longer than the relay waits, 1.4 s, on a
// machine that is busy, does not count: its client sees the reset no sooner than that.
func TestHandshakesOutliveListener(t *testing.T) {
	t.Parallel()
	const oneWay, rounds = 60 * time.Millisecond, 2
	p := newPath(t)
	for _, dir := range []link.Direction{link.AToB, link.BToA} {
		s := p.Link("near").Settings(dir)
		s.Delay = oneWay
		if err := p.Link("near").Set(dir, s); err != nil {
			t.Fatal(err)
		}
	}
	serveEcho(t, p.listen(targetPort))
	with := p.config("") + fmt.Sprintf("  - {name: other, listen: %s:%d, forward: %s:%d}\n", relayNear, listenPort+1, targetAddress, targetPort)
	without := p.config("")
	relay := p.relay(with)
	atMain, atOther := startNewcomers(t, 5*time.Millisecond, p.dialTo(listenPort)), startNewcomers(t, 5*time.Millisecond, p.dialTo(listenPort+1))
	// come waits until further clients have come at both ports, each over a path that
	// takes a round trip.
	come := func() {
		t.Helper()
		const some = 50
		begin := [...]int64{atMain.answered(), atOther.answered()}
		nettest.Eventually(t, patience, func() bool { return atMain.answered() >= begin[0]+some && atOther.answered() >= begin[1]+some },
			func() string { return "no clients come" })
	}
	for range rounds {
		for _, verb := range []string{"drain", "resume"} {
			if out, status := command(t, verb, "main", "--control-socket", relay.socket()); status != 0 {
				t.Fatalf("%s: status %d: %s", verb, status, out)
			}
			come()
		}
		for _, config := range []string{without, with} {
			relay.reload(config)
			come()
		}
	}
	relay.signal(syscall.SIGTERM)
	relay.expectExit(0)
	atMain.expectWhole(t)
	atOther.expectWhole(t)
}
