package stream

import (
	"cmp"
	"iter"
	"slices"
)

// span is the bytes of a stream from one offset to before another.
type span struct{ from, to uint64 }

// spans are ascending, and each begins behind the end of the one before it.
type spans []span

// add adds a span, which may overlap others.
func (s spans) add(p span) spans {
	if p.from >= p.to {
		return s
	}
	i, _ := slices.BinarySearchFunc(s, p.from, func(q span, from uint64) int { return cmp.Compare(q.to, from) })
	k := i
	for ; k < len(s) && s[k].from <= p.to; k++ {
		p.from, p.to = min(p.from, s[k].from), max(p.to, s[k].to)
	}
	return slices.Replace(s, i, k, p)
}

// touch reports whether adding p makes no further span.
func (s spans) touch(p span) bool {
	i := s.endingAfter(p.from)
	return i > 0 && s[i-1].to == p.from || i < len(s) && s[i].from <= p.to
}

// after drops what is before an offset.
func (s spans) after(base uint64) spans {
	n := 0
	for n < len(s) && s[n].to <= base {
		n++
	}
	if s = slices.Delete(s, 0, n); len(s) == 0 {
		return nil
	}
	s[0].from = max(s[0].from, base)
	return s
}

func (s spans) has(offset uint64) bool {
	i := s.endingAfter(offset)
	return i < len(s) && s[i].from <= offset
}

// endingAfter is the index of the first span that ends behind an offset; len(s): none does.
func (s spans) endingAfter(offset uint64) int {
	i, _ := slices.BinarySearchFunc(s, offset, func(p span, at uint64) int {
		if p.to <= at {
			return -1
		}
		return 1
	})
	return i
}

// size is the number of bytes.
func (s spans) size() (n int64) {
	for _, p := range s {
		n += int64(p.to - p.from)
	}
	return n
}

// without takes a span out.
func (s spans) without(p span) spans {
	if p.from >= p.to {
		return s
	}
	i := s.endingAfter(p.from)
	k := i
	var rest [2]span // of the spans that overlap p
	n := 0
	for ; k < len(s) && s[k].from < p.to; k++ {
		if q := s[k]; q.from < p.from {
			rest[n] = span{q.from, p.from}
			n++
		}
		if q := s[k]; q.to > p.to {
			rest[n] = span{p.to, q.to}
			n++
		}
	}
	if k == i {
		return s
	}
	return slices.Replace(s, i, k, rest[:n]...)
}

// butNot yields, in their order, the parts of the spans that others lack, in one pass over both.
func (s spans) butNot(others spans) iter.Seq[span] {
	return func(yield func(span) bool) {
		for _, p := range s {
			for len(others) > 0 && others[0].to <= p.from {
				others = others[1:]
			}
			for _, q := range others {
				if q.from >= p.to || p.from >= p.to {
					break
				}
				if p.from < q.from && !yield(span{p.from, q.from}) {
					return
				}
				p.from = max(p.from, q.to)
			}
			if p.from < p.to && !yield(p) {
				return
			}
		}
	}
}

// Lane is what one of a flow's lanes carries of the sender's stream. Its zero value
// carries nothing.
type Lane struct {
	sent spans // that may lack an acknowledgement
	end  bool  // the end is under way on it
}

// Lost takes the news that a lane is gone while others stay: what it carried is sent
// again on these.
func (s *Sender) Lost(l *Lane) {
	for p := range l.sent.after(s.base).butNot(s.held()) {
		s.setGaps(s.again().add(p), s.held())
	}
	if l.end {
		s.endSent = false
	}
	*l = Lane{}
}

// CarriesAt reports whether bytes at an offset, or the end there, which lack an acknowledgement, went
// out on the lane.
func (s *Sender) CarriesAt(l *Lane, offset uint64) bool {
	return offset >= s.base && (l.sent.has(offset) || l.end && !s.endAcked && offset == s.length)
}

// Carries reports whether something went out on the lane that nobody acknowledged.
func (s *Sender) Carries(l *Lane) bool {
	l.sent = l.sent.after(s.base)
	return len(l.sent) > 0 || l.end && !s.endAcked
}
