package stream

// Held returns which of a flow's lanes holds up the other end, which may have all that went out
// on the others: it alone carries the first byte without an acknowledgement, or the end after all
// bytes. -1: none does.
func (s *Sender) Held(lanes []*Lane) int {
	if !s.attached || s.dropped || s.endAcked {
		return -1
	}
	held := -1
	for i, l := range lanes {
		carries := l.sent.has(s.base) || l.also.has(s.base)
		if s.base == s.length {
			carries = l.end || l.alsoEnd
		}
		switch {
		case carries && held >= 0:
			return -1
		case carries:
			held = i
		}
	}
	return held
}

// Double has another lane carry as well what lacks an acknowledgement on the one that holds up the
// other end, if that is at most so many bytes. It reports false if it is more.
func (s *Sender) Double(held, other *Lane, most int64) (bytes int64, done bool) {
	held.sent = held.sent.after(s.base)
	also := held.sent.minus(s.held).minus(other.sent)
	if bytes = also.size(); bytes > most {
		return 0, false
	}
	other.also, other.alsoEnd = also, held.end && !s.endAcked && !other.end
	return bytes, true
}

// Doubles reports whether the next item of a lane is one that another lane has too.
func (s *Sender) Doubles(l *Lane) bool {
	if l.also = l.also.after(s.base); len(l.also) > 0 {
		l.also = l.also.minus(s.held)
	}
	l.alsoEnd = l.alsoEnd && !s.endAcked
	return s.attached && !s.dropped && (len(l.also) > 0 || l.alsoEnd)
}

// nextDouble is the next item that a lane carries as well as another one.
func (s *Sender) nextDouble(l *Lane, bytes int) Item {
	if len(l.also) == 0 {
		l.alsoEnd, l.end = false, true
		return Item{Offset: s.length, End: true, CRC: s.crc}
	}
	p := l.also[0]
	it := s.item(p.from, min(bytes, int(p.to-p.from)))
	l.also = l.also.after(it.end())
	l.sent = l.sent.after(s.base).add(span{it.Offset, it.end()})
	return it
}
