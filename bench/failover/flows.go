package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/lab"
	"longhaul/lab/tcpserver"
)

// The target's two services, which the first byte of a client's stream chooses.
const (
	serviceRequest = 'R' // a number and bytes until the end; the answer is the hash of the bytes
	serviceEcho    = 'E' // the received bytes
)

// greetingBytes is the length of a greeting: the number of the relay, and random bytes, which the
// hash covers.
const greetingBytes = 1 + 8

// target serves on host-b. Each answer begins with the number of the connection's relay.
type target struct {
	mu       sync.Mutex
	requests map[uint64]int // connections on which bytes of a request came, by its number
}

// relayOf is the number of the relay that a connection comes from.
func relayOf(conn net.Conn) byte {
	if a := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(); a == lab.RelayB2 {
		return 2
	}
	return 1
}

// answer serves a connection.
func (t *target) answer(conn net.Conn, greets bool) {
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	relay := relayOf(conn)
	sum := sha256.New()
	if greets {
		greeting := binary.BigEndian.AppendUint64([]byte{relay}, rand.Uint64())
		if _, err := conn.Write(greeting); err != nil {
			return
		}
		sum.Write(greeting)
	}
	var service [1]byte
	if _, err := io.ReadFull(conn, service[:]); err != nil {
		return // a health check, or a client that went to the other relay
	}
	if service[0] == serviceEcho {
		if _, err := conn.Write([]byte{relay}); err == nil {
			_ = conn.SetDeadline(time.Time{})
			tcpserver.Echo(conn)
		}
		return
	}
	var number [8]byte
	if _, err := io.ReadFull(conn, number[:]); err != nil {
		return
	}
	t.mu.Lock()
	t.requests[binary.BigEndian.Uint64(number[:])]++
	t.mu.Unlock()
	if _, err := io.Copy(sum, conn); err == nil {
		_, _ = conn.Write(append([]byte{relay}, sum.Sum(nil)...))
	}
}

// twice counts the requests whose bytes came over several connections.
func (t *target) twice() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, connections := range t.requests {
		if connections > 1 {
			n++
		}
	}
	return n
}

// attempt is a new connection.
type attempt struct {
	number  uint64
	greets  bool
	began   time.Time
	took    time.Duration // from connect to answer
	relay   byte          // that served it
	reached bool          // its bytes came to a target
	local   string
	err     error
}

// news are new connections at a steady rate.
type news struct {
	target *target
	stop   context.CancelFunc
	over   chan struct{}

	mu  sync.Mutex
	all []attempt
}

// stream begins new connections until the end of the context, or of the stream.
func (w *world) stream(ctx context.Context, perSecond int) *news {
	n := &news{target: w.target, over: make(chan struct{})}
	begins, stop := context.WithCancel(ctx)
	n.stop = stop
	every := time.Second / time.Duration(perSecond)
	began := time.Now()
	go func() {
		defer close(n.over)
		var running sync.WaitGroup
		defer running.Wait()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for number := uint64(1); begins.Err() == nil; {
			// All that are due: a busy machine skips ticks.
			for due := uint64(time.Since(began) / every); number <= due; number++ {
				a := attempt{number: number, greets: number%2 == 0}
				running.Go(func() {
					a.began = time.Now()
					a.err = w.ask(ctx, &a)
					a.took = time.Since(a.began)
					n.mu.Lock()
					defer n.mu.Unlock()
					n.all = append(n.all, a)
				})
			}
			select {
			case <-tick.C:
			case <-begins.Done():
			}
		}
	}()
	return n
}

// end begins no more, waits for all that have begun, and returns them. It may be called again.
func (n *news) end() []attempt {
	n.stop()
	<-n.over
	n.target.mu.Lock()
	defer n.target.mu.Unlock()
	for i := range n.all {
		n.all[i].reached = n.target.requests[n.all[i].number] > 0
	}
	return n.all
}

func (w *world) dial(ctx context.Context, greets bool) (conn *net.TCPConn, err error) {
	to := netip.AddrPortFrom(w.to, port)
	if greets {
		to = netip.AddrPortFrom(w.to, port+1)
	}
	conn, err = w.Host("host-a").DialTCP(ctx, to, patience)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

// ask sends a request and compares the returned hash.
func (w *world) ask(ctx context.Context, a *attempt) error {
	conn, err := w.dial(ctx, a.greets)
	if err != nil {
		return err
	}
	defer conn.Close()
	a.local = conn.LocalAddr().String()
	var greeting []byte
	if a.greets {
		greeting = make([]byte, greetingBytes)
		if _, err := io.ReadFull(conn, greeting); err != nil {
			return fmt.Errorf("greeting: %w", err)
		}
	}
	content := make([]byte, 100+rand.IntN(2000))
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	request := append(binary.BigEndian.AppendUint64([]byte{serviceRequest}, a.number), content...)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	reply, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(append(greeting, content...))
	if len(reply) != 1+len(sum) || !bytes.Equal(reply[1:], sum[:]) {
		return fmt.Errorf("got %d bytes that are not the hash of the sent ones", len(reply))
	}
	a.relay = reply[0]
	return nil
}

// standing are connections that stay open while a relay fails.
type standing struct {
	flows []*standingFlow
	stop  func()
}

type standingFlow struct {
	conn    *net.TCPConn
	local   string
	relay   byte
	longest time.Duration // between two replies
	ended   time.Time     // zero: it stood to the end
	err     error
}

const (
	// standingEvery is the time between two messages of a standing connection.
	standingEvery = time.Second
	// openedAtOnce is how many of them connect at a time.
	openedAtOnce = 32
)

// stand opens the connections and finds the relay of each.
func (w *world) stand(ctx context.Context, n int) (*standing, error) {
	s := &standing{flows: make([]*standingFlow, n)}
	errs := make([]error, n)
	var next atomic.Int64
	var all sync.WaitGroup
	for range openedAtOnce {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = next.Add(1) - 1 {
				s.flows[i], errs[i] = w.standOne(ctx)
			}
		})
	}
	all.Wait()
	return s, errors.Join(append(errs, ctx.Err())...)
}

func (w *world) standOne(ctx context.Context) (*standingFlow, error) {
	conn, err := w.dial(ctx, false)
	if err != nil {
		return nil, err
	}
	var relay [1]byte
	if _, err = conn.Write([]byte{serviceEcho}); err == nil {
		_, err = io.ReadFull(conn, relay[:])
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("standing connection: %w", err)
	}
	return &standingFlow{conn: conn, local: conn.LocalAddr().String(), relay: relay[0]}, nil
}

// onBoth refuses an experiment in which a relay has none of them.
func (s *standing) onBoth() error {
	var on [3]int
	for _, f := range s.flows {
		on[f.relay]++
	}
	if on[1] == 0 || on[2] == 0 {
		return fmt.Errorf("of %d standing connections %d are on the first far relay and %d on the second", len(s.flows), on[1], on[2])
	}
	return nil
}

// begin has every connection send until end, which it returns.
func (s *standing) begin(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, f := range s.flows {
		wg.Go(func() {
			defer f.conn.Close()
			f.talk(ctx)
		})
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	return s.stop
}

// end waits for all. It may be called again.
func (s *standing) end() { s.stop() }

func (f *standingFlow) talk(ctx context.Context) {
	out, in := make([]byte, 500), make([]byte, 500)
	wait := time.Duration(rand.Int64N(int64(standingEvery))) // they do not speak all at once
	for ctx.Err() == nil {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = standingEvery
		for i := range out {
			out[i] = byte(rand.Uint32())
		}
		sent := time.Now()
		_ = f.conn.SetDeadline(sent.Add(patience))
		_, err := f.conn.Write(out)
		if err == nil {
			_, err = io.ReadFull(f.conn, in)
		}
		if err == nil && !bytes.Equal(in, out) {
			err = errors.New("received bytes differ from the sent ones")
		}
		if err != nil {
			f.ended, f.err = time.Now(), err
			return
		}
		f.longest = max(f.longest, time.Since(sent))
	}
}
