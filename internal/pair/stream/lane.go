package stream

import (
	"cmp"
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
	return slices.ContainsFunc(s, func(p span) bool { return p.from <= offset && offset < p.to })
}

// size is the number of bytes.
func (s spans) size() (n int64) {
	for _, p := range s {
		n += int64(p.to - p.from)
	}
	return n
}

// without takes a span out.
func (s spans) without(p span) (rest spans) {
	for _, q := range s {
		if q.from < p.from {
			rest = append(rest, span{q.from, min(q.to, p.from)})
		}
		if q.to > p.to {
			rest = append(rest, span{max(q.from, p.to), q.to})
		}
	}
	return rest
}

// Lane is what one of a flow's lanes carries of the sender's stream. Its zero value
// carries nothing.
type Lane struct {
	sent    spans // that may lack an acknowledgement
	end     bool  // the end is under way on it
	also    spans // that it is to carry as well as another lane
	alsoEnd bool  // the end likewise
}

// Lost takes the news that a lane is gone while others stay: what it carried is sent
// again on these.
func (s *Sender) Lost(l *Lane) {
	for _, p := range l.sent.after(s.base).lessAll(s.held) {
		s.again = s.again.add(p)
	}
	if l.end {
		s.endSent = false
	}
	*l = Lane{}
}

// Left takes the news that the other end has read everything that a lane carried.
func (s *Sender) Left(l *Lane) { *l = Lane{} }

// CarriesAt reports whether bytes at an offset, which lack an acknowledgement, went out on
// the lane.
func (s *Sender) CarriesAt(l *Lane, offset uint64) bool {
	return offset >= s.base && l.sent.has(offset)
}

// Carries reports whether something went out on the lane that nobody acknowledged.
func (s *Sender) Carries(l *Lane) bool {
	l.sent = l.sent.after(s.base)
	return len(l.sent) > 0 || l.end && !s.endAcked
}
