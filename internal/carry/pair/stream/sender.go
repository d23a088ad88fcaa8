package stream

// Sender is the sending end of one direction.
type Sender struct {
	store  store
	base   uint64 // everything before it is acknowledged, or with noResume no longer kept
	acked  uint64 // everything before it is acknowledged
	next   uint64 // everything before it is given to lanes
	gaps   *gaps  // nil: none, as of a flow that rests
	sent   uint64 // the highest position that went out, on any lane
	length uint64 // read
	limit  uint32 // of bytes that are kept
	reach  uint32 // of bytes that are not acknowledged, with those that the other end holds
	crc    uint32

	attached bool
	ended    bool // the end was read
	endSent  bool // on a lane that the flow has
	endDue   bool // sealed: it has to be sent
	endAcked bool
	heldNew  bool // since Trim
	short    bool // Space had no memory of the budget, at its latest call
	dropped  bool // no receiver is left, or nothing may reach it any more

	taken    bool   // bytes are on their way unseen, see Take
	noResume bool   // see Flow.NoResume
	sealed   bool   // see Flow.Seal
	from     uint64 // position at which the lane began
}

// gaps are what lanes that were lost, or are slower than others, leave of what was given to them.
type gaps struct {
	again spans // what was lost with one lane and not given to another
	held  spans // beyond base, what the other end holds; the store need not have it
}

func (s *Sender) again() spans {
	if s.gaps == nil {
		return nil
	}
	return s.gaps.again
}

func (s *Sender) held() spans {
	if s.gaps == nil {
		return nil
	}
	return s.gaps.held
}

func (s *Sender) setGaps(again, held spans) {
	switch {
	case len(again) == 0 && len(held) == 0:
		s.gaps = nil
	case s.gaps == nil:
		s.gaps = &gaps{again, held}
	default:
		s.gaps.again, s.gaps.held = again, held
	}
}

// Item is the next thing to send on a lane. Its bytes are valid until Sent.
type Item struct {
	Offset uint64
	Bytes  []byte // of DATA; empty for END
	End    bool
	CRC    uint32 // of END

	of *chunk
}

// Length is the number of bytes read.
func (s *Sender) Length() uint64 { return s.length }

// Kept is the number of bytes that the other end lacks, as far as it has told.
func (s *Sender) Kept() int64 {
	if s.dropped {
		return 0
	}
	return int64(s.length-s.base) - s.held().size()
}

// Acknowledged is the position before which the other end has everything.
func (s *Sender) Acknowledged() uint64 { return s.base }

// Ended reports whether the end was read.
func (s *Sender) Ended() bool { return s.ended }

// Attached reports whether the sender has a lane and a position on it.
func (s *Sender) Attached() bool { return s.attached }

// Done reports whether the other end has passed on the end.
func (s *Sender) Done() bool { return s.endAcked }

// Full reports whether a limit is reached.
func (s *Sender) Full() bool { return s.room() <= 0 }

// room is how many more bytes may be read.
func (s *Sender) room() int64 {
	if s.dropped {
		return int64(s.limit)
	}
	return min(int64(s.limit)-s.Kept(), int64(s.reach)-int64(s.length-s.base))
}

// Starved reports whether the limit alone holds the sender back: it is full, and
// everything was sent.
func (s *Sender) Starved() bool { return s.Full() && s.AllSent() }

// AllSent reports whether lanes have all bytes that were read.
func (s *Sender) AllSent() bool { return s.next == s.length && len(s.again()) == 0 }

// SetLimit bounds the bytes that are kept, and those without an acknowledgement, which some
// lanes carry.
func (s *Sender) SetLimit(kept, reach, lanes int) {
	s.limit, s.reach = uint32(min(kept, endless)), uint32(min(reach, endless))
	s.store.setLargest(kept / (chunkShare * lanes))
}

// Short reports whether the budget alone holds the sender back: it has no memory for more, and
// everything was sent.
func (s *Sender) Short() bool { return s.short && !s.ended && !s.Full() && s.AllSent() }

// Limit is the bound of the bytes that are kept.
func (s *Sender) Limit() int { return int(s.limit) }

// Reach is the bound of the bytes without an acknowledgement.
func (s *Sender) Reach() int64 { return int64(s.reach) }

// Space returns memory to read the next bytes to; nil if the limit or the budget has
// none left. Commit follows before any other call that changes the sender.
func (s *Sender) Space() []byte {
	if s.ended || s.dropped || s.Full() {
		return nil
	}
	b := s.store.space(s.length, false)
	s.short = b == nil
	return b[:min(int64(len(b)), s.room())]
}

// Keep takes bytes that were read already, also beyond the limit and the budget.
func (s *Sender) Keep(b []byte) {
	for len(b) > 0 {
		n := copy(s.store.space(s.length, true), b)
		s.Commit(n)
		b = b[n:]
	}
}

// Commit counts n bytes that were read to Space.
func (s *Sender) Commit(n int) {
	b := s.store.chunks[len(s.store.chunks)-1].space()[:n]
	if !s.noResume {
		s.crc = sum(s.crc, b)
	}
	s.store.commit(n)
	s.length += uint64(n)
}

// Proven reports whether the other end has acknowledged something of the present lane, so
// that the sender, which does not resume, keeps nothing any more.
func (s *Sender) Proven() bool { return s.noResume && s.attached && s.base > s.from }

// AtRisk reports whether the present lane has bytes or an end that may be lost with it.
func (s *Sender) AtRisk() bool { return s.Proven() && !s.endAcked && !s.dropped }

// Passable reports whether the next bytes may go from socket to lane unseen: nothing is
// kept that comes before them.
func (s *Sender) Passable() bool {
	return s.Proven() && s.next == s.length && !s.ended && !s.dropped
}

// Take counts n bytes that were read unseen; Passed follows, or the flow is cut: no other lane
// can have them.
func (s *Sender) Take(n int) {
	s.length += uint64(n)
	s.taken = true
}

// Passed counts the bytes of Take as sent.
func (s *Sender) Passed() {
	s.taken = false
	if s.attached {
		s.next = s.length
		s.sent = max(s.sent, s.next)
		s.forget()
	}
}

// forget drops what was sent, once the lane is proven.
func (s *Sender) forget() {
	if s.Proven() {
		s.base = max(s.base, s.next)
	}
}

// Trim frees memory of acknowledged bytes, and what Space gave and nobody used.
func (s *Sender) Trim() {
	if s.dropped {
		s.store.trim(s.length)
		return
	}
	s.store.trim(s.base)
	if s.heldNew {
		s.heldNew = false
		s.store.trimHeld(s.held())
	}
}

// End ends the stream.
func (s *Sender) End() { s.ended, s.endDue = true, s.sealed }

// attach begins a lane whose receiver has everything before received. An acknowledgement
// on the control connection may have overtaken that position. Bytes that are kept no more
// and that nobody has acknowledged are lost.
func (s *Sender) attach(received uint64) error {
	if received > s.length || max(s.acked, received) < s.base || s.taken {
		return ErrDamaged
	}
	if s.sealed {
		s.attachAt(received)
		return nil
	}
	s.acked = max(s.acked, received)
	s.base = max(s.base, received)
	s.from = s.base
	s.setGaps(s.again(), s.held().after(s.base))
	s.restart()
	s.attached, s.endSent = true, false
	return nil
}

// attachAt is attach for a position that came in clear. It says where to begin, but frees
// nothing: who changes it can have bytes sent twice or left out for now, not lost.
func (s *Sender) attachAt(received uint64) {
	s.restart()
	s.from = max(s.base, received)
	s.setGaps(s.again().after(s.from), s.held())
	s.next = max(s.next, s.from)
	s.attached = true
}

// arrived takes a position of the other end that a lane has brought.
func (s *Sender) arrived(received uint64) error {
	switch {
	case !s.sealed:
		return s.ack(received, false)
	case received > s.length:
		return ErrDamaged
	}
	return nil
}

// WillSend reports that a lane is to carry the byte at an offset, or the end there, or that nothing
// has it any more.
func (s *Sender) WillSend(offset uint64) bool {
	if offset == s.length && s.ended {
		return !s.EndInFlight()
	}
	return offset < s.base || offset >= s.next || s.again().has(offset)
}

// endLeft reports whether a lane is to carry the end.
func (s *Sender) endLeft() bool { return s.ended && !s.sealed && !s.endSent && !s.endAcked }

func (s *Sender) detach() {
	s.attached, s.endSent = false, false
	s.restart()
}

// ack takes an acknowledgement of everything before received.
func (s *Sender) ack(received uint64, end bool) error {
	if received > s.length || end && (!s.ended || received != s.length) {
		return ErrDamaged
	}
	s.acked = max(s.acked, received)
	s.base = max(s.base, received)
	s.next = max(s.next, s.base)
	if s.gaps != nil {
		s.setGaps(s.gaps.again.after(s.base), s.gaps.held.after(s.base))
	}
	s.endAcked = s.endAcked || end
	s.forget()
	return nil
}

// Pending reports whether Next has something for a lane.
func (s *Sender) Pending() bool {
	switch {
	case !s.attached || s.dropped || s.taken:
		return false
	case len(s.again()) > 0 || s.next < s.length:
		return true
	}
	return s.endLeft()
}

// Unsent is the number of bytes that no lane has.
func (s *Sender) Unsent() int64 {
	return s.again().size() + int64(s.length-s.next)
}

// Next gives a lane what is to be sent next, at most so many bytes: what another one lost
// comes first. Sent follows. An item that could not be sent is lost with its lane.
func (s *Sender) Next(l *Lane, bytes int) (Item, bool) {
	if !s.Pending() {
		return Item{}, false
	}
	var it Item
	switch {
	case len(s.again()) > 0:
		p := s.again()[0]
		it = s.item(p.from, min(bytes, int(p.to-p.from)))
		s.setGaps(s.again().after(it.end()), s.held())
	case s.next < s.length:
		it = s.item(s.next, bytes)
		s.next = it.end()
		s.sent = max(s.sent, s.next)
	default:
		s.endSent, l.end = true, true
		return Item{Offset: s.length, End: true, CRC: s.crc}, true
	}
	l.sent = l.sent.after(s.base).add(span{it.Offset, it.end()})
	return it, true
}

func (s *Sender) item(offset uint64, bytes int) Item {
	b, of := s.store.at(offset)
	of.users++
	return Item{Offset: offset, Bytes: b[:min(len(b), bytes)], of: of}
}

func (it Item) end() uint64 { return it.Offset + uint64(len(it.Bytes)) }

// InFlight reports whether bytes went out that nobody acknowledged. If none did, a new
// lane may carry bytes before the other end has told its position.
func (s *Sender) InFlight() bool { return s.sent > s.base }

// OnTheWay is the position up to which bytes were given to lanes, and whether the end was, if
// nothing shows that all of that has arrived.
func (s *Sender) OnTheWay() (to uint64, end, some bool) {
	to = s.next
	if s.taken {
		to = s.length
	}
	return to, s.EndInFlight(), s.attached && !s.dropped && (to > s.acked || s.EndInFlight())
}

// EndInFlight reports whether the end went out on a lane and was not acknowledged.
func (s *Sender) EndInFlight() bool { return s.endSent && !s.endAcked }

// Sent takes the news that an item of Next was written, or could not be.
func (s *Sender) Sent(it Item) {
	if it.of != nil {
		it.of.leave(s.store.budget())
	}
	s.forget()
}

// Peek returns bytes that no lane has, to go out by other means; at most max of them.
func (s *Sender) Peek(max int) (offset uint64, b []byte) {
	offset, most := s.next, max
	if len(s.again()) > 0 {
		offset, most = s.again()[0].from, min(most, int(s.again()[0].to-s.again()[0].from))
	}
	if s.dropped || offset >= s.length {
		return offset, nil
	}
	b, _ = s.store.at(offset)
	return offset, b[:min(len(b), most)]
}

// Unacknowledged reports whether the other end lacks bytes or the end.
func (s *Sender) Unacknowledged() bool { return s.needsLane() || !s.dropped && s.ended && !s.endAcked }

// needsLane reports whether the other end lacks what a lane carries.
func (s *Sender) needsLane() bool {
	return !s.dropped && (s.base < s.length || s.ended && !s.endAcked && !s.sealed)
}

func (s *Sender) drop() { s.dropped = true }
