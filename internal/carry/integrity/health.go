package integrity

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// healthBytes is the size of a health check in each direction.
const healthBytes = 16 << 10

// Health checks whether flows can pass a relay. It must answer, bytes must pass
// in both directions, and its next hop must accept; a target's program sees no connection. Health
// is comparable.
type Health struct {
	Key      Key
	Preamble string  // bytes to send first: a PROXY header
	Memory   *Memory // of clocks
}

// Probe checks the relay at an address and returns the round-trip time to it.
func (h Health) Probe(ctx context.Context, to netip.AddrPort) (time.Duration, error) {
	w := &walker{Walk: Walk{
		Self: Identity{Host: "this relay"}, Forward: to.String(), Next: NextRelay, Key: h.Key, Bytes: healthBytes, Memory: h.Memory,
		Dial: func(ctx context.Context) (Conn, netip.AddrPort, error) {
			d := net.Dialer{Control: withFirstBytes} // so that the relay need not connect to its target to know
			d.SetMultipathTCP(false)
			conn, err := d.DialContext(ctx, "tcp", to.String())
			if err != nil {
				return nil, to, err
			}
			_, err = conn.Write([]byte(h.Preamble))
			return conn.(*net.TCPConn), to, err
		},
	}}
	w.one = true
	w.run(ctx)
	// The connection may notice the deadline before ctx does.
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) || ctx.Err() != nil {
		return 0, errors.New("no answer in time")
	}
	if f := w.chain.Fault; f != nil && f.Reason != Losing {
		return 0, errors.New(f.Text)
	}
	var rtt time.Duration
	if measured := w.chain.Hops[0].RTT; measured != nil {
		rtt = measured.Duration()
	}
	return rtt, nil
}
