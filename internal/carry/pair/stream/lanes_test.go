package stream

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// frame is DATA or END on its way.
type frame struct {
	offset uint64
	bytes  []byte
	end    bool
	crc    uint32
}

// race is one direction of a flow over several lanes, which a fuzzer drives.
type race struct {
	t        *testing.T
	from, to *Flow
	lanes    [4]Lane
	queues   [4][]frame
	read     []byte
	got      []byte
	ended    bool
}

func newRace(t *testing.T, spill int) *race {
	r := &race{t: t, from: New(noBudget{}, 1<<20), to: New(&limited{left: spill}, 1<<20)}
	r.to.In.Merge()
	_ = r.from.Attach(0)
	return r
}

func (r *race) send(k, bytes int) bool {
	it, ok := r.from.Out.Next(&r.lanes[k], bytes)
	if ok {
		r.queues[k] = append(r.queues[k], frame{it.Offset, slices.Clone(it.Bytes), it.End, it.CRC})
		r.from.Out.Sent(it)
	}
	return ok
}

// lose loses what is on a lane but for the first frames, which arrive before the loss.
func (r *race) lose(k, first int) {
	for range first {
		r.arrive(k)
	}
	r.queues[k] = nil
	r.from.Out.Lost(&r.lanes[k])
}

// arrive takes the next frame of a lane, and reports whether it could be taken.
func (r *race) arrive(k int) bool {
	if len(r.queues[k]) == 0 {
		return false
	}
	f := r.queues[k][0]
	switch {
	case f.end:
		r.must(r.to.In.End(f.offset, f.crc))
	case r.to.In.IsEarly(f.offset):
		for n := 0; n < len(f.bytes); {
			e, skip, err := r.to.Early(f.offset+uint64(n), len(f.bytes)-n)
			r.must(err)
			if skip {
				break
			}
			if e == nil { // the rest waits
				r.queues[k][0].offset += uint64(n)
				r.queues[k][0].bytes = f.bytes[n:]
				return n > 0
			}
			m := copy(e.Space(), f.bytes[n:])
			r.to.Spilled(e, m)
			n += m
		}
	default:
		b, err := r.to.In.Data(f.offset, f.bytes)
		r.must(err)
		r.write(b)
	}
	r.queues[k] = r.queues[k][1:]
	for b, e := r.to.Turn(); e != nil; b, e = r.to.Turn() {
		r.write(b[:(len(b)+1)/2]) // the socket takes a part
		r.to.Turned(e)
	}
	pass, err := r.to.In.EndDue()
	r.must(err)
	if pass {
		r.ended = true
		r.to.EndPassed()
	}
	return true
}

func (r *race) write(b []byte) {
	if !bytes.HasPrefix(r.read[len(r.got):], b) {
		r.t.Fatalf("got other bytes at %d of %d", len(r.got), len(r.read))
	}
	r.got = append(r.got, b...)
	r.to.Wrote(b)
}

func (r *race) must(err error) {
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *race) ack() {
	if a, ok := r.to.TakeAck(); ok {
		r.must(r.from.Ack(a.Received, a.End))
	}
	r.must(r.from.Held(r.to.TakeHeld()))
	r.from.Out.Trim()
}

// finish lets everything arrive. Lanes that wait for memory are lost once nothing else moves.
func (r *race) finish() {
	r.from.Out.End()
	for round := 0; !r.from.Out.Done(); round++ {
		if round > 1e6 {
			r.t.Fatalf("no end: got %d of %d bytes; %+v", len(r.got), len(r.read), r.from.Out)
		}
		moved := false
		for k := range r.lanes {
			moved = r.send(k, 2000) || moved
			moved = r.arrive(k) || moved
		}
		r.ack()
		if moved {
			continue
		}
		for k := range r.lanes {
			moved = moved || len(r.queues[k]) > 0
			r.lose(k, 0)
		}
		if !moved {
			r.t.Fatalf("nothing moves: got %d of %d bytes; %+v", len(r.got), len(r.read), r.from.Out)
		}
	}
	if !r.ended || !bytes.Equal(r.got, r.read) {
		r.t.Fatalf("got %d of %d bytes, end %v", len(r.got), len(r.read), r.ended)
	}
	if n := r.to.In.Spilled(); n != 0 {
		r.t.Fatalf("%d bytes of memory are left", n)
	}
}

// FuzzLanes sends bytes over lanes that are late, lost and double, with more or less memory
// for what comes before its turn.
func FuzzLanes(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{0, 200, 8, 30, 9, 30, 17, 18, 16, 24, 8, 25, 40}, uint16(5000))
	f.Add([]byte{0, 255, 11, 40, 10, 40, 9, 40, 19, 18, 35, 17, 8, 10, 40, 16, 16}, uint16(60000))
	f.Fuzz(func(t *testing.T, orders []byte, spill uint16) {
		r := newRace(t, int(spill))
		for len(orders) >= 2 {
			order, n := orders[0], int(orders[1])
			k := int(order & 3)
			switch order >> 3 & 7 {
			case 0:
				b := r.from.Out.Space()
				for i := range min(n*16, len(b)) {
					b[i] = byte(len(r.read) * 7)
					r.read = append(r.read, b[i])
				}
				r.from.Out.Commit(min(n*16, len(b)))
			case 1, 2:
				r.send(k, n+1)
			case 3, 4:
				r.arrive(k)
			case 5:
				r.ack()
			case 6:
				r.lose(k, n%3)
			case 7:
				if len(r.queues[k]) > 0 { // twice, as an older release may send it
					r.queues[(k+1)%4] = append(r.queues[(k+1)%4], r.queues[k][0])
				}
			}
			orders = orders[2:]
		}
		r.finish()
	})
}

// TestEarly holds what becomes of bytes and ends that come before their turn.
func TestEarly(t *testing.T) {
	f := New(&limited{left: chunkSizes[0]}, 1)
	if f.In.IsEarly(4) {
		t.Error("early on one lane")
	}
	f.In.Merge()
	e, _, err := f.Early(4, 4)
	if e == nil || err != nil {
		t.Fatal(err)
	}
	f.Spilled(e, copy(e.Space(), "efgh"))
	if _, skip, _ := f.Early(5, 2); !skip {
		t.Error("bytes that are here are read again")
	}
	if e, _, _ := f.Early(20, 1); e != nil {
		t.Error("more memory than the limit")
	}
	if err := f.In.End(8, sum(0, []byte("abcdefgh"))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Early(6, 3); !errors.Is(err, ErrDamaged) {
		t.Errorf("bytes behind the end: %v", err)
	}
	if b, _ := f.Turn(); b != nil {
		t.Errorf("%q out of turn", b)
	}
	f.Wrote([]byte("abcd"))
	if pass, _ := f.In.EndDue(); pass {
		t.Error("the end before the bytes")
	}
	b, e := f.Turn()
	if string(b) != "efgh" {
		t.Fatalf("%q", b)
	}
	f.Wrote(b)
	f.Turned(e)
	if pass, err := f.In.EndDue(); !pass || err != nil {
		t.Errorf("end: %v, %v", pass, err)
	}
	if f.In.Spilled() != 0 {
		t.Error("memory is left")
	}
}

func TestSpans(t *testing.T) {
	var s spans
	for _, p := range []span{{10, 20}, {30, 40}, {0, 5}, {20, 25}, {26, 29}} {
		s = s.add(p)
	}
	if want := (spans{{0, 5}, {10, 25}, {26, 29}, {30, 40}}); !slices.Equal(s, want) {
		t.Errorf("%v, want %v", s, want)
	}
	if s, want := s.add(span{4, 27}), (spans{{0, 29}, {30, 40}}); !slices.Equal(s, want) {
		t.Errorf("%v, want %v", s, want)
	}
	if s, want := (spans{{0, 5}, {10, 25}, {26, 29}}).without(span{15, 27}), (spans{{0, 5}, {10, 15}, {27, 29}}); !slices.Equal(s, want) {
		t.Errorf("%v, want %v", s, want)
	}
	if s, want := (spans{{0, 29}, {30, 40}}).after(35), (spans{{35, 40}}); !slices.Equal(s, want) {
		t.Errorf("%v, want %v", s, want)
	}
}
