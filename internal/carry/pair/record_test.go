package pair_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	mathrand "math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/hostile"
	"longhaul/test/nettest"
)

func compressing(_ *stand, _ *pair.Options, l *pair.LinkOptions) { l.Compress = true }

// full has lanes wait for room: the kernel keeps little that has not gone out.
func full(_ *stand, _ *pair.Options, l *pair.LinkOptions) {
	l.Established = func(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 16<<10) }
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
		"clear, lanes": func(s *stand, o *pair.Options, l *pair.LinkOptions) {
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
	var options pair.LinkOptions
	s := newStand(t, func(_ *stand, _ *pair.Options, l *pair.LinkOptions) { options = *l })
	c := s.begin("before")
	options.Compress = true
	s.link.Update(options)
	fresh := s.dial()
	defer fresh.Close()
	s.roundTrip(fresh, "compressed")
	s.roundTrip(c, "goes on")
	nettest.Eventually(t, patience, func() bool {
		now := s.near.State().Sessions
		return len(now) == 2 && now[0].Compress == flow.CompressOff && now[1].Compress == flow.CompressAuto
	}, s.dump)
}

// TestMalformedRecords holds that a lane is closed by a compressed record that cannot be read,
// and by one in a session that has none.
func TestMalformedRecords(t *testing.T) {
	t.Parallel()
	frame := func(record []byte) []byte {
		b := make([]byte, wire.HeadSize)
		wire.Frame{Type: wire.FrameData, Flags: wire.FlagCompressed, Length: len(record)}.Put(b)
		return append(b, record...)
	}
	const plain = 60000
	good := compress.Append(nil, logLines(plain))
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
			s := newStand(t)
			got := make(chan int, 1)
			s.serve(func(c *net.TCPConn) {
				n, _ := io.Copy(io.Discard, onlyReader{c})
				got <- int(n)
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			peer := s.hostilePeer()
			hello := peer.Hello()
			if !c.on {
				hello.Features &^= wire.FeatureCompress
			}
			session, err := peer.Begin(ctx, hello, hostile.Dialing{})
			nettest.Must(t, err)
			defer session.Control.Close()
			session.Control.Answer()
			lane, err := session.Lane(ctx, hostile.Dialing{})
			nettest.Must(t, err)
			defer lane.Close()
			nettest.Must(t, lane.Open(session.NextOpen(), nil))
			_, err = lane.Write(c.frame)
			if !c.ok { // it may be closed before all of it has gone
				if _, err := io.Copy(io.Discard, onlyReader{lane}); ctx.Err() != nil {
					t.Errorf("the lane stays: %v", err)
				}
				return
			}
			nettest.Must(t, err)
			_, err = lane.Write(wire.AppendEnd(nil, plain, crc32.Checksum(logLines(plain), crc32.MakeTable(crc32.Castagnoli))))
			nettest.Must(t, err)
			select {
			case n := <-got:
				if n != plain {
					t.Errorf("the target got %d bytes, want %d", n, plain)
				}
			case <-ctx.Done():
				t.Errorf("the target got no end: %s", s.dump())
			}
		})
	}
}
