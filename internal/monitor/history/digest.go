package history

import (
	"encoding/binary"
	"math"
)

// A digest is what questions about many records need of a segment, which is
// segmentLen records with successive IDs: some 20 bytes of each, in one blob
// that is written once, when the segment is full. To read those of a million
// records takes less than a tenth of a second, whatever is asked for, and so
// records need no index. Records after the last full segment are read one by
// one.
//
//	format, groups × (tunnel, cause, reason, ended by), records × facts
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

func encodeDigest(all []facts) []byte {
	number := map[group]int{}
	var groups []group
	for _, f := range all {
		if _, known := number[f.group]; !known {
			number[f.group] = len(groups)
			groups = append(groups, f.group)
		}
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
	for _, f := range all {
		b = binary.AppendUvarint(b, uint64(f.id-id))
		b = binary.AppendUvarint(b, uint64(number[f.group]))
		b = binary.AppendVarint(b, f.endMs-end)
		b = binary.AppendUvarint(b, uint64(f.elapsedUs))
		b = binary.AppendUvarint(b, uint64(f.up))
		b = binary.AppendUvarint(b, uint64(f.down))
		b = binary.AppendUvarint(b, uint64(f.sent+1))
		b = binary.AppendUvarint(b, uint64(f.retransmitted+1))
		id, end = f.id, f.endMs
	}
	return b
}

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
	var f facts
	records := r.uvarint()
	if records > uint64(len(r.b)) {
		return errBlob
	}
	for range records {
		step := r.uvarint()
		g := r.uvarint()
		f.endMs += r.varint()
		f.elapsedUs, f.up, f.down = r.count(), r.count(), r.count()
		f.sent, f.retransmitted = r.count()-1, r.count()-1
		if r.failed || g >= n || step == 0 || step > uint64(math.MaxInt64-f.id) {
			return errBlob
		}
		f.id += int64(step)
		if take[g] {
			f.group = groups[g]
			visit(&f)
		}
	}
	return r.err()
}
