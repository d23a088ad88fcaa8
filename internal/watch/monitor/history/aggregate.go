package history

import (
	"cmp"
	"encoding/binary"

	"longhaul/internal/find/doctor"
	"longhaul/internal/words/sorted"
)

// aggregate adds up flows: of a period for a summary, or of one tunnel and one
// hour to be kept.
type aggregate struct {
	flows, up, down     int64
	sent, retransmitted int64 // of those flows of which it is known
	time, goodput       *tally
	causes              map[int64]*causeTally // by word
	ends                map[endWords]*int64
	cache               [64]struct { // of what belongs to a group, by some of its bits
		group group
		cause *causeTally
		end   *int64
	}
}

type causeTally struct{ flows, bytes int64 }

type endWords struct{ endedBy, reason int64 }

func newAggregate(shift uint) *aggregate {
	return &aggregate{time: newTally(shift), goodput: newTally(shift), causes: map[int64]*causeTally{}, ends: map[endWords]*int64{}}
}

// add counts a flow, as a transfer if it has moved so many bytes.
func (a *aggregate) add(f *facts, minBytes int64) {
	a.flows++
	a.up += f.up
	a.down += f.down
	if f.sent >= 0 {
		a.sent += f.sent
		a.retransmitted += max(f.retransmitted, 0)
	}
	if f.up+f.down >= max(minBytes, 1) && f.elapsedUs > 0 {
		a.time.add(float64(f.elapsedUs) / 1e6)
		a.goodput.add(f.goodputBps())
	}
	g := &f.group
	c := &a.cache[(g.tunnel^g.cause<<2^g.reason<<4)&63]
	if c.end == nil || c.group != *g {
		c.group, c.cause, c.end = *g, nil, a.end(g.endedBy, g.reason)
		if g.cause != 0 {
			c.cause = a.cause(g.cause)
		}
	}
	*c.end++
	if c.cause != nil {
		c.cause.flows++
		c.cause.bytes += f.up + f.down
	}
}

func (a *aggregate) cause(word int64) *causeTally {
	c := a.causes[word]
	if c == nil {
		c = new(causeTally)
		a.causes[word] = c
	}
	return c
}

func (a *aggregate) end(endedBy, reason int64) *int64 {
	n := a.ends[endWords{endedBy, reason}]
	if n == nil {
		n = new(int64)
		a.ends[endWords{endedBy, reason}] = n
	}
	return n
}

// retransmittedShare is negative if nothing is known to have been sent.
func (a *aggregate) retransmittedShare() float64 {
	if a.sent <= 0 {
		return -1
	}
	return float64(a.retransmitted) / float64(a.sent)
}

func (a *aggregate) summary(p Period, of Selection, words map[int64]string) Summary {
	s := Summary{
		Period: p, Selection: of,
		Flows: a.flows, BytesUp: a.up, BytesDown: a.down,
		RetransmittedShare: a.retransmittedShare(),
		Transfers:          a.time.count,
		TransferTime:       a.time.distribution(), Goodput: a.goodput.distribution(),
		Causes: []CauseCount{}, Ends: []EndCount{},
	}
	for word, c := range a.causes {
		s.Causes = append(s.Causes, CauseCount{Cause: doctor.Cause(words[word]), Flows: c.flows, Bytes: c.bytes})
	}
	for end, n := range a.ends {
		s.Ends = append(s.Ends, EndCount{EndedBy: words[end.endedBy], Reason: words[end.reason], Flows: *n})
	}
	s.Sort()
	return s
}

// Sort puts the most frequent causes and ends first.
func (s *Summary) Sort() {
	sorted.By(s.Causes, func(a, b CauseCount) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Cause, b.Cause))
	})
	sorted.By(s.Ends, func(a, b EndCount) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.EndedBy, b.EndedBy))
	})
}

// aggregateFormat is the first byte of an aggregate.
const aggregateFormat = 1

func (a *aggregate) encode() []byte {
	b := []byte{aggregateFormat}
	for _, v := range []int64{a.flows, a.up, a.down, a.sent, a.retransmitted} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	b = a.time.append(b)
	b = a.goodput.append(b)
	b = binary.AppendUvarint(b, uint64(len(a.causes)))
	for word, c := range a.causes {
		b = binary.AppendUvarint(b, uint64(word))
		b = binary.AppendUvarint(b, uint64(c.flows))
		b = binary.AppendUvarint(b, uint64(c.bytes))
	}
	b = binary.AppendUvarint(b, uint64(len(a.ends)))
	for end, n := range a.ends {
		b = binary.AppendUvarint(b, uint64(end.endedBy))
		b = binary.AppendUvarint(b, uint64(end.reason))
		b = binary.AppendUvarint(b, uint64(*n))
	}
	return b
}

// read adds what encode has written of a coarse aggregate.
func (a *aggregate) read(b []byte) error {
	r := &blobReader{b: b}
	if r.byte() != aggregateFormat {
		return errBlob
	}
	for _, to := range []*int64{&a.flows, &a.up, &a.down, &a.sent, &a.retransmitted} {
		*to += r.count()
	}
	a.time.read(r)
	a.goodput.read(r)
	for n := r.uvarint(); n > 0 && !r.failed; n-- {
		c := a.cause(r.count())
		c.flows += r.count()
		c.bytes += r.count()
	}
	for n := r.uvarint(); n > 0 && !r.failed; n-- {
		end := a.end(r.count(), r.count())
		*end += r.count()
	}
	return r.err()
}
