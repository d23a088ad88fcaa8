package pair

import (
	"bytes"
	"crypto/ed25519"
	"hash/crc32"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/descriptor"
	"longhaul/test/nettest"
)

// solo is a far flow whose lanes end in the test, and so does its own socket. Its goroutine waits
// until the end of the test, as if it had just found nothing to do.
type solo struct {
	t      *testing.T
	f      *Flow
	lanes  []*lane
	target *net.TCPConn
}

// newSolo makes a flow with n lanes that carry whatever the test has it take or send.
func newSolo(t *testing.T, node *Node, n int) *solo {
	s := newSession(&node.process, "near", 1, false)
	f := newFlow(s, 1, nil)
	f.phase, f.running = phaseOpen, true
	own, target := tcpPair(t)
	x := &solo{t: t, f: f, target: target}
	f.mu.Lock()
	defer f.mu.Unlock()
	fd, err := descriptor.Duplicate(own)
	nettest.Must(t, err)
	own.Close()
	nettest.Must(t, f.leg.take(fd))
	f.sf.In.Merge()
	node.flowsNow.Add(1)
	for range n {
		near, other := tcpPair(t)
		bulk, err := newBulkConn(near)
		nettest.Must(t, err)
		go func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{other}) }()
		l := newLane(&s.relation, s, &connection{bulk: bulk, stream: bulk}, nil)
		l.bind(f)
		x.lanes = append(x.lanes, l)
		f.lanes.add(l, nil, true)
	}
	nettest.Must(t, f.sf.Attach(0))
	t.Cleanup(func() {
		f.mu.Lock()
		f.running = false
		f.giveUp(stream.Cause{Code: 1})
		f.mu.Unlock()
		nettest.Eventually(t, time.Minute, f.over.Load, func() string { return "the flow does not end" })
		for _, l := range x.lanes {
			l.close()
		}
	})
	return x
}

// tcpPair are the two ends of a connection.
func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	nettest.Must(t, err)
	b, err = l.AcceptTCP()
	nettest.Must(t, err)
	t.Cleanup(func() { conn.Close(); b.Close() })
	return conn.(*net.TCPConn), b
}

func newNode(t *testing.T) *Node {
	n, err := New(Options{Identity: nobody{}})
	nettest.Must(t, err)
	t.Cleanup(n.Close)
	return n
}

// TestLaneLostInWrite holds that what waits behind a lane's bytes is delivered although the lane is
// lost while they are written.
func TestLaneLostInWrite(t *testing.T) {
	t.Parallel()
	x := newSolo(t, newNode(t), 2)
	f, first, second := x.f, x.lanes[0], x.lanes[1]
	f.mu.Lock()
	fd := f.leg.fd()
	f.mu.Unlock()
	// One write takes all, and so some time, in which the loop below sees it.
	nettest.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<20))
	go func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{x.target}) }()
	position := func() uint64 {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.sf.In.Position()
	}
	chunk := make([]byte, 1<<20)
	for lost := false; !lost; {
		at := position()
		behind := at + uint64(len(chunk))
		e, _ := f.early(second, behind, 1)
		e.Space()[0] = 'b'
		f.spilled(e, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			nettest.Must(t, f.deliver(first, at, chunk))
		}()
		for writes := true; writes && !lost; {
			select {
			case <-done:
				writes = false
			default:
			}
			f.mu.Lock()
			if lost = f.leg.busyOut && f.sf.In.Position() == at; lost {
				f.lanes.lose(first)
			}
			f.mu.Unlock()
		}
		<-done
		if pos := position(); pos < behind { // the socket took a part
			nettest.Must(t, f.deliver(second, pos, chunk[pos-at:]))
		}
		if pos := position(); pos != behind+1 {
			t.Fatalf("%d bytes of %d are delivered", pos-at, behind+1-at)
		}
	}
}

// TestAheadOfSpill holds that bytes that come ahead of a lane are followed by those that have come
// behind them already, with the end, although the flow's goroutine is busy elsewhere.
func TestAheadOfSpill(t *testing.T) {
	t.Parallel()
	x := newSolo(t, newNode(t), 2)
	f := x.f
	want := make([]byte, 3000)
	for i := range want {
		want[i] = byte(i)
	}
	e, _ := f.early(x.lanes[1], 1000, 2000)
	f.spilled(e, copy(e.Space(), want[1000:]))
	nettest.Must(t, f.deliverEnd(x.lanes[1], 3000, crc32.Checksum(want, crc32.MakeTable(crc32.Castagnoli))))
	f.mu.Lock()
	f.need.takeAhead(0, want[:1000])
	f.mu.Unlock()
	got, err := io.ReadAll(x.target)
	nettest.Must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes differ from the %d sent", len(got), len(want))
	}
}

// TestPauseIsIgnored holds that a flow uses all its lanes although an older near relay, which tries
// how many help, asks for a pause of the further ones.
func TestPauseIsIgnored(t *testing.T) {
	t.Parallel()
	x := newSolo(t, newNode(t), 2)
	f := x.f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.take(wire.Message{Type: wire.MessageLimited, Flags: 1, Flow: f.id})
	f.lanes.all[0].busy = true
	f.sf.Out.Keep([]byte("next"))
	if !f.lanes.mayTake(f.lanes.all[1]) {
		t.Error("the further lane pauses")
	}
}

// TestLastLaneStays holds that a lane that is to move stays if it is the only one left.
func TestLastLaneStays(t *testing.T) {
	t.Parallel()
	x := newSolo(t, newNode(t), 2)
	f := x.f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spread.want = 2
	f.spread.mix = &mix{moving: moving{lanes: x.lanes[1:], emptied: true, since: time.Now().Add(-time.Minute)}}
	f.lanes.all[1].leaving = true
	f.lanes.lose(x.lanes[0])
	f.spread.moveOver(time.Now())
	if len(f.lanes.all) != 1 || f.lanes.all[0].leaving || len(f.spread.mix.moving.lanes) > 0 {
		t.Errorf("%d lanes are left, %d are to move", len(f.lanes.all), len(f.spread.mix.moving.lanes))
	}
}

// nobody is an Identity that knows no peers.
type nobody struct{ Identity }

func (nobody) PublicKeys() []ed25519.PublicKey { return nil }
