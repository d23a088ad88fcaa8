package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"longhaul/lab"
	"longhaul/lab/tcpserver"
)

// The target's two services. Each reply begins with the number of the connection's
// relay.
const (
	serviceHash = 'H' // the hash of all bytes until the end
	serviceEcho = 'E' // the received bytes
)

// answer serves a connection of the target on host-b.
func answer(conn net.Conn) {
	relay := byte(1)
	if conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap() == lab.RelayB2 {
		relay = 2
	}
	var service [1]byte
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	if _, err := io.ReadFull(conn, service[:]); err != nil {
		return // a health check, or a client that disconnected
	}
	if service[0] == serviceEcho {
		if _, err := conn.Write([]byte{relay}); err == nil {
			tcpserver.Echo(conn)
		}
		return
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, conn); err == nil {
		_, _ = conn.Write(append([]byte{relay}, sum.Sum(nil)...))
	}
}

// From halfASecond after the death no new connection reaches the dead relay.
const halfASecond = time.Second / 2

// attempt is a new connection.
type attempt struct {
	began time.Time
	took  time.Duration
	relay byte // that served it
	err   error
}

// stream opens connections at an even rate and waits for all of them.
func (w world) stream(ctx context.Context, l load) []attempt {
	var (
		mu  sync.Mutex
		all []attempt
		wg  sync.WaitGroup
	)
	every := time.Second / time.Duration(l.perSecond)
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	total := int((l.before + l.after) / every)
	touched := int((l.before + halfASecond) / every) // connections that the death may cut
	for n := 0; n < total && ctx.Err() == nil; {
		// All that are due: a busy machine skips ticks.
		for due := int(time.Since(began) / every); n <= due && n < total; n++ {
			within := patience
			if n < touched {
				within = l.patience
			}
			wg.Go(func() {
				a := attempt{began: time.Now()}
				a.relay, a.err = w.ask(ctx, within)
				a.took = time.Since(a.began)
				mu.Lock()
				all = append(all, a)
				mu.Unlock()
			})
		}
		<-tick.C
	}
	wg.Wait()
	return all
}

func (w world) dial(ctx context.Context, within time.Duration) (conn *net.TCPConn, err error) {
	conn, err = w.Host("host-a").DialTCP(ctx, netip.AddrPortFrom(lab.RelayA, port), within)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(within))
	}
	return conn, err
}

// ask sends some bytes and compares the returned hash.
func (w world) ask(ctx context.Context, within time.Duration) (relay byte, err error) {
	conn, err := w.dial(ctx, within)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	content := make([]byte, 100+rand.IntN(2000))
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	if _, err := conn.Write(append([]byte{serviceHash}, content...)); err != nil {
		return 0, err
	}
	if err := conn.CloseWrite(); err != nil {
		return 0, err
	}
	reply, err := io.ReadAll(conn)
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256(content)
	if len(reply) != 1+len(sum) || !bytes.Equal(reply[1:], sum[:]) {
		return 0, fmt.Errorf("got %d bytes that are not the hash of the sent ones", len(reply))
	}
	return reply[0], nil
}

// standing are connections that stay open while the relay dies.
type standing struct{ flows []*standingFlow }

type standingFlow struct {
	conn    *net.TCPConn
	relay   byte
	longest time.Duration // between two replies
	err     error
}

// standingEvery is the time between two sends of a standing connection.
const standingEvery = 50 * time.Millisecond

// stand opens the connections and finds the relay of each.
func (w world) stand(ctx context.Context, n int) (*standing, error) {
	s := &standing{}
	var on [3]int
	for range n {
		conn, err := w.dial(ctx, patience)
		if err != nil {
			return nil, err
		}
		f := &standingFlow{conn: conn}
		s.flows = append(s.flows, f)
		var relay [1]byte
		if _, err := conn.Write([]byte{serviceEcho}); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(conn, relay[:]); err != nil {
			return nil, err
		}
		f.relay = relay[0]
		on[f.relay]++
	}
	if on[1] == 0 || on[2] == 0 {
		return nil, fmt.Errorf("of %d standing connections %d are on relay-b and %d on relay-b2", n, on[1], on[2])
	}
	return s, nil
}

// begin has every connection send until the returned function is called. That waits
// for all and may be called again.
func (s *standing) begin(ctx context.Context, afterDeath time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, f := range s.flows {
		wg.Go(func() {
			defer f.conn.Close()
			within := patience
			if f.relay == 1 {
				within = afterDeath
			}
			f.talk(ctx, within)
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

func (f *standingFlow) talk(ctx context.Context, within time.Duration) {
	out, in := make([]byte, 500), make([]byte, 500)
	last := time.Now()
	for ctx.Err() == nil {
		for i := range out {
			out[i] = byte(rand.Uint32())
		}
		_ = f.conn.SetDeadline(time.Now().Add(within))
		_, err := f.conn.Write(out)
		if err == nil {
			_, err = io.ReadFull(f.conn, in)
		}
		if err == nil && !bytes.Equal(in, out) {
			err = errors.New("received bytes differ from the sent ones")
		}
		if err != nil {
			f.err = err
			return
		}
		f.longest = max(f.longest, time.Since(last))
		last = time.Now()
		select {
		case <-time.After(standingEvery):
		case <-ctx.Done():
		}
	}
}
