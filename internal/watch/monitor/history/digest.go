package history

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// A digest is what questions about many records need of a segment, which is
// segmentLen records with successive IDs: some 20 bytes of each, in one blob
// that is written once, when the segment is full. To read those of a million
// records takes less than a tenth of a second, whatever is asked for, and so
// records need no index. Records after the last full segment are read one by
// one.
//
//	format, groups × (tunnel, cause, reason, ended by), records × facts
//
// A record's eight numbers are preceded by their lengths in bytes, four bits of
// each.
const (
	segmentLen   = 1024
	digestFormat = 1
)

// group is what many records of a segment have in common: IDs of words, 0 where
// there is none.
type group struct{ tunnel, cause, reason, endedBy int64 }

// facts are a record in its digest.
type facts struct {
	id            int64
	group         group
	endMs         int64
	elapsedUs     int64
	up, down      int64
	sent          int64 // by both legs; negative: not known
	retransmitted int64
}

// goodputBps is 0 for what had no duration.
func (f *facts) goodputBps() float64 {
	if f.elapsedUs <= 0 {
		return 0
	}
	return float64(f.up+f.down) * 8e6 / float64(f.elapsedUs)
}

// retransmittedShare is negative if it is not known.
func (f *facts) retransmittedShare() float64 {
	if f.sent <= 0 {
		return -1
	}
	return float64(f.retransmitted) / float64(f.sent)
}

// extremes are what a segment's records reach in each order: a list that has
// better ones already need not look into the segment.
type extremes struct {
	elapsedUs, bytes      int64
	leastGoodput, retrans float64 // of those with DefaultMinBytes
}

func newExtremes(all []facts) extremes {
	e := extremes{leastGoodput: math.MaxFloat64}
	for i := range all {
		f := &all[i]
		e.elapsedUs = max(e.elapsedUs, f.elapsedUs)
		e.bytes = max(e.bytes, f.up+f.down)
		if f.up+f.down >= DefaultMinBytes {
			if g := f.goodputBps(); g > 0 {
				e.leastGoodput = min(e.leastGoodput, g)
			}
			e.retrans = max(e.retrans, f.retransmittedShare())
		}
	}
	return e
}

func encodeDigest(all []facts) []byte {
	known := map[group]int{}
	var groups []group
	number := make([]int, len(all))
	for i := range all {
		g := all[i].group
		if i > 0 && g == all[i-1].group {
			number[i] = number[i-1]
			continue
		}
		n, have := known[g]
		if !have {
			n = len(groups)
			known[g] = n
			groups = append(groups, g)
		}
		number[i] = n
	}
	b := append(make([]byte, 0, 24*len(all)), digestFormat)
	b = binary.AppendUvarint(b, uint64(len(groups)))
	for _, g := range groups {
		for _, word := range []int64{g.tunnel, g.cause, g.reason, g.endedBy} {
			b = binary.AppendUvarint(b, uint64(word))
		}
	}
	b = binary.AppendUvarint(b, uint64(len(all)))
	var id, end int64
	for i := range all {
		f := &all[i]
		delta := f.endMs - end
		numbers := [8]uint64{
			uint64(f.id - id - 1), uint64(number[i]), uint64(delta<<1) ^ uint64(delta>>63), uint64(f.elapsedUs),
			uint64(f.up), uint64(f.down), uint64(f.sent + 1), uint64(f.retransmitted + 1),
		}
		lengths := len(b)
		b = append(b, 0, 0, 0, 0)
		for k, v := range numbers {
			n := (bits.Len64(v) + 7) / 8
			b[lengths+k/2] |= byte(n << (4 * (k % 2)))
			b = binary.LittleEndian.AppendUint64(b, v)[:len(b)+n]
		}
		id, end = f.id, f.endMs
	}
	return append(b, make([]byte, 8)...) // so that eight bytes can be read at once
}

// masks keep so many of eight bytes.
var masks = [9]uint64{0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1, 1<<40 - 1, 1<<48 - 1, 1<<56 - 1, math.MaxUint64}

// readDigest calls visit with every record of a digest. What wanted refuses is
// passed over; facts are good until the next call.
func readDigest(b []byte, wanted func(group) bool, visit func(*facts)) error {
	r := &blobReader{b: b}
	if r.byte() != digestFormat {
		return errBlob
	}
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		return errBlob
	}
	groups := make([]group, n)
	take := make([]bool, n)
	any := false
	for i := range groups {
		groups[i] = group{r.count(), r.count(), r.count(), r.count()}
		take[i] = wanted(groups[i])
		any = any || take[i]
	}
	if !any && !r.failed {
		return nil
	}
	records := r.uvarint()
	if r.failed || records > uint64(len(r.b)) {
		return errBlob
	}
	var f facts
	b = r.b
	for range records {
		// This is where a question's time goes.
		if len(b) < 4 {
			return errBlob
		}
		lengths := binary.LittleEndian.Uint32(b)
		b = b[4:]
		var v [8]uint64
		for i := range v {
			n := lengths & 15
			lengths >>= 4
			if n > 8 || len(b) < 8 {
				return errBlob
			}
			v[i] = binary.LittleEndian.Uint64(b) & masks[n]
			b = b[n:]
		}
		step, g := v[0], v[1]
		if g >= n || step >= uint64(math.MaxInt64-f.id) || (v[3]|v[4]|v[5]|v[6]|v[7])>>63 != 0 {
			return errBlob
		}
		f.id += int64(step) + 1
		f.endMs += int64(v[2]>>1) ^ -int64(v[2]&1)
		if take[g] {
			f.elapsedUs, f.up, f.down = int64(v[3]), int64(v[4]), int64(v[5])
			f.sent, f.retransmitted = int64(v[6])-1, int64(v[7])-1
			f.group = groups[g]
			visit(&f)
		}
	}
	if len(b) != 8 {
		return errBlob
	}
	return nil
}
