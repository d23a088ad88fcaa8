package stream

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// bytesOf are the offsets below n that spans have.
func bytesOf(s spans, n int) []bool {
	all := make([]bool, n)
	for _, p := range s {
		for at := p.from; at < p.to; at++ {
			all[at] = true
		}
	}
	return all
}

func drawSpans(r *rand.Rand, n uint64) (s spans) {
	for range r.IntN(6) {
		from := r.Uint64N(n)
		s = s.add(span{from, from + r.Uint64N(n-from+1)})
	}
	return s
}

// TestSpansAgainstSets holds the operations of spans against sets of single offsets.
func TestSpansAgainstSets(t *testing.T) {
	const n = 24
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		a, b := drawSpans(r, n), drawSpans(r, n)
		from := r.Uint64N(n)
		p := span{from, from + r.Uint64N(n-from+1)}
		want := bytesOf(a, n)
		before := slices.Clone(a)
		touches := p.from >= p.to || len(slices.Clone(a).add(p)) <= len(a)
		if got := p.from < p.to && !a.touch(p); got == touches {
			t.Fatalf("%v with %v: touch says %v", a, p, !got)
		}
		for at := range want {
			if a.has(uint64(at)) != want[at] {
				t.Fatalf("%v has %d: %v", a, at, !want[at])
			}
		}
		lacks := bytesOf(a, n)
		for at, has := range bytesOf(b, n) {
			lacks[at] = lacks[at] && !has
		}
		rest := spans(slices.Collect(a.butNot(b)))
		if diff := cmp.Diff(lacks, bytesOf(rest, n)); diff != "" || !slices.Equal(a, before) {
			t.Fatalf("%v minus %v is %v: %s", before, b, rest, diff)
		}
		for at := p.from; at < p.to; at++ {
			want[at] = false
		}
		less := slices.Clone(a).without(p)
		if diff := cmp.Diff(want, bytesOf(less, n)); diff != "" {
			t.Fatalf("%v without %v is %v: %s", a, p, less, diff)
		}
		for _, s := range []spans{rest, less} {
			for i, q := range s {
				if q.from >= q.to || i > 0 && q.from < s[i-1].to {
					t.Fatalf("%v is out of order", s)
				}
			}
		}
	}
}

// sending is a flow whose first n bytes went out on a lane.
func sending(n int) (*Flow, *Lane) {
	f, l := New(plenty{}, endless), new(Lane)
	f.Out.Keep(make([]byte, n))
	_ = f.Attach(0)
	for f.Out.Pending() {
		it, _ := f.Out.Next(l, ChunkMax)
		f.Out.Sent(it)
	}
	return f, l
}

// plenty is a budget without a bound.
type plenty struct{}

func (plenty) Take(int, int) bool { return true }
func (plenty) Give(int)           {}
func (plenty) Force(int)          {}

// TestManyHeld holds that reports of single bytes take bounded memory and little work, also
// when their lane is lost then.
func TestManyHeld(t *testing.T) {
	const n = 4 << 20
	f, l := sending(n)
	for at := uint64(1); at+2*MaxHeld < n; at += 2 * MaxHeld {
		var report []Span
		for i := range uint64(MaxHeld) {
			report = append(report, Span{From: at + 2*i, To: at + 2*i + 1})
		}
		if err := f.Held(report); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(f.Out.held()); got > maxHeldSpans {
		t.Errorf("%d spans are remembered", got)
	}
	f.Out.Lost(l)
	f.Detach()
	_ = f.Attach(0)
	if got := len(f.Out.again()); got > maxHeldSpans+1 {
		t.Errorf("%d parts are to be sent again", got)
	}
	// All that the other end does not hold for certain goes out again.
	sent := spans{}
	for other := new(Lane); f.Out.Pending(); {
		it, _ := f.Out.Next(other, ChunkMax)
		sent = sent.add(span{it.Offset, it.end()})
		f.Out.Sent(it)
	}
	if got, want := sent.size(), int64(n)-f.Out.held().size(); got != want {
		t.Errorf("%d bytes were sent again, want %d", got, want)
	}
}

// TestGaps holds what goes out again, and what is kept, after losses, reports and acknowledgements in
// each order, when the memory of what the other end has is free.
func TestGaps(t *testing.T) {
	const m = 1 << 20
	attach := func(received uint64) func(*Flow, *Lane) error {
		return func(f *Flow, _ *Lane) error { f.Detach(); return f.Attach(received) }
	}
	lose := func(f *Flow, l *Lane) error { f.Out.Lost(l); return nil }
	detach := func(f *Flow, _ *Lane) error { f.Detach(); return nil }
	ack := func(f *Flow, _ *Lane) error { return f.Ack(3*m, false) }
	hold := func(f *Flow, _ *Lane) error { return f.Held([]Span{{From: m, To: 2 * m}}) }
	for _, c := range []struct {
		name  string
		steps []func(*Flow, *Lane) error
		again spans
		kept  int64
	}{
		{"a loss", []func(*Flow, *Lane) error{lose}, spans{{0, 4 * m}}, 4 * m},
		{"a loss, then an ACK", []func(*Flow, *Lane) error{lose, ack}, spans{{3 * m, 4 * m}}, m},
		{"an ACK, then a loss", []func(*Flow, *Lane) error{ack, lose}, spans{{3 * m, 4 * m}}, m},
		{"a loss, then a report", []func(*Flow, *Lane) error{lose, hold}, spans{{0, m}, {2 * m, 4 * m}}, 3 * m},
		{"a report, then a loss", []func(*Flow, *Lane) error{hold, lose}, spans{{0, m}, {2 * m, 4 * m}}, 3 * m},
		{"a report, then another lane", []func(*Flow, *Lane) error{hold, attach(0)}, spans{{0, m}, {2 * m, 4 * m}}, 3 * m},
		{"a report without a lane", []func(*Flow, *Lane) error{detach, hold, attach(0)}, spans{{0, m}, {2 * m, 4 * m}}, 3 * m},
		{"a report on another lane", []func(*Flow, *Lane) error{attach(0), hold}, spans{{0, m}, {2 * m, 4 * m}}, 3 * m},
		{"a lane from within what is held", []func(*Flow, *Lane) error{hold, attach(m + m/2)}, spans{{2 * m, 4 * m}}, 2 * m},
		{"a lane from beyond what is held", []func(*Flow, *Lane) error{hold, attach(3 * m)}, spans{{3 * m, 4 * m}}, m},
		{"an ACK of what is held", []func(*Flow, *Lane) error{lose, hold, ack}, spans{{3 * m, 4 * m}}, m},
	} {
		f, l := sending(4 * m)
		for _, step := range c.steps {
			if err := step(f, l); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			f.Out.Trim()
		}
		if kept := f.Out.Kept(); kept != c.kept {
			t.Errorf("%s: %d bytes are kept, want %d", c.name, kept, c.kept)
		}
		sent := spans{}
		for other := new(Lane); f.Out.Pending(); {
			it, _ := f.Out.Next(other, ChunkMax)
			sent = sent.add(span{it.Offset, it.end()})
			f.Out.Sent(it)
		}
		if !slices.Equal(sent, c.again) {
			t.Errorf("%s: %v go out again, want %v", c.name, sent, c.again)
		}
		f.Finish()
	}
}

// TestManySpills holds that single bytes that come early take a bounded number of chunks.
func TestManySpills(t *testing.T) {
	f := New(plenty{}, endless)
	f.In.Merge()
	for at := uint64(1); at < 40_000; at += 2 {
		e, _, err := f.Early(at, 1)
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			continue
		}
		f.Spilled(e, copy(e.Space(), "x"))
	}
	if got := len(f.In.early.chunks); got != maxSpillChunks {
		t.Errorf("%d chunks", got)
	}
	f.Finish()
}

// TestLongFastPath holds that a flow keeps as much at both ends as its limit and the budget allow: here
// the bytes of 25 Gb/s and a round trip of 1 s. Nobody writes to the memory, so it takes none.
func TestLongFastPath(t *testing.T) {
	const n = 3 << 30
	f := New(plenty{}, n)
	defer f.Finish()
	f.NoResume() // makes no sums
	_ = f.Attach(0)
	l, sent := new(Lane), 0
	for b := f.Out.Space(); b != nil; b = f.Out.Space() {
		f.Out.Commit(len(b))
		it, ok := f.Out.Next(l, len(b))
		if !ok || it.Offset != uint64(sent) {
			t.Fatalf("after %d bytes: %v, %d", sent, ok, it.Offset)
		}
		f.Out.Sent(it)
		sent += len(b)
	}
	if sent != n || f.Out.Kept() != n || !f.Out.Starved() || f.Out.Short() {
		t.Errorf("%d bytes are kept of %d", f.Out.Kept(), sent)
	}
	if err := f.Ack(n, false); err != nil {
		t.Fatal(err)
	}
	if f.Out.Trim(); f.Out.Kept() != 0 || len(f.Out.store.chunks) > 1 {
		t.Errorf("%d bytes are kept of none", f.Out.Kept())
	}
	f.In.Merge()
	for at := uint64(1); at < n; {
		e, _, err := f.Early(at, ChunkMax)
		if e == nil || err != nil {
			t.Fatalf("no memory for early bytes at %d: %v", at, err)
		}
		took := len(e.Space())
		f.Spilled(e, took)
		at += uint64(took)
	}
	if f.In.Spilled() < n-1 {
		t.Errorf("%d early bytes are here", f.In.Spilled())
	}
}

// TestShort holds that a sender says when memory of the budget alone lacks.
func TestShort(t *testing.T) {
	f := New(&limited{left: 2 * chunkSizes[0]}, 1<<20)
	_ = f.Attach(0)
	for b := f.Out.Space(); b != nil; b = f.Out.Space() {
		f.Out.Commit(len(b))
	}
	if f.Out.Short() {
		t.Error("memory is short, though something is to be sent")
	}
	l := new(Lane)
	for f.Out.Pending() {
		it, _ := f.Out.Next(l, ChunkMax)
		f.Out.Sent(it)
	}
	if !f.Out.Short() {
		t.Error("memory is not short")
	}
	_ = f.Ack(f.Out.Length(), false)
	if f.Out.Trim(); f.Out.Space() == nil || f.Out.Short() {
		t.Error("memory is short, though all is free")
	}
}
