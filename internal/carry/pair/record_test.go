package pair

import (
	"bytes"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

func compressing(_ *stand, _ *Options, l *LinkOptions) { l.Compress = true }

// full says all the time that the lanes of near flows are: on loopback the kernel does not.
func full(s *stand, _ *Options, _ *LinkOptions) {
	s.carried = func(f *Flow) {
		s.tasks.Go(func() {
			for !f.over.Load() {
				if p := f.policy.Load(); p != nil {
					p.Full()
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// logLines is text that shrinks, no two lines alike.
func logLines(n int) []byte {
	var b []byte
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, "2026-01-02T03:04:%02d.%03dZ relay[%d]: flow %d: %d bytes up\n", i/1000%60, i%1000, i%7, i*i%10007, i*7919%100003)
	}
	return b[:n]
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = mathrand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// sendThroughEcho sends data through an echo on a slow path, and returns the near session's state.
func (s *stand) sendThroughEcho(data []byte) flow.Session {
	s.t.Helper()
	s.path.setPace(time.Millisecond)
	s.serve(echo)
	c := s.dial()
	defer c.Close()
	s.tasks.Go(func() {
		if _, err := c.Write(data); err != nil {
			s.t.Error(err)
		}
		_ = c.CloseWrite()
	})
	var received atomic.Int64
	got, err := readCounting(c, 256<<10, &received)
	nettest.Must(s.t, err)
	checkEqual(s.t, got, data)
	c.Close()
	s.ends(flow.EndClean)
	return s.near.State().Sessions[0]
}

// TestCompress holds that text becomes smaller while lanes are full, and that random bytes
// are left as they are.
func TestCompress(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]standOption{
		"tls": compressing,
		"clear, lanes": func(s *stand, o *Options, l *LinkOptions) {
			compressing(s, o, l)
			mode{clear: true, compress: true}.in()(s, o, l)
			striped(3)(s, o, l)
			o.CompressAlways = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := newStand(t, in, full).sendThroughEcho(logLines(16 << 20))
			if got.Compress != flow.CompressAuto || got.CompressedBytes == 0 || got.CompressedToBytes > got.CompressedBytes/2 {
				t.Errorf("text: %+v", got)
			}
		})
	}
	t.Run("noise", func(t *testing.T) {
		t.Parallel()
		if got := newStand(t, compressing, full).sendThroughEcho(noise(8 << 20)); got.CompressedBytes > 0 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		if got := newStand(t, full).sendThroughEcho(logLines(8 << 20)); got.Compress != flow.CompressOff || got.CompressedBytes > 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestCompressChanges turns compression on while a flow stands: a session of its own begins.
func TestCompressChanges(t *testing.T) {
	t.Parallel()
	var options LinkOptions
	s := newStand(t, func(_ *stand, _ *Options, l *LinkOptions) { options = *l })
	s.serve(echo)
	c := s.dial()
	defer c.Close()
	s.roundTrip(c, "before")
	options.Compress = true
	s.link.Update(options)
	fresh := s.dial()
	defer fresh.Close()
	s.roundTrip(fresh, "compressed")
	s.roundTrip(c, "goes on")
	nettest.Eventually(t, 20*time.Second, func() bool {
		now := s.near.State().Sessions
		return len(now) == 2 && now[0].Compress == flow.CompressOff && now[1].Compress == flow.CompressAuto
	}, s.dump)
}

// laneOf makes a lane that reads what the other connection writes.
func laneOf(t *testing.T, compress bool) (*lane, *net.TCPConn) {
	t.Helper()
	out, in := tcpPair(t)
	bulk, err := newBulkConn(in)
	nettest.Must(t, err)
	bulk.goClear()
	s := &session{node: &Node{}, mode: mode{clear: true, compress: compress}}
	s.compresses.Store(compress)
	return newLane(s, &connection{bulk: bulk, stream: bulk}, nil), out
}

// TestMalformedRecords holds that a lane is closed by a compressed record that cannot be read,
// and by one that this end did not ask for. Its flow then goes on over another lane, as after any loss.
func TestMalformedRecords(t *testing.T) {
	t.Parallel()
	frame := func(record []byte) []byte {
		b := make([]byte, wire.HeadSize)
		wire.Frame{Type: wire.FrameData, Flags: wire.FlagCompressed, Length: len(record)}.Put(b)
		return append(b, record...)
	}
	good := compress.Append(nil, logLines(100000))
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 0xff
	for name, c := range map[string]struct {
		frame []byte
		on    bool
		ok    bool
	}{
		"a record":    {frame(good), true, true},
		"unasked":     {frame(good), false, false},
		"of noise":    {frame(noise(5000)), true, false},
		"altered":     {frame(append(bad, 0)), true, false},
		"too short":   {frame(good[:compress.MinRecord-1]), true, false},
		"too long":    {frame(make([]byte, compress.MaxRecord+1)), true, false},
		"of no bytes": {frame(make([]byte, 100)), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, out := laneOf(t, c.on)
			_, err := out.Write(c.frame)
			nettest.Must(t, err)
			nettest.Must(t, out.CloseWrite())
			if err := l.read(); err == io.EOF != c.ok {
				t.Errorf("the lane ends by %v", err)
			}
		})
	}
}
