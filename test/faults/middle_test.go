package faults

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"longhaul/internal/carry/pair/preface"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// middle is a box on the path between two paired relays that breaks connections,
// or alters what they carry. To TCP it is the far relay.
type middle struct {
	t      *testing.T
	listen string
	to     string

	mu      sync.Mutex
	through map[*through]bool
	flights [][]byte // the preface of every connection, and what came in the same segment
	alters  int      // bytes still to alter, of lanes
	// altersAny is how many reads are still to be altered, of any connection.
	altersAny int
	refuses   bool   // resets every new connection
	marker    string // a text of flows
	saw       bool   // marker passed on a lane
}

// through is one connection through the box.
type through struct {
	kind      preface.Kind
	near, far net.Conn
}

// prefaceKindAt is where a preface has its kind.
const prefaceKindAt = 9

func newMiddle(t *testing.T, host, to string) *middle {
	t.Helper()
	m := &middle{t: t, to: to, through: map[*through]bool{}}
	l, err := tcpscript.ListenOn(nettest.FreeAddress(t, host))(t.Context())
	nettest.Must(t, err)
	m.listen = l.Addr().String()
	t.Cleanup(tcpserver.Serve(l, m.serve))
	return m
}

func (m *middle) serve(near net.Conn) {
	first := make([]byte, 64<<10)
	n, err := io.ReadAtLeast(near, first, preface.Size)
	if err != nil {
		return
	}
	m.mu.Lock()
	m.flights = append(m.flights, append([]byte(nil), first[:n]...))
	refuses := m.refuses
	kind := preface.Kind(first[prefaceKindAt])
	m.alterAny(first[:n])
	m.mu.Unlock()
	if refuses {
		reset(near)
		return
	}
	far, err := tcpscript.DialTo(m.to)(m.t.Context())
	if err != nil {
		reset(near)
		return
	}
	c := &through{kind, near, far}
	m.mu.Lock()
	if m.refuses { // since a moment ago: nobody else would reset this one
		m.mu.Unlock()
		reset(near)
		reset(far)
		return
	}
	m.through[c] = true
	m.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := far.Write(first[:n]); err == nil {
			m.pass(c, far, near)
		}
	})
	both.Go(func() { m.pass(c, near, far) })
	both.Wait()
	m.mu.Lock()
	delete(m.through, c)
	m.mu.Unlock()
	far.Close()
}

// pass copies one direction and its end.
func (m *middle) pass(c *through, to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			m.look(c, buf[:n])
			m.alter(c, buf[:n])
			if _, err := to.Write(buf[:n]); err != nil {
				reset(from)
				return
			}
		}
		if err == io.EOF {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
		if err != nil {
			reset(to)
			return
		}
	}
}

// look notes whether a lane's bytes have the marker.
func (m *middle) look(c *through, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saw = m.saw || m.marker != "" && c.kind == preface.Lane && bytes.Contains(b, []byte(m.marker))
}

// alter flips bits of a lane's bytes, as long as some are to be altered.
func (m *middle) alter(c *through, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alterAny(b)
	if m.alters > 0 && c.kind == preface.Lane && len(b) > 1000 { // records of data
		m.alters--
		b[len(b)/2] ^= 0x10
	}
}

// alterAny flips a bit, as long as some reads are to be altered; not of all reads, so that
// some connections get far. The caller holds the mutex.
func (m *middle) alterAny(b []byte) {
	if m.altersAny > 0 && rand.IntN(3) == 0 {
		m.altersAny--
		b[rand.IntN(len(b))] ^= 1 << rand.IntN(8)
	}
}

// reset resets the connections of a kind at both ends, and returns their number.
func (m *middle) reset(kind preface.Kind) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.through {
		if c.kind == kind {
			reset(c.near)
			reset(c.far)
			n++
		}
	}
	return n
}

func (m *middle) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}
