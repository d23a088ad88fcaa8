package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/wan"
)

// What case stalls does.
const (
	stallTransfer = 1 << 20 // bytes
	stallClients  = 4       // at the same time, one transfer after the other each
	stallLasts    = 2 * time.Second
	stallShare    = 0.01 // of the time of each connection
	stallTick     = 100 * time.Millisecond
)

// stalls times transfers, and times them again while connections of the path drop what
// they carry, each for 2 s and for 1 % of the time.
func stalls(ctx context.Context, o Options, way string, run int, note func(measured)) error {
	c := conditions(stripeRTT, stripeRate(o))
	c.Policer = perConnection(c.RateBps / 8)
	w, err := newWorld(ctx, o, c, way, target{}.serve)
	if err != nil {
		return err
	}
	defer w.close()
	lasts := pick(o, time.Minute, 20*time.Second)
	var p99 [2]float64
	for i, phase := range []string{"without stalls", "with stalls"} {
		stalled := 0
		stopped := make(chan error, 1)
		stopping, stop := context.WithCancel(ctx)
		if i == 0 {
			stopped <- nil
		} else {
			go func() { stopped <- w.stallConnections(stopping, rand.New(rand.NewPCG(o.seed(run), 0)), &stalled) }()
		}
		took, err := w.transfers(ctx, lasts)
		stop()
		if err := errors.Join(err, <-stopped); err != nil {
			return w.errorf("%s: %w", phase, err)
		}
		p99[i] = took[len(took)*99/100].Seconds()
		note(measured{name: phase + ": transfers", value: float64(len(took))})
		note(measured{name: phase + ": 1 MB, median", unit: "s", value: took[len(took)/2].Seconds()})
		note(measured{name: phase + ": 1 MB, p99", unit: "s", value: p99[i]})
		if i == 1 {
			note(measured{name: "stalls of connections", value: float64(stalled)})
		}
	}
	ratio := measured{name: "1 MB, p99 with ÷ without stalls", value: p99[1] / p99[0]}
	if way == WayLanes {
		ratio.bound = atMost(stripeStallFactor)
	}
	note(ratio)
	return nil
}

// transfers sends 1 MB on flow after flow, and returns the sorted times from connect to
// the target's answer.
func (w *world) transfers(ctx context.Context, lasts time.Duration) ([]time.Duration, error) {
	var mu sync.Mutex
	var took []time.Duration
	var errs []error
	var clients sync.WaitGroup
	for began := time.Now(); len(errs) == 0 && time.Since(began) < lasts; {
		for range stallClients {
			clients.Go(func() {
				t, err := w.transfer(ctx)
				mu.Lock()
				defer mu.Unlock()
				took, errs = append(took, t), append(errs, err)
			})
		}
		clients.Wait()
		errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	}
	slices.Sort(took)
	return took, errors.Join(errs...)
}

func (w *world) transfer(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	conn, err := w.dial(ctx)
	if err != nil {
		return 0, fmt.Errorf("dial: %w", err)
	}
	defer conn.Close()
	err = errors.Join(conn.SetDeadline(began.Add(patience)), write(conn, request(askReceive, stallTransfer)), sendPattern(conn, stallTransfer), readOne(conn))
	return time.Since(began), err
}

// stallConnections has each connection of the path drop what it carries now and then.
func (w *world) stallConnections(ctx context.Context, dice *rand.Rand, stalled *int) error {
	path := w.path()
	seen := path
	if w.way == WayDirect || w.way == WayMPTCP {
		seen = &wan.Path{Near: w.Host("host-a"), Serves: func(p uint16) bool { return p == targetPort }}
	}
	silent := map[wan.Connection]time.Time{}
	defer func() {
		for c := range silent {
			_ = path.Remember(c)
		}
	}()
	begins := stallShare * stallTick.Seconds() / stallLasts.Seconds()
	for {
		if pause(ctx, stallTick) != nil {
			return nil
		}
		all, err := seen.Connections(func(c *tcpinfo.Connection) bool { return c.Info.State == tcpinfo.Established })
		if err != nil {
			return err
		}
		for c, until := range silent {
			if time.Now().After(until) {
				delete(silent, c)
				if err := path.Remember(c); err != nil {
					return err
				}
			}
		}
		for _, c := range all {
			if _, is := silent[c]; !is && dice.Float64() < begins {
				silent[c] = time.Now().Add(stallLasts)
				*stalled++
				if err := path.Forget(c); err != nil {
					return err
				}
			}
		}
	}
}
