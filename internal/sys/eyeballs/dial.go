package eyeballs

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// outcome is that of one attempt of a race.
type outcome[C any] struct {
	attempt int
	conn    C
	err     error
}

// begun is an attempt that has begun.
type begun struct {
	at      time.Time
	stop    context.CancelFunc
	stopped bool // the next one gets its place
}

// Dial tries the addresses of a host, in the order of [Host.Order], and returns the connection that
// stands first, with its address. With MaxBeside attempts in flight the next one replaces the oldest,
// so that all addresses are tried in the time of ctx. Dial takes the others back with drop before it
// returns. attempt returns soon after its context has ended. The error is that of the last attempt
// to fail.
func Dial[C any](ctx context.Context, h *Host, addrs []netip.AddrPort,
	attempt func(context.Context, netip.AddrPort) (C, error), drop func(C),
) (conn C, to netip.AddrPort, err error) {
	if len(addrs) == 0 {
		return conn, to, errors.New("no address")
	}
	racing, cancel := context.WithCancel(ctx)
	outcomes := make(chan outcome[C], len(addrs))
	all := make([]begun, 0, len(addrs))
	var inFlight []int // attempts, the oldest first
	defer func() {
		cancel()
		for range inFlight {
			if late := <-outcomes; late.err == nil {
				drop(late.conn)
			}
		}
	}()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			i := len(all)
			if i == len(addrs) {
				continue
			}
			if len(inFlight) == MaxBeside {
				oldest := &all[inFlight[0]]
				oldest.stopped = true
				oldest.stop() // its end begins the next one
				continue
			}
			one, stop := context.WithCancel(racing)
			all, inFlight = append(all, begun{at: time.Now(), stop: stop}), append(inFlight, i)
			go func() {
				c, err := attempt(one, addrs[i])
				outcomes <- outcome[C]{i, c, err}
			}()
			next.Reset(h.Next(addrs[i], len(inFlight), len(addrs)-len(all), left(ctx)))
		case o := <-outcomes:
			inFlight = slices.DeleteFunc(inFlight, func(i int) bool { return i == o.attempt })
			to = addrs[o.attempt]
			if o.err == nil {
				h.Connected(to, time.Since(all[o.attempt].at))
				for _, i := range inFlight {
					if i < o.attempt {
						h.Outrun(addrs[i], time.Since(all[i].at))
					}
				}
				return o.conn, to, nil
			}
			if !all[o.attempt].stopped {
				err = o.err
			}
			if ctx.Err() != nil || len(inFlight) == 0 && len(all) == len(addrs) {
				return conn, to, cmp.Or(err, context.Cause(ctx), o.err)
			}
			h.Failed(to)
			next.Reset(0)
		case <-ctx.Done():
			if err == nil {
				err = context.Cause(ctx)
			}
			return conn, to, err
		}
	}
}

// left is the time until the end of a context; 0: it has no deadline.
func left(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return time.Until(end)
}
