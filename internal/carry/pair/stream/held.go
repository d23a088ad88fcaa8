package stream

import (
	"math"
	"slices"
)

// While a lane repeats what was lost, the others bring bytes that come before their turn. The
// receiver says which ones it holds, and never drops them before they are delivered. So the
// sender frees their memory: each byte is kept at one end.

// MaxHeld bounds the spans of one report.
const MaxHeld = 32

// maxHeldSpans bounds the spans that a sender remembers. An honest receiver has few: its lanes
// fill spans of many kilobytes. What it holds beyond the bound this end keeps, and sends again
// after a loss.
const maxHeldSpans = 1024

// Span is the bytes of a stream from one offset to before another.
type Span = struct{ From, To uint64 }

// TakeHeld returns, once after each change, the spans that this end holds beyond its position;
// the first ones if they are many.
func (f *Flow) TakeHeld() []Span {
	n := f.HeldWaiting()
	f.In.unreported = 0
	if n == 0 || f.In.early == nil {
		return nil
	}
	var all spans
	for _, c := range f.In.early.chunks {
		from := max(c.start, f.In.pos)
		if k := len(all); k == MaxHeld && from > all[k-1].to {
			break
		}
		all = all.add(span{from, c.end()})
	}
	report := make([]Span, len(all))
	for i, p := range all {
		report[i] = Span{From: p.from, To: p.to}
	}
	return report
}

// HeldWaiting is the number of bytes beyond this end's position of which no report was taken.
func (f *Flow) HeldWaiting() int {
	if f.dead {
		return 0
	}
	return int(f.In.unreported)
}

// noteHeld notes that n bytes have come before their turn.
func (r *Receiver) noteHeld(n int) { r.unreported = int32(min(int(r.unreported)+n, math.MaxInt32)) }

// Held takes the other end's report of what it holds beyond its position.
func (f *Flow) Held(report []Span) error {
	s := &f.Out
	if s.noResume {
		return ErrDamaged
	}
	for _, p := range report {
		if p.From > p.To || p.To > s.sent {
			return ErrDamaged
		}
		s.hold(span{max(p.From, s.base), p.To})
	}
	return nil
}

// hold notes that the other end holds a span.
func (s *Sender) hold(p span) {
	if p.from >= p.to || s.dropped {
		return
	}
	if len(s.held()) >= maxHeldSpans && !s.held().touch(p) {
		return
	}
	s.setGaps(s.again(), s.held().add(p))
	s.heldNew = true
	switch {
	case !s.attached:
		s.restart()
		return
	case p.to > s.next: // lanes began anew since, and have not come to it
		s.setGaps(s.again().add(span{s.next, p.from}), s.held())
		s.next = p.to
	}
	s.setGaps(s.again().without(p), s.held())
}

// restart has everything sent again that the other end lacks.
func (s *Sender) restart() {
	s.next = s.base
	s.setGaps(nil, s.held())
	if n := len(s.held()); n > 0 {
		s.next = s.held()[n-1].to
		s.setGaps(slices.Collect(spans{{s.base, s.next}}.butNot(s.held())), s.held())
	}
}

// trimHeld frees chunks all of whose bytes the other end holds, but for the last one, which may
// grow.
func (s *store) trimHeld(held spans) {
	kept, i := s.chunks[:0], 0
	for k, c := range s.chunks {
		for i < len(held) && held[i].to < c.end() {
			i++
		}
		if k < len(s.chunks)-1 && i < len(held) && held[i].from <= c.start {
			s.size -= uint32(c.size())
			c.drop(s.budget())
			continue
		}
		kept = append(kept, c)
	}
	clear(s.chunks[len(kept):])
	s.chunks = kept
}

// endless is the reach of a sender that has no bound but its memory, and the highest bound, in bytes: the chunks of so
// many, of which the first and the last may be used in part, take less than 4 GiB.
const endless = math.MaxUint32 - 4*ChunkMax
