package pair_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

// meddler is somebody on the path who sees each frame of lanes in clear, and says what is sent in
// its place. lane is for what it remembers of one direction of a lane.
type meddler func(lane *tampered, frame wire.Frame, body []byte) []byte

// tampered is one direction of a lane.
type tampered struct {
	toFar bool
	data  int    // DATA frames so far
	at    uint64 // the position behind them
	quiet bool   // nothing more is passed on
}

// same passes a frame on.
func same(frame wire.Frame, body []byte) []byte {
	head := make([]byte, wire.HeadSize)
	frame.Put(head)
	return append(head, body...)
}

// before has the meddler work on what is written to w.
func (m meddler) before(h *hop, w io.Writer, toFar bool) io.Writer {
	return &meddled{meddle: m, w: w, lane: tampered{toFar: toFar}, prefaced: !toFar, sums: h.sums}
}

// meddled is a writer for one direction of a connection: a preface, records of TLS, then on a lane
// in clear frames.
type meddled struct {
	meddle   meddler
	w        io.Writer
	lane     tampered
	waiting  []byte
	prefaced bool
	sums     bool // of frames
	// alter gets what is sent: a preface, a record or a frame, of which so many bytes are its head.
	// Nil: nobody alters it.
	alter func(b []byte, head int)
}

func (m *meddled) Write(b []byte) (int, error) {
	m.waiting = append(m.waiting, b...)
	for {
		n, out, head := m.next()
		if n == 0 {
			return len(b), nil
		}
		if m.alter != nil {
			m.alter(out, head)
		}
		m.waiting = m.waiting[n:]
		if _, err := m.w.Write(out); err != nil {
			return 0, err
		}
	}
}

// next takes so many bytes of those that wait, in place of which others are sent. So many of these
// are a frame's head; 0: it is no frame.
func (m *meddled) next() (n int, out []byte, head int) {
	b := m.waiting
	const recordHead, lowestRecord = 5, 20
	head = wire.HeadSize
	if m.sums {
		head += wire.SumSize
	}
	switch {
	case !m.prefaced && len(b) >= preface.Size:
		m.prefaced = true
		return preface.Size, b[:preface.Size], 0
	case !m.prefaced || len(b) < recordHead:
		return 0, nil, 0
	case b[0] >= lowestRecord:
		if n = recordHead + int(binary.BigEndian.Uint16(b[3:])); n > len(b) {
			return 0, nil, 0
		}
		return n, b[:n], 0
	case len(b) < head:
		return 0, nil, 0
	}
	frame, err := wire.ParseFrame(b)
	if n = head + frame.Length; m.sums && frame.Length > 0 && !bulky(frame) {
		n += wire.SumSize
	}
	if err != nil || n > len(b) {
		return 0, nil, 0
	}
	body := b[head:][:frame.Length]
	if frame.Type == wire.FrameData {
		m.lane.data++
		m.lane.at = frame.Offset + uint64(len(body))
	}
	if m.lane.quiet {
		return n, nil, 0
	}
	if m.meddle == nil {
		return n, b[:n], n - unsummed(frame)
	}
	return n, m.framed(m.meddle(&m.lane, frame, body)), head
}

// bulky reports whether what follows a frame's head has no sum.
func bulky(f wire.Frame) bool { return f.Type == wire.FrameData || f.Type == wire.FramePad }

// framed gives frames the sums that they have on the lane: whoever changes them can.
func (m *meddled) framed(frames []byte) (out []byte) {
	if !m.sums {
		return frames
	}
	for len(frames) > 0 {
		frame, err := wire.ParseFrame(frames)
		n := wire.HeadSize + frame.Length
		switch {
		case err != nil:
			return append(out, frames...)
		case bulky(frame):
			out = append(append(out, wire.WithSums(frames[:wire.HeadSize])...), frames[wire.HeadSize:n]...)
		default:
			out = append(out, wire.WithSums(frames[:n])...)
		}
		frames = frames[n:]
	}
	return out
}

// forgeEnd is the frame that ends the target's stream early. Whoever has seen its bytes knows their sum.
func forgeEnd(length uint64) []byte {
	return wire.AppendEnd(nil, length, crc32.Checksum(pattern(int(length), 1), crc32.MakeTable(crc32.Castagnoli)))
}

// meddlers are attacks on the bytes that a target sends. None may make a part of them look whole.
var meddlers = map[string]meddler{
	"an end in the middle": func(l *tampered, f wire.Frame, body []byte) []byte {
		if l.toFar || f.Type != wire.FrameData || l.data < 3 {
			return same(f, body)
		}
		l.quiet = true
		return append(same(f, body), forgeEnd(l.at)...)
	},
	"an end in place of the last bytes": func(l *tampered, f wire.Frame, body []byte) []byte {
		if l.toFar || f.Type != wire.FrameData || l.data < 3 {
			return same(f, body)
		}
		l.quiet = true
		return forgeEnd(f.Offset)
	},
	"a cut": func(l *tampered, f wire.Frame, body []byte) []byte {
		if l.quiet = !l.toFar && l.data >= 3; l.quiet {
			return nil
		}
		return same(f, body)
	},
	"a hole": func(l *tampered, f wire.Frame, body []byte) []byte {
		if !l.toFar && f.Type == wire.FrameData && l.data == 3 {
			return nil
		}
		return same(f, body)
	},
	"a shorter frame": func(l *tampered, f wire.Frame, body []byte) []byte {
		if !l.toFar && f.Type == wire.FrameData && l.data == 3 && len(body) > 100 {
			f.Length -= 100
			return same(f, body[:f.Length])
		}
		return same(f, body)
	},
	"more bytes": func(l *tampered, f wire.Frame, body []byte) []byte {
		if !l.toFar && f.Type == wire.FrameData && l.data >= 3 {
			l.quiet = true
			more := wire.Frame{Type: wire.FrameData, Length: len(body), Offset: l.at}
			return append(same(f, body), same(more, body)...)
		}
		return same(f, body)
	},
	"padding in place of bytes": func(l *tampered, f wire.Frame, body []byte) []byte {
		if !l.toFar && f.Type == wire.FrameData && l.data >= 3 {
			f.Type, f.Flags = wire.FramePad, 0
		}
		return same(f, body)
	},
	"a release": func(l *tampered, f wire.Frame, body []byte) []byte {
		if l.toFar && f.Type == wire.FrameData {
			l.quiet = true
			return append(same(f, body), wire.AppendRelease(nil, wire.FlagFinal, 0)...)
		}
		return same(f, body)
	},
	"a flow that nobody has opened": func(l *tampered, f wire.Frame, body []byte) []byte {
		if l.toFar && f.Type == wire.FrameAttach && f.Flags == wire.FlagBegin {
			return wire.AppendBegin(nil, 1<<40)
		}
		return same(f, body)
	},
	"positions that are too high": func(l *tampered, f wire.Frame, body []byte) []byte {
		if l.toFar && f.Type == wire.FrameAttach && f.Flags == 0 {
			f.Offset += 1000
		}
		if !l.toFar && f.Type == wire.FrameData && l.data == 3 {
			return nil // so that there is an ATTACH
		}
		return same(f, body)
	},
}

// TestMeddlers holds that nobody on the path of lanes in clear makes a cut stream look whole: the
// client sees all bytes and the end, or a reset, and waits for neither for ever.
func TestMeddlers(t *testing.T) {
	t.Parallel()
	for name, meddle := range meddlers {
		inSealed(t, name, func(t *testing.T, s *stand) {
			s.path.meddle(meddle)
			want := pattern(4<<20, 1)
			s.serve(func(c *net.TCPConn) {
				_, _ = io.ReadFull(c, make([]byte, 5))
				_, _ = c.Write(want)
				_ = c.CloseWrite()
				_, _ = io.Copy(io.Discard, onlyReader{c})
			})
			s.awaitWarm(1)
			c := s.dial()
			defer c.Close()
			_, err := io.WriteString(c, "begin")
			nettest.Must(t, err)
			var received atomic.Int64
			got, err := readCounting(c, 64<<10, &received)
			switch {
			case err == nil && !bytes.Equal(got, want):
				t.Errorf("the client sees an end after %d bytes of %d", len(got), len(want))
			case err != nil && isTimeout(err):
				t.Errorf("the client waits after %d bytes: %s", len(got), s.dump())
			}
		})
	}
}

// inSealed runs a test in each mode whose lanes are in clear.
func inSealed(t *testing.T, name string, test func(*testing.T, *stand)) {
	for _, m := range modes {
		if !m.clear || m.lanes > 1 || m.older {
			continue
		}
		t.Run(m.name+"/"+name, func(t *testing.T) {
			t.Parallel()
			test(t, newStand(t, m.in(), compressNothing))
		})
	}
}

func compressNothing(_ *stand, o *pair.Options, l *pair.LinkOptions) {
	o.CompressAlways, l.Compress = false, false
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// meddle has somebody on the path work on connections.
func (p *path) meddle(m meddler) { p.pass(m) }

// pass has connections that come pass a box, and resets those that are there.
func (p *path) pass(b box) {
	p.mu.Lock()
	p.box = b
	p.mu.Unlock()
	p.cut(false)
}

// TestMeddlerOpensNothing holds that an OPEN on a lane in clear dials no target, and that one lane
// carries neither a beginning nor an end that is not forged.
func TestMeddlerOpensNothing(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		if !m.clear || m.older {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			seen := map[wire.FrameType]int{}
			forges := false
			s := newStand(t, m.in())
			s.path.meddle(func(l *tampered, f wire.Frame, body []byte) []byte {
				mu.Lock()
				defer mu.Unlock()
				seen[f.Type]++
				if forges && l.toFar && f.Type == wire.FrameData {
					forges = false
					forged := wire.Open{Flow: 1 << 40, Deadline: time.Second, Client: addrOf(s.clients), Listen: addrOf(s.clients)}
					return append(forged.Append(nil), same(f, body)...)
				}
				return same(f, body)
			})
			s.serve(echo)
			for range 3 {
				c := s.dial()
				s.roundTrip(c, "hello")
				nettest.Must(t, c.CloseWrite())
				_, err := io.ReadAll(c)
				nettest.Must(t, err)
				c.Close()
			}
			mu.Lock()
			if seen[wire.FrameOpen] > 0 || seen[wire.FrameEnd] > 0 || seen[wire.FrameData] == 0 {
				t.Errorf("frames on lanes in clear, by type: %v", seen)
			}
			forges = true
			mu.Unlock()
			c := s.dial()
			defer c.Close()
			_, err := io.WriteString(c, "hello")
			nettest.Must(t, err)
			_, _ = io.ReadFull(c, make([]byte, 5)) // the lane is closed: the flow goes on, or is reset
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.opens) != 4 {
				t.Errorf("%d flows are opened, want 4", len(s.opens))
			}
		})
	}
}

// TestEndAfterControl holds that an end waits for the next control connection, in each mode in
// clear, and that nothing is lost with the one before.
func TestEndAfterControl(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		if !m.clear || m.older {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, m.in())
			s.serve(echo)
			for range 10 {
				c := s.dial()
				s.roundTrip(c, "hello")
				s.path.refuse(preface.Control, false)
				nettest.Must(t, c.CloseWrite())
				if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
					t.Fatalf("%q, %v", b, err)
				}
				c.Close()
				s.ends("end")
			}
		})
	}
}

// TestMeddledRequest: a client sends a request and waits, and nobody ends. Its lane is lost on the
// way to the far relay at first; the request gets there by another one.
func TestMeddledRequest(t *testing.T) {
	t.Parallel()
	meddlers := map[string]func(l *tampered, f wire.Frame, body []byte) (out []byte, done bool){
		"the lane's beginning is dropped": func(l *tampered, f wire.Frame, body []byte) ([]byte, bool) {
			return nil, l.toFar && f.Type == wire.FrameAttach && f.Flags == wire.FlagBegin
		},
		"the lane is released": func(l *tampered, f wire.Frame, body []byte) ([]byte, bool) {
			return append(wire.AppendRelease(nil, wire.FlagFinal, 0), same(f, body)...), l.toFar && f.Type == wire.FrameData
		},
	}
	for name, meddle := range meddlers {
		inSealed(t, name, func(t *testing.T, s *stand) {
			var mu sync.Mutex
			over := false
			s.path.meddle(func(l *tampered, f wire.Frame, body []byte) []byte {
				mu.Lock()
				defer mu.Unlock()
				if out, done := meddle(l, f, body); done && !over {
					over = true
					return out
				}
				return same(f, body)
			})
			s.serve(func(c *net.TCPConn) {
				b := make([]byte, 5)
				if _, err := io.ReadFull(c, b); err == nil {
					_, _ = c.Write(b)
				}
				_, _ = io.Copy(io.Discard, onlyReader{c})
			})
			s.awaitWarm(1)
			c := s.dial()
			defer c.Close()
			nettest.Must(t, c.SetDeadline(time.Now().Add(patience)))
			_, err := io.WriteString(c, "hello")
			nettest.Must(t, err)
			if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
				t.Errorf("no answer: %v\n%s", err, s.dump())
			}
		})
	}
}

// unsummed is how many bytes behind a frame's head have no sum.
func unsummed(f wire.Frame) int {
	if bulky(f) {
		return f.Length
	}
	return 0
}
