package stream

// Receiver is the receiving end of one direction.
type Receiver struct {
	pos    uint64 // everything before it is in the next socket's queue
	cutAt  uint64 // up to which a RESET promises bytes
	endAt  uint64 // the stream's length, once END came; before, up to which bytes are on their way
	endCRC uint32
	crc    uint32
	early  *spill // nil: it merges nothing
	// unreported is how many bytes have come before their turn since the latest report.
	unreported int32
	noSum      bool // nobody has made sums
	sealed     bool // see Flow.Seal: the end may come before the bytes that precede it
	merge      bool // several lanes carry the flow: bytes may come before their turn
	toldEnd    bool // END is on its way
	sawEnd     bool // END came
	ending     bool // and all bytes before it, with the right sum
	ended      bool // and was passed on
	cut        bool // a RESET came
	cutEnd     bool // an end comes before the reset
	dead       bool // the next socket takes no more
}

// Position is what the next socket has got.
func (r *Receiver) Position() uint64 { return r.pos }

// Ended reports whether the end was passed on.
func (r *Receiver) Ended() bool { return r.ended }

// Data takes the arrival of bytes and returns those to write to the next socket; each
// write is counted by Wrote.
func (r *Receiver) Data(offset uint64, b []byte) ([]byte, error) {
	from, to, err := r.wanted(offset, len(b))
	return b[from:to], err
}

// Passable reports whether the next n bytes may go from lane to socket unseen: all
// of them are to be written.
func (r *Receiver) Passable(offset uint64, n int) bool {
	from, to, err := r.wanted(offset, n)
	return r.noSum && err == nil && from == 0 && to == n
}

// wanted returns which of n bytes are to be written.
func (r *Receiver) wanted(offset uint64, n int) (from, to int, err error) {
	if r.dead {
		return 0, 0, nil
	}
	if offset > r.pos {
		return 0, 0, ErrGap
	}
	from, to = int(min(r.pos-offset, uint64(n))), n
	if from < to && r.sawEnd && offset+uint64(n) > r.endAt {
		return 0, 0, ErrDamaged
	}
	if r.cut {
		to = from + int(min(uint64(n-from), r.cutAt-min(r.pos, r.cutAt)))
	}
	return from, to, nil
}

// Merge lets bytes come before their turn from now on: several lanes carry the flow.
// Memory of the budget keeps them.
func (r *Receiver) Merge() {
	if r.merge = true; r.early == nil {
		r.early = &spill{}
	}
}

// Merges reports whether bytes may come before their turn.
func (r *Receiver) Merges() bool { return r.merge }

// IsEarly reports whether bytes at an offset come before their turn.
func (r *Receiver) IsEarly(offset uint64) bool {
	return r.merge && offset > r.pos && !r.dead && !(r.cut && offset >= r.cutAt)
}

// Lacks reports whether bytes are missing, or the end: later ones are here, or the other end says
// that it has sent them.
func (r *Receiver) Lacks() bool { return !r.dead && (r.Spilled() > 0 || r.lacksTold()) }

// lacksTold reports that bytes or the end are not here that the other end says it has sent.
func (r *Receiver) lacksTold() bool { return r.pos < r.endAt || r.toldEnd && !r.sawEnd }

func (r *Receiver) told(offset uint64, end bool) {
	if !r.sawEnd {
		r.endAt, r.toldEnd = max(r.endAt, offset), r.toldEnd || end
	}
}

// Complete reports whether a lane that has brought everything before an offset has brought the
// stream's last byte.
func (r *Receiver) Complete(offset uint64) bool { return r.sawEnd && r.endAt > 0 && offset == r.endAt }

// Spilled is the memory of bytes that came before their turn.
func (r *Receiver) Spilled() int {
	if r.early == nil {
		return 0
	}
	return r.early.size
}

// Wrote counts bytes that are in the next socket's queue.
func (r *Receiver) Wrote(b []byte) {
	if !r.noSum {
		r.crc = sum(r.crc, b)
	}
	r.pos += uint64(len(b))
}

// End takes the arrival of an end. EndDue tells when to pass it on.
func (r *Receiver) End(length uint64, crc uint32) error {
	if r.dead || r.cut && !r.cutEnd {
		return nil
	}
	switch {
	case r.noSum:
		crc = 0
	case r.sawEnd && crc != r.endCRC:
		return ErrDamaged
	}
	if length < r.pos || length > r.pos && !r.merge && !r.sealed || r.sawEnd && length != r.endAt {
		return ErrDamaged
	}
	r.sawEnd, r.endAt, r.endCRC = true, length, crc
	return nil
}

// EndDue reports, once, that all bytes before the end are in the next socket's queue: it
// is to be shut down; EndPassed follows.
func (r *Receiver) EndDue() (bool, error) {
	if r.sealed && r.sawEnd && !r.dead && r.pos > r.endAt { // it came while they were on their way
		return false, ErrDamaged
	}
	if !r.sawEnd || r.pos != r.endAt || r.ending || r.dead || r.cut && !r.cutEnd {
		return false, nil
	}
	if !r.noSum && r.endCRC != r.crc {
		return false, ErrDamaged
	}
	r.ending = true
	return true, nil
}

// reset takes the arrival of a RESET. A later one may promise less: its sender gave up.
func (r *Receiver) reset(length uint64, end bool) {
	if r.cut && length >= r.cutAt {
		return // sent again
	}
	r.cut, r.cutAt, r.cutEnd = true, length, end
}

// due reports that everything before the other end's reset was delivered.
func (r *Receiver) due() bool {
	return r.cut && r.pos >= r.cutAt && (!r.cutEnd || r.ended)
}
