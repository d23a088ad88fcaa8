package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"

	"longhaul/lab/hosts"
)

// middle is a TCP proxy that alters bytes.
type middle struct {
	alteration
	host     *hosts.Host
	to       string
	seed     uint64
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	open  []net.Conn
	ended bool
}

// startMiddle listens on a host and forwards to an address.
func startMiddle(ctx context.Context, host *hosts.Host, listen, to string, a alteration, seed uint64) (*middle, error) {
	m := &middle{alteration: a, host: host, to: to, seed: seed}
	err := host.Do(func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		m.listener, err = lc.Listen(ctx, "tcp4", listen)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.running.Go(func() { m.serve(ctx) })
	return m, nil
}

func (m *middle) close() {
	m.listener.Close()
	m.mu.Lock()
	m.ended = true
	for _, c := range m.open {
		c.Close()
	}
	m.mu.Unlock()
	m.running.Wait()
}

func (m *middle) keep(c net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open = append(m.open, c); m.ended {
		c.Close()
	}
}

func (m *middle) serve(ctx context.Context) {
	for {
		client, err := m.listener.Accept()
		if err != nil {
			return
		}
		m.keep(client)
		m.running.Go(func() {
			defer client.Close()
			var target net.Conn
			err := m.host.Do(func() (err error) {
				var d net.Dialer
				d.SetMultipathTCP(false)
				target, err = d.DialContext(ctx, "tcp4", m.to)
				return err
			})
			if err != nil {
				return
			}
			m.keep(target)
			defer target.Close()
			var both sync.WaitGroup
			both.Go(func() { m.carry(client, target, "up", m.seed) })
			m.carry(target, client, "down", m.seed+1)
			both.Wait()
		})
	}
}

// carry forwards one direction, and flips bits of it.
func (m *middle) carry(from, to net.Conn, direction string, seed uint64) {
	defer func() { _ = to.(*net.TCPConn).CloseWrite() }()
	dice := rand.New(rand.NewPCG(seed, 0))
	next := m.at
	if next < 0 {
		next = m.draw(dice)
	}
	b := make([]byte, 64<<10)
	for offset := int64(0); ; {
		n, err := from.Read(b)
		for m.direction == direction || m.direction == "both" {
			i := next - offset
			if i < 0 || i >= int64(n) {
				break
			}
			b[i] ^= 1 << dice.IntN(8)
			if m.at >= 0 {
				break
			}
			next += m.draw(dice)
		}
		offset += int64(n)
		if _, writeErr := to.Write(b[:n]); err != nil || writeErr != nil {
			if err != io.EOF {
				_ = to.(*net.TCPConn).SetLinger(0)
			}
			return
		}
	}
}

// draw returns the distance to the next altered byte.
func (m *middle) draw(dice *rand.Rand) int64 {
	return 1 + int64(dice.ExpFloat64()*float64(m.every))
}
