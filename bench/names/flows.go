package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit"
	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab"
	"longhaul/lab/wan"
)

// kind is how a flow ends. Its client sends it to the target.
type kind byte

const (
	ends         kind = 'E' // at both ends
	targetResets kind = 'T' // once it has the token
	clientResets kind = 'C' // once the target has the token
	refused      kind = 'R' // by the target
	cut          kind = 'W' // with a WAN
)

// kinds are those of a crowd, in turn.
var kinds = [...]kind{ends, ends, clientResets, ends, targetResets, ends, ends, refused, ends, ends}

// token tells flows apart at both ends.
type token [16]byte

// client is a flow as its client knows it.
type client struct {
	token    token
	kind     kind
	address  netip.AddrPort // that relays and target are to see
	id       []byte         // that it gives as a proxy; nil: it is none
	mayBreak bool           // a WAN is away meanwhile
	broken   error          // it did not end as its kind does

	conn *net.TCPConn
}

// target notes tokens.
type target struct {
	mu   sync.Mutex
	seen map[token][]sight
}

// sight is what the PROXY header of the last relay says of a flow.
type sight struct {
	client netip.AddrPort
	name   flow.Name
}

// serve notes a flow's token, answers, and waits for the client's end.
func (t *target) serve(conn net.Conn) {
	s, err := readHeader(conn)
	if err != nil {
		return
	}
	var ask [len(token{}) + 1]byte
	if _, err := io.ReadFull(conn, ask[:]); err != nil {
		return
	}
	t.mu.Lock()
	id := token(ask[:len(token{})])
	t.seen[id] = append(t.seen[id], s)
	t.mu.Unlock()
	if kind(ask[len(token{})]) == targetResets {
		_ = conn.(*net.TCPConn).SetLinger(0)
		return
	}
	if _, err := conn.Write(ask[len(token{}):]); err == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
}

// readHeader reads a PROXY header of version 2.
func readHeader(conn io.Reader) (s sight, err error) {
	const fixed, length = 16, 14
	b := make([]byte, fixed, 256)
	if _, err := io.ReadFull(conn, b); err != nil {
		return s, err
	}
	b = append(b, make([]byte, binary.BigEndian.Uint16(b[length:]))...)
	if _, err := io.ReadFull(conn, b[fixed:]); err != nil {
		return s, err
	}
	h, _, err := proxyproto.Parse(b)
	return sight{h.Source, flow.NameOf(proxyproto.Extension(b, proxyproto.UniqueID))}, err
}

// firstPort is the client's first port.
const firstPort = 10_000

// newClient is a further client, with a port of its own.
func (w *world) newClient(k kind, id []byte) *client {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &client{kind: k, id: id, address: netip.AddrPortFrom(lab.HostA, uint16(firstPort+len(w.clients)))}
	binary.BigEndian.PutUint64(c.token[:], w.dice.Uint64())
	binary.BigEndian.PutUint64(c.token[8:], w.dice.Uint64())
	w.clients = append(w.clients, c)
	return c
}

// open connects a client and has the target note its token. The error is that of the connect, which
// nothing may break.
func (w *world) open(ctx context.Context, k kind, id []byte) (c *client, err error) {
	c = w.newClient(k, id)
	to := w.to
	if k == refused {
		to = netip.AddrPortFrom(to.Addr(), to.Port()+refuses)
	}
	err = w.Host("host-a").Do(func() error {
		d := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(c.address)}
		d.SetMultipathTCP(false)
		conn, err := d.DialContext(ctx, "tcp", to.String())
		if err == nil {
			c.conn = conn.(*net.TCPConn)
		}
		return err
	})
	answers := k != refused && k != targetResets
	switch {
	case errors.Is(err, unix.ECONNRESET): // before the program has looked at its connection
		if answers {
			c.broken = err
		}
		return c, nil
	case err != nil:
		return nil, err
	}
	var hello []byte
	if id != nil {
		// As a proxy, whose clients are elsewhere.
		c.address = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), c.address.Port())
		hello = proxyproto.AppendHeader(nil, 2, proxyproto.Header{Source: c.address, Destination: to})
		hello = proxyproto.AppendExtension(hello, proxyproto.UniqueID, id)
	}
	hello = append(append(hello, c.token[:]...), byte(k))
	err = c.conn.SetDeadline(time.Now().Add(2 * patience))
	if err == nil {
		_, err = c.conn.Write(hello)
	}
	if err == nil {
		_, err = io.ReadFull(c.conn, make([]byte, 1))
	}
	switch {
	case answers || errors.Is(err, os.ErrDeadlineExceeded):
		c.broken = err
	case err == nil:
		c.broken = errors.New("a target that refuses or resets has answered")
	}
	return c, nil
}

// end ends a flow as its kind does.
func (c *client) end() {
	if c.conn == nil {
		return
	}
	defer c.conn.Close()
	switch {
	case c.broken != nil:
	case c.kind == clientResets:
		_ = c.conn.SetLinger(0)
	case c.kind == ends:
		err := c.conn.CloseWrite()
		if err == nil {
			_, err = io.Copy(io.Discard, c.conn)
		}
		c.broken = err
	case c.kind == cut:
		if _, err := io.Copy(io.Discard, c.conn); errors.Is(err, os.ErrDeadlineExceeded) {
			c.broken = err
		}
	}
}

// atOnce is how many flows a crowd has at a time.
const atOnce = 64

// crowd runs n flows.
func (w *world) crowd(ctx context.Context, n int, mayBreak bool) error {
	var next atomic.Int64
	return each(min(n, atOnce), func(int) error {
		for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = next.Add(1) - 1 {
			c, err := w.open(ctx, kinds[i%int64(len(kinds))], nil)
			if err != nil {
				return err
			}
			c.mayBreak = mayBreak
			c.end()
		}
		return ctx.Err()
	})
}

// each calls a function n times, all at once.
func each(n int, do func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// stand opens n flows of some kinds in turn, which the caller ends.
func (w *world) stand(ctx context.Context, n int, of ...kind) (all []*client, err error) {
	all = make([]*client, n)
	err = each(n, func(i int) (err error) {
		all[i], err = w.open(ctx, of[i%len(of)], nil)
		return err
	})
	return all, err
}

// throughUpgrades upgrades all relays in turn while some flows stand and n begin and end.
func (w *world) throughUpgrades(ctx context.Context, n, standing int) error {
	all, err := w.stand(ctx, standing, ends, clientResets)
	if err != nil {
		return err
	}
	crowd := make(chan error, 1)
	go func() { crowd <- w.crowd(ctx, n, false) }()
	for _, s := range w.line {
		u, upgradeErr := s.Upgrade(ctx)
		w.upgraded += u.FlowsLeft
		err = errors.Join(err, upgradeErr)
	}
	for _, c := range all {
		c.end()
	}
	return errors.Join(err, <-crowd)
}

// throughOutages cuts each WAN for longer than flows outlive, while some flows stand and others begin.
func (w *world) throughOutages(ctx context.Context, standing int) error {
	for i := range w.paths {
		all, err := w.stand(ctx, standing, cut)
		if err != nil {
			return err
		}
		if err := w.cut(&w.paths[i], true); err != nil {
			return err
		}
		late := make(chan error, 1)
		go func() { late <- w.crowd(ctx, standing, true) }()
		for _, c := range all {
			c.mayBreak = true
			c.end()
		}
		if err := errors.Join(w.cut(&w.paths[i], false), <-late); err != nil {
			return err
		}
	}
	return nil
}

// cut cuts a WAN, or mends it. Without pairs nothing ends flows in an outage: their connections are
// reset instead.
func (w *world) cut(p *wan.Path, down bool) error {
	if w.way != wayUnpaired {
		return p.Cut(down, wan.BothWays...)
	}
	if !down {
		return nil
	}
	all, err := p.Connections(func(*tcpinfo.Connection) bool { return true })
	for i, c := range all {
		err = errors.Join(err, p.Reset(c, i%2 == 0))
	}
	return err
}

// Of forged identifiers.
const forgersAtOnce = 16

// forged has two clients at a time give the same identifier.
func forged(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	w, err := newWorld(ctx, o, way, lab.HostA.String(), o.SeedOf(run))
	if err != nil {
		return err
	}
	defer w.Close()
	twins := kit.Pick(o, 1000, 100)
	if o.Flows > 0 {
		twins = max(o.Flows/2, 1)
	}
	var next atomic.Int64
	var mu sync.Mutex
	var all [][2]*client
	err = each(forgersAtOnce, func(int) error {
		for i := next.Add(1) - 1; i < int64(twins) && ctx.Err() == nil; i = next.Add(1) - 1 {
			id := w.identifier(int(i))
			var both [2]*client
			err := each(len(both), func(k int) (err error) {
				both[k], err = w.open(ctx, ends, id)
				return err
			})
			if err != nil {
				return err
			}
			for _, c := range both {
				c.end()
			}
			mu.Lock()
			all = append(all, both)
			mu.Unlock()
		}
		return ctx.Err()
	})
	if err != nil {
		return w.errorf("%w", err)
	}
	return w.note(ctx, all, note)
}

// identifier is a random one: a UUID's text, its bytes, a short text, or the longest one.
func (w *world) identifier(i int) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Appendf(nil, "%0128x", w.dice.Uint64())
	switch i % 4 {
	case 0:
		return []byte(flow.NewName().String())
	case 1:
		return binary.BigEndian.AppendUint64(nil, w.dice.Uint64())
	case 2:
		name := flow.NewName()
		return name[:]
	}
	return text
}
