package hostile

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Role is who attacks.
type Role string

// The roles.
const (
	NearPeer Role = "peer"     // has keys that a far relay knows
	Stranger Role = "stranger" // knows the far relay's public key
	FarPeer  Role = "far"      // has keys that a near relay knows
)

// Attack is one way to misuse a relay.
type Attack struct {
	Name string
	Role Role
	Does string
	run  func(ctx context.Context, a *Attacker) error
}

// Attacker is who runs an attack.
type Attacker struct {
	Peer    *Peer // of NearPeer and Stranger
	Far     *Far  // of FarPeer
	Seed    uint64
	Sources []netip.Addr // that a stranger comes from; none: the kernel chooses
	// Count bounds what the attack repeats; 0: the attack's own bound.
	Count int
}

// Sent is what the attacker has sent so far.
func (a *Attacker) Sent() Sent {
	if a.Far != nil {
		return a.Far.tally.sent()
	}
	return a.Peer.tally.sent()
}

// The bounds of attacks that ask for none.
const (
	manySessions = 10_000      // one after another
	manyMessages = 100_000_000 // of a flood
	holdAtOnce   = 4000        // connections at a time
)

func (a *Attacker) count(own int) int {
	if a.Count > 0 {
		return a.Count
	}
	return own
}

func (a *Attacker) source(i int) netip.Addr {
	if len(a.Sources) == 0 {
		return netip.Addr{}
	}
	return a.Sources[i%len(a.Sources)]
}

// Attacks are all attacks.
func Attacks() []Attack { return slices.Concat(peerAttacks, strangerAttacks, farAttacks) }

// Run attacks until the attack's bound is reached or ctx ends, and returns what was sent.
// That the relay resets the attacker is no error; that it never took a connection is one.
func (k Attack) Run(ctx context.Context, a *Attacker) (Sent, error) {
	err := k.run(ctx, a)
	sent := a.Sent()
	if sent.Connections == 0 {
		return sent, fmt.Errorf("%s: no connection: %w", k.Name, errors.Join(err, ctx.Err()))
	}
	return sent, nil
}

// pause is how long an attacker waits whose connection was refused.
const pause = 20 * time.Millisecond

// again calls do so many times, or until ctx ends. It returns the latest error.
func again(ctx context.Context, n int, do func(i int) error) (err error) {
	for i := 0; i < n && ctx.Err() == nil; i++ {
		if err = do(i); err != nil {
			wait(ctx, pause)
		}
	}
	return err
}

// wait waits so long, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// crowd holds connections, at most so many: the oldest gives way. Those that the relay ends
// leave.
type crowd struct {
	most int

	mu    sync.Mutex
	conns list.List // of *Conn, the oldest first
	gone  bool
}

func (c *crowd) add(conn *Conn) *list.Element {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns.Len() == c.most {
		c.remove(c.conns.Front())
	}
	return c.conns.PushBack(conn)
}

// watch adds a connection of which nothing is read but its end.
func (c *crowd) watch(conn *Conn) {
	at := c.add(conn)
	go func() {
		_ = discard(conn)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.gone {
			c.remove(at)
		}
	}()
}

// remove closes a connection. The caller holds mu.
func (c *crowd) remove(at *list.Element) {
	at.Value.(*Conn).Close() // an error: it is closed already
	c.conns.Remove(at)       // nothing, if it has left
}

// each calls do for each connection.
func (c *crowd) each(do func(*Conn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := c.conns.Front(); at != nil; at = at.Next() {
		do(at.Value.(*Conn))
	}
}

func (c *crowd) close() {
	c.each(func(conn *Conn) { conn.Close() })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
}
