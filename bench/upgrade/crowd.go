package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"longhaul/lab"
)

// talkEvery is the time between two sends of an open flow, each awaiting its echo.
const talkEvery = 2 * time.Second

// crowd is many short flows that send now and then.
type crowd struct {
	wg sync.WaitGroup

	mu       sync.Mutex
	all      []visit
	open     int
	openMost int
}

// visit is the account of one flow.
type visit struct {
	began time.Time
	first time.Duration // from connect to the first echo; 0: none
	stage string        // at which it failed
	err   error
}

// errWrong is the error of a flow that received wrong bytes.
var errWrong = errors.New("received bytes differ from the sent ones")

// startCrowd opens flows at an even rate until ctx ends. Open flows then end normally,
// only sooner.
func (w *world) startCrowd(ctx context.Context, o Options) *crowd {
	c := &crowd{}
	every := time.Second / time.Duration(o.PerSecond)
	c.wg.Go(func() {
		began := time.Now()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; {
			// All that are due: a busy machine skips ticks.
			for due := int(time.Since(began) / every); n <= due; n++ {
				c.wg.Go(func() { c.note(w.visit(ctx, c, o.Life())) })
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return c
}

func (c *crowd) wait() { c.wg.Wait() }

func (c *crowd) note(v visit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, v)
}

func (c *crowd) enter(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += n
	c.openMost = max(c.openMost, c.open)
}

// dial connects from host-a.
func (w *world) dial(to netip.AddrPort) (*net.TCPConn, error) {
	return w.lab.Host("host-a").DialTCP(context.Background(), to, patience)
}

// visit runs one flow from its connect to the end of both directions.
func (w *world) visit(ctx context.Context, c *crowd, life time.Duration) visit {
	v := visit{began: time.Now()}
	conn, err := w.dial(netip.AddrPortFrom(lab.RelayA, port))
	if err != nil {
		v.stage, v.err = "connect", err
		return v
	}
	defer conn.Close()
	c.enter(1)
	defer c.enter(-1)
	buffer := make([]byte, 2*2000)
	if err := talk(conn, buffer, 100+rand.IntN(1900)); err != nil {
		v.stage, v.err = "first echo", err
		return v
	}
	v.first = time.Since(v.began)
	over := time.NewTimer(life - v.first)
	defer over.Stop()
	again := time.NewTicker(talkEvery)
	defer again.Stop()
	for open := true; open; {
		select {
		case <-again.C:
			if err := talk(conn, buffer, 64); err != nil {
				v.stage, v.err = "echo", err
				return v
			}
		case <-over.C:
			open = false
		case <-ctx.Done():
			open = false
		}
	}
	if err := errors.Join(conn.SetDeadline(time.Now().Add(patience)), conn.CloseWrite()); err != nil {
		v.stage, v.err = "end", err
		return v
	}
	if n, err := conn.Read(buffer); n > 0 || err != io.EOF {
		v.stage, v.err = "end", fmt.Errorf("%d bytes, %w", n, err)
	}
	return v
}

// talk sends n random bytes and compares the echo.
func talk(conn *net.TCPConn, buffer []byte, n int) error {
	out, in := buffer[:n], buffer[len(buffer)/2:][:n]
	for i := range out {
		out[i] = byte(rand.Uint32())
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write(out); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, in); err != nil {
		return err
	}
	if !bytes.Equal(in, out) {
		return errWrong
	}
	return nil
}

// count sorts the flows by their outcome.
func (r *Result) count(c *crowd, fill *bulk, upgrades []time.Time) {
	note := func(began time.Time, stage string, err error) {
		switch {
		case err == nil:
			return
		case errors.Is(err, errWrong):
			r.Wrong++
		case stage == "connect" && !errors.Is(err, syscall.ECONNRESET):
			r.Refused++
		default:
			r.Reset++
		}
		if r.FirstError == "" {
			r.FirstError = fmt.Sprintf("%s: %v", stage, err)
			if len(upgrades) > 0 {
				r.FirstError = fmt.Sprintf("%+.3f s from the first upgrade, %s", began.Sub(upgrades[0]).Seconds(), r.FirstError)
			}
		}
	}
	r.Flows, r.OpenMost = len(c.all), c.openMost
	var near, others []time.Duration
	for _, v := range c.all {
		note(v.began, v.stage, v.err)
		if v.first == 0 {
			continue
		}
		if slices.ContainsFunc(upgrades, func(at time.Time) bool { return v.began.Sub(at).Abs() < time.Second }) {
			near = append(near, v.first)
		} else {
			others = append(others, v.first)
		}
	}
	r.FirstEchoNear, r.FirstEchoElse = spread(near), spread(others)
	for _, f := range fill.flows {
		note(f.began, "bulk", f.err)
	}
}
