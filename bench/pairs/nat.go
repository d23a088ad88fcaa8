package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/tcpserver"
	"longhaul/lab/wan"
)

// natTimeout is for how long a connection must be silent until the NAT forgets it.
// Home gateways keep TCP for 4 minutes and longer (Hätönen and others, IMC 2010);
// firewalls and load balancers can be set to less.
const natTimeout = 45 * time.Second

// parkedAfter is for how long a flow must be silent to hold no WAN connection
// (docs/design/pairs-wire.md, rule 5 of lanes).
const parkedAfter = 30 * time.Second

// firstByteWithin is how long the echo of the first byte after a silence may take, in
// round trips of the path: one, and not another one.
const firstByteWithin = 1.5

// nat has a NAT forget the connections of silent flows. After that it forgets all
// connections, as if it had been started again.
func nat(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	w, err := newWorld(ctx, o, conditions(outageRTT, outageRateBps), way, tcpserver.Echo)
	if err != nil {
		return err
	}
	defer w.close()
	all, err := w.open(ctx, kit.Pick(o, 50, 10))
	if err != nil {
		return err
	}
	defer all.close()
	forgotten, err := w.forgetFor(ctx, natTimeout+15*time.Second, func(c *tcpinfo.Connection) bool { return silentFor(c) > natTimeout })
	if err != nil {
		return err
	}
	note(kit.Measured{Name: "flows", Value: float64(len(all))})
	note(kit.Measured{Name: "silent connections forgotten", Value: float64(forgotten)})
	noteEchoes(note, "byte after the silence", all.sayInTurn(ctx), true)

	// Again parked, and all connections are gone: the relay has ten seconds to notice.
	if err := kit.Pause(ctx, parkedAfter+5*time.Second); err != nil {
		return err
	}
	if forgotten, err = w.forgetFor(ctx, time.Second, everyConnection); err != nil {
		return err
	}
	if err := kit.Pause(ctx, 10*time.Second); err != nil {
		return err
	}
	note(kit.Measured{Name: "all connections forgotten", Value: float64(forgotten)})
	noteEchoes(note, "byte 10 s after that", all.sayInTurn(ctx), true)
	// And while the flows have bytes under way.
	if _, err = w.forgetFor(ctx, time.Second, everyConnection); err != nil {
		return err
	}
	noteEchoes(note, "byte at once after that", all.say(), false)
	return nil
}

// silentFor is for how long nothing has come or gone on a connection.
func silentFor(c *tcpinfo.Connection) time.Duration {
	return min(c.Info.LastDataSent, c.Info.LastDataRecv, c.Info.LastAckRecv)
}

func everyConnection(*tcpinfo.Connection) bool { return true }

// forgetFor forgets the connections between the relays that a rule picks, which it
// looks up every second for a time. No packet of theirs arrives from then on.
func (w *world) forgetFor(ctx context.Context, lasts time.Duration, rule func(*tcpinfo.Connection) bool) (forgotten int, err error) {
	path := w.path()
	done := map[wan.Connection]bool{}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		picked, err := path.Connections(rule)
		for _, c := range picked {
			if !done[c] {
				done[c] = true
				err = errors.Join(err, path.Forget(c))
			}
		}
		if err != nil {
			return len(done), err
		}
		if err := kit.Pause(ctx, time.Second); err != nil {
			return len(done), err
		}
	}
	return len(done), nil
}

// standing are flows that are silent most of the time.
type standing []*net.TCPConn

// open opens flows to an echo, each with one byte there and back.
func (w *world) open(ctx context.Context, n int) (standing, error) {
	var all standing
	for range n {
		conn, err := w.dial(ctx)
		if err != nil {
			all.close()
			return nil, err
		}
		all = append(all, conn)
	}
	for _, r := range all.say() {
		if r.err != nil {
			all.close()
			return nil, w.errorf("first byte of a flow: %w", r.err)
		}
	}
	return all, ctx.Err()
}

func (s standing) close() {
	for _, conn := range s {
		conn.Close()
	}
}

// reply is the answer to one byte.
type reply struct {
	took time.Duration
	err  error
}

// say sends a byte on every flow at once, and waits for the echoes.
func (s standing) say() []reply {
	replies := make([]reply, len(s))
	var wg sync.WaitGroup
	for i, conn := range s {
		wg.Go(func() { replies[i] = echo(conn, byte(i)) })
	}
	wg.Wait()
	return replies
}

// sayInTurn does the same on one flow after the other, so that a warm connection can be
// ready for each.
func (s standing) sayInTurn(ctx context.Context) []reply {
	var replies []reply
	for i, conn := range s {
		replies = append(replies, echo(conn, byte(i)))
		if kit.Pause(ctx, time.Second) != nil {
			break
		}
	}
	return replies
}

// echo sends a byte and waits for its echo.
func echo(conn net.Conn, b byte) (r reply) {
	began, got := time.Now(), []byte{^b}
	r.err = errors.Join(conn.SetDeadline(began.Add(patience)), write(conn, []byte{b}))
	if r.err == nil {
		_, r.err = io.ReadFull(conn, got)
	}
	if r.err == nil && got[0] != b {
		r.err = errWrong
	}
	r.took = time.Since(began)
	return r
}

// noteEchoes notes how long the slowest echo took in round trips, and how many did not
// come.
func noteEchoes(note func(kit.Measured), what string, replies []reply, bounded bool) {
	failed, example := 0, ""
	var took []time.Duration
	for _, r := range replies {
		if r.err != nil {
			failed++
			example = r.err.Error()
			continue
		}
		took = append(took, r.took)
	}
	note(kit.Measured{Name: fmt.Sprintf("%s: no echo", what), Value: float64(failed), Bound: kit.AtMost(0), Exact: true, Example: example})
	if len(took) == 0 {
		return
	}
	m := kit.Measured{Name: fmt.Sprintf("%s: slowest echo", what), Unit: "RTT", Value: slices.Max(took).Seconds() / outageRTT.Seconds()}
	if bounded {
		m.Bound, m.Exact = kit.AtMost(firstByteWithin), true
	}
	note(m)
}
