package pair_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

var withheldEach = flag.Int("withheld", 32, "have every n-th piece of what a flow's connections carry withheld; 1: each")

// hold is how a box treats a connection from one piece on.
type hold int

const (
	holdOneWay   hold = iota // it takes what comes in one direction, and passes nothing on
	holdBothWays             // in both
	holdUnread               // it reads nothing more of that direction: the window closes
	allHolds
)

func (h hold) String() string { return [...]string{"one way", "both ways", "unread"}[h] }

// holdBox is a box of which the process for one connection stops for good: the one that is to pass
// on the piece at of all that go in one direction. Its kernel acknowledges what comes.
type holdBox struct {
	how   hold
	toFar bool
	at    int64
	seen  atomic.Int64  // pieces
	over  chan struct{} // closed at the end
}

func (b *holdBox) before(h *hop, w io.Writer, toFar bool) io.Writer {
	return &swallowing{box: b, hop: h, to: onlyWriter{w}, toFar: toFar}
}

type swallowing struct {
	box   *holdBox
	hop   *hop
	to    io.Writer
	toFar bool
	stops bool
}

func (w *swallowing) Write(b []byte) (int, error) {
	if w.toFar == w.box.toFar && w.box.seen.Add(1)-1 == w.box.at {
		w.stops = true
		w.hop.silent.Store(w.box.how == holdBothWays)
	}
	switch {
	case w.stops && w.box.how == holdUnread:
		<-w.box.over
	case w.stops || w.hop.silent.Load():
	default:
		return w.to.Write(b)
	}
	return len(b), nil
}

// TestWithheld holds that a flow goes on whichever piece of its connections is withheld for ever,
// with all that follows it on the same connection: of handshakes, messages, and lanes. Nobody's
// kernel repeats anything. A flow that does not resume may be cut instead.
func TestWithheld(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		if m.older || m.compress {
			continue
		}
		for how := range allHolds {
			for _, toFar := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/to far %t", m.name, how, toFar), func(t *testing.T) {
					t.Parallel()
					var worst time.Duration
					var worstAt int64
					for at := int64(0); !t.Failed(); at += int64(*withheldEach) {
						took, reached := withhold(t, m, &holdBox{how: how, toFar: toFar, at: at, over: make(chan struct{})})
						if !reached {
							break
						}
						if took > worst {
							worst, worstAt = took, at
						}
					}
					t.Logf("at most %v, with piece %d", worst.Round(time.Millisecond), worstAt)
				})
			}
		}
	}
}

// withhold carries a flow past a box, and reports how long it took and whether the box withheld
// anything.
func withhold(t *testing.T, m mode, b *holdBox) (took time.Duration, reached bool) {
	t.Run(fmt.Sprint(b.at), func(t *testing.T) {
		s := newStand(t, m.in(), compressNothing, func(s *stand, o *pair.Options, _ *pair.LinkOptions) {
			o.ParkAfter, o.LateNoResume, s.path.box = 100*time.Millisecond, time.Second, b
		})
		t.Cleanup(func() { close(b.over) }) // before the path waits
		parked, farErr := make(chan struct{}), make(chan error, 1)
		s.serve(func(c *net.TCPConn) {
			_ = c.SetDeadline(time.Now().Add(patience))
			farErr <- converse(c, 'f', func() { <-parked })
		})
		c := s.dial()
		defer c.Close()
		began := time.Now()
		park := sync.OnceFunc(func() {
			s.letPark()
			close(parked)
		})
		err := converse(c, 'n', park)
		took = time.Since(began)
		park()
		switch {
		case isTimeout(err):
			t.Fatalf("near: %v: %s", err, s.dump())
		case err != nil && !m.noResume:
			t.Fatalf("near: %v, ends %+v %+v", err, receive(s.nearEnds), receive(s.farEnds))
		case err == nil:
			nettest.Must(t, <-farErr)
			s.ends(flow.EndClean)
		}
	})
	return took, b.seen.Load() > b.at
}

// letPark waits until the near flow has no lane, or is over.
func (s *stand) letPark() {
	f := s.flow(0)
	nettest.Eventually(s.t, patience, func() bool {
		return s.near.Flows() == 0 || f.Figures().Lanes == 0
	}, s.dump)
}

// converse has one end's part of a conversation: small messages, bytes both ways at once, silence for
// which park waits, and ends. The end 'n' begins.
func converse(c *net.TCPConn, end byte, park func()) error {
	begins := end == 'n'
	say := func(n int) error {
		_, err := c.Write(pattern(n, end))
		return err
	}
	hear := func(n int) error {
		b := make([]byte, n)
		if _, err := io.ReadFull(onlyReader{c}, b); err != nil {
			return err
		}
		if !bytes.Equal(b, pattern(n, 'n'^'f'^end)) {
			return fmt.Errorf("other bytes than were sent: %.64q", b)
		}
		return nil
	}
	turns := func(n int, first bool) error {
		if first {
			return errors.Join(say(n), hear(n))
		}
		return errors.Join(hear(n), say(n))
	}
	if err := turns(100, begins); err != nil {
		return fmt.Errorf("small: %w", err)
	}
	said := make(chan error, 1)
	go func() { said <- say(400 << 10) }()
	if err := errors.Join(hear(400<<10), <-said); err != nil {
		return fmt.Errorf("bulk: %w", err)
	}
	park()
	if err := turns(50, !begins); err != nil {
		return fmt.Errorf("after a silence: %w", err)
	}
	park()
	if err := turns(60, begins); err != nil {
		return fmt.Errorf("again: %w", err)
	}
	if begins {
		_ = c.CloseWrite()
	}
	if rest, err := io.ReadAll(onlyReader{c}); err != nil || len(rest) > 0 {
		return fmt.Errorf("end: %d bytes, %w", len(rest), err)
	}
	_ = c.CloseWrite()
	return nil
}
