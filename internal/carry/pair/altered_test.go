package pair_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

var alteredFlows = flag.Int("altered", 160, "flows over a path that alters bytes")

// altering is a box that alters single bytes, in heads of frames as often as elsewhere.
type altering struct {
	mu     sync.Mutex
	random *rand.Rand
	heads  int // altered so far
	bodies int
	others int // in prefaces and records of TLS
}

func (a *altering) before(h *hop, w io.Writer, toFar bool) io.Writer {
	return &meddled{w: w, lane: tampered{toFar: toFar}, prefaced: !toFar, sums: h.sums, alter: a.alter}
}

func (a *altering) alter(b []byte, head int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch at := 0; {
	case head == 0 && a.random.IntN(400) > 0, head > 0 && a.random.IntN(12) > 0, len(b) == 0:
		return
	case head == 0:
		at = a.random.IntN(len(b))
		a.others++
		b[at] ^= byte(1 + a.random.IntN(255))
	case head == len(b) || a.random.IntN(2) == 0:
		at = a.random.IntN(head)
		a.heads++
		b[at] ^= byte(1 + a.random.IntN(255))
	default:
		at = head + a.random.IntN(len(b)-head)
		a.bodies++
		b[at] ^= byte(1 + a.random.IntN(255))
	}
}

// TestAltered holds that no byte that is altered on the way makes a flow hang or reach its target
// twice, and that an altered stream never looks whole where it has a sum. Without resumption it has
// none: then its length is right.
func TestAltered(t *testing.T) {
	t.Parallel()
	var clear []mode
	for _, m := range modes {
		if m.clear && !m.older {
			clear = append(clear, m)
		}
	}
	for _, m := range clear {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			runAltered(t, m, max(*alteredFlows/len(clear), 1))
		})
	}
}

// dialings counts how often the far relay dials a target for a client.
type dialings struct {
	*stand
	mu sync.Mutex
	of map[netip.AddrPort]int
}

func (d *dialings) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	d.mu.Lock()
	d.of[o.Client]++
	d.mu.Unlock()
	return d.stand.Dial(ctx, o)
}

// runAltered has so many flows pass a box that alters bytes.
func runAltered(t *testing.T, m mode, flows int) {
	box := &altering{random: rand.New(rand.NewPCG(1, uint64(flows)))}
	d := &dialings{of: map[netip.AddrPort]int{}}
	s := newStand(t, m.in(), func(s *stand, _ *pair.Options, l *pair.LinkOptions) {
		d.stand, s.acceptor, l.Warm = s, d, 4
		s.log = slog.New(slog.DiscardHandler)
	})
	s.serve(answerEach)
	s.awaitWarm(1)
	s.path.pass(box)
	var mu sync.Mutex
	outcomes, clients := map[string]int{}, map[netip.AddrPort]int{}
	numbers := make(chan int, flows)
	for i := range flows {
		numbers <- i
	}
	close(numbers)
	var all sync.WaitGroup
	for range min(8, flows) {
		all.Go(func() {
			for i := range numbers {
				from, err := alteredFlow(s, i, m.noResume)
				mu.Lock()
				clients[from]++
				outcomes[outcomeOf(err)]++
				mu.Unlock()
				switch {
				case errors.Is(err, errWrong):
					t.Errorf("flow %d: %v", i, err)
				case errors.Is(err, os.ErrDeadlineExceeded):
					t.Errorf("flow %d waits for ever: %v\n%s", i, err, s.dump())
				}
			}
		})
	}
	all.Wait()
	box.mu.Lock()
	t.Logf("%d flows: %v; altered %d heads, %d other parts of frames, %d prefaces and records", flows, outcomes, box.heads, box.bodies, box.others)
	box.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for client, n := range d.of {
		if n > clients[client] {
			t.Errorf("%d dials for %d flows of client %v", n, clients[client], client)
		}
	}
	nettest.Eventually(t, patience, func() bool { return s.near.Flows()+s.far.Flows() == 0 && len(s.nearEnds) == flows }, s.dump)
	for name, ends := range map[string]chan flow.End{"near": s.nearEnds, "far": s.farEnds} {
		reasons := map[flow.EndReason]int{}
		for range len(ends) {
			reasons[(<-ends).Reason]++
		}
		t.Logf("%s relay: %v", name, reasons)
		delete(reasons, flow.EndClean)
		delete(reasons, flow.EndDamaged)
		if m.noResume { // it is lost with its lane, or before that is proven
			delete(reasons, flow.EndWANLost)
		}
		if len(reasons) > 0 {
			t.Errorf("%s relay: flows ended by %v", name, reasons)
		}
	}
}

var (
	errWrong  = errors.New("a stream that looks whole and is not")
	errUnseen = errors.New("a stream of the right length that is altered, and has no sum")
)

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "whole"
	case errors.Is(err, errWrong):
		return "wrong"
	case err == errUnseen:
		return "altered"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "waits"
	}
	return "reset"
}

// messageSizes are those of a flow's messages, in turn: both ends know them.
var messageSizes = []int{700, 1, 2900, 33, 5000, 100, 40_000, 1400, 9, 250_000}

// answerEach sends each message back once all of it is here.
func answerEach(c *net.TCPConn) {
	for i := 0; ; i++ {
		b := make([]byte, messageSizes[i%len(messageSizes)])
		n, err := io.ReadFull(c, b)
		if _, failed := c.Write(b[:n]); err != nil || failed != nil {
			break
		}
	}
	_ = c.CloseWrite()
}

// alteredFlow sends messages to a target that answers each, and waits for one answer before it sends
// the next, or sends all at once.
func alteredFlow(s *stand, i int, noSum bool) (from netip.AddrPort, err error) {
	conn, err := net.Dial("tcp", s.clients.Addr().String())
	if err != nil {
		return from, err
	}
	c := conn.(*net.TCPConn)
	defer c.Close()
	from = netip.MustParseAddrPort(c.LocalAddr().String())
	_ = c.SetDeadline(time.Now().Add(patience))
	var want, got []byte
	random := rand.New(rand.NewPCG(2, uint64(i)))
	if i%4 == 0 {
		want = pattern(1+random.IntN(2<<20), byte(i))
		go func() {
			_, _ = c.Write(want)
			_ = c.CloseWrite()
		}()
	} else {
		for k := range 1 + random.IntN(12) {
			b := pattern(messageSizes[k%len(messageSizes)], byte(i))
			if _, err := c.Write(b); err != nil {
				return from, err
			}
			want = append(want, b...)
			n, err := io.ReadFull(c, b)
			if got = append(got, b[:n]...); err == io.EOF || err == io.ErrUnexpectedEOF {
				return from, fmt.Errorf("%w: an end before its time", errWrong)
			} else if err != nil {
				return from, err
			}
		}
		_ = c.CloseWrite()
	}
	rest, err := io.ReadAll(onlyReader{c})
	if got = append(got, rest...); err != nil {
		return from, err
	}
	switch same := bytes.Equal(got, want); {
	case len(got) != len(want), !same && !noSum:
		return from, fmt.Errorf("%w: %d bytes in place of %d", errWrong, len(got), len(want))
	case !same:
		return from, errUnseen
	}
	return from, nil
}
