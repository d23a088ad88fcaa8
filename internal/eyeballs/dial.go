package eyeballs

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// outcome is that of one attempt of a race.
type outcome[C any] struct {
	attempt int
	conn    C
	err     error
}

// Dial tries the addresses of a host, in the order of [Host.Order], and returns the connection that
// stands first, with its address. It takes the others back with drop before it returns. attempt
// returns soon after its context has ended. The error is that of the last attempt to fail.
func Dial[C any](ctx context.Context, h *Host, addrs []netip.AddrPort,
	attempt func(context.Context, netip.AddrPort) (C, error), drop func(C),
) (conn C, to netip.AddrPort, err error) {
	if len(addrs) == 0 {
		return conn, to, errors.New("no address")
	}
	racing, cancel := context.WithCancel(ctx)
	outcomes := make(chan outcome[C], len(addrs))
	began := make([]time.Time, 0, len(addrs))
	pending := map[int]bool{}
	defer func() {
		cancel()
		for range pending {
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
			i := len(began)
			if i == len(addrs) || len(pending) == MaxBeside {
				continue
			}
			began, pending[i] = append(began, time.Now()), true
			go func() {
				c, err := attempt(racing, addrs[i])
				outcomes <- outcome[C]{i, c, err}
			}()
			next.Reset(h.Delay(addrs[i]))
			continue
		case o := <-outcomes:
			delete(pending, o.attempt)
			to = addrs[o.attempt]
			if o.err == nil {
				h.Connected(to, time.Since(began[o.attempt]))
				for i := range pending {
					if i < o.attempt {
						h.Outrun(addrs[i], time.Since(began[i]))
					}
				}
				return o.conn, to, nil
			}
			err = o.err
			if ctx.Err() != nil || len(pending) == 0 && len(began) == len(addrs) {
				return conn, to, err
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
