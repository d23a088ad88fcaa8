package stream

// Receiver is the receiving end of one direction.
type Receiver struct {
	pos uint64 // everything before it is in the next socket's queue
	crc uint32

	ending bool // END came with the right length and sum
	ended  bool // and was passed on
	cut    bool // a RESET came
	cutAt  uint64
	cutEnd bool // an end comes before the reset
	dead   bool // the next socket takes no more
}

// Position is what the next socket has got.
func (r *Receiver) Position() uint64 { return r.pos }

// Ended reports whether the end was passed on.
func (r *Receiver) Ended() bool { return r.ended }

// Data takes the arrival of bytes and returns those to write to the next socket; each
// write is counted by Wrote.
func (r *Receiver) Data(offset uint64, b []byte) ([]byte, error) {
	if r.dead {
		return nil, nil
	}
	if offset > r.pos {
		return nil, ErrGap
	}
	if seen := r.pos - offset; seen < uint64(len(b)) {
		b = b[seen:]
	} else {
		b = nil
	}
	if len(b) > 0 && (r.ending || r.ended) {
		return nil, ErrDamaged
	}
	if r.cut {
		b = b[:min(uint64(len(b)), r.cutAt-min(r.pos, r.cutAt))]
	}
	return b, nil
}

// Wrote counts bytes that are in the next socket's queue.
func (r *Receiver) Wrote(b []byte) {
	r.crc = sum(r.crc, b)
	r.pos += uint64(len(b))
}

// End takes the arrival of an end. It reports whether to pass it on now, by shutting
// the next socket down; EndPassed follows.
func (r *Receiver) End(length uint64, crc uint32) (pass bool, err error) {
	if r.dead || r.cut && !r.cutEnd {
		return false, nil
	}
	if length != r.pos || crc != r.crc {
		return false, ErrDamaged
	}
	pass = !r.ending
	r.ending = true
	return pass, nil
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
