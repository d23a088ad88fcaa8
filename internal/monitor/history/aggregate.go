package history

import (
	"cmp"
	"encoding/binary"
	"slices"

	"longhaul/internal/doctor"
)

// aggregate adds up flows: of a period for a summary, or of one tunnel and one
// hour to be kept.
type aggregate struct {
	flows, up, down     int64
	sent, retransmitted int64 // of those flows of which it is known
	time, goodput       *tally
	causes              map[int64]*causeTally // by word
	ends                map[endWords]int64
}

type causeTally struct{ flows, bytes int64 }

type endWords struct{ endedBy, reason int64 }

func newAggregate(shift uint) *aggregate {
	return &aggregate{time: newTally(shift), goodput: newTally(shift), causes: map[int64]*causeTally{}, ends: map[endWords]int64{}}
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
	if f.group.cause != 0 {
		c := a.causes[f.group.cause]
		if c == nil {
			c = new(causeTally)
			a.causes[f.group.cause] = c
		}
		c.flows++
		c.bytes += f.up + f.down
	}
	a.ends[endWords{f.group.endedBy, f.group.reason}]++
}

func (a *aggregate) merge(o *aggregate) {
	a.flows += o.flows
	a.up += o.up
	a.down += o.down
	a.sent += o.sent
	a.retransmitted += o.retransmitted
	a.time.merge(o.time)
	a.goodput.merge(o.goodput)
	for word, c := range o.causes {
		if mine := a.causes[word]; mine != nil {
			mine.flows += c.flows
			mine.bytes += c.bytes
		} else {
			a.causes[word] = &causeTally{c.flows, c.bytes}
		}
	}
	for end, n := range o.ends {
		a.ends[end] += n
	}
}

// retransmittedShare is negative if nothing is known to have been sent.
func (a *aggregate) retransmittedShare() float64 {
	if a.sent <= 0 {
		return -1
	}
	return float64(a.retransmitted) / float64(a.sent)
}

func (a *aggregate) summary(p Period, tunnel string, words map[int64]string) Summary {
	s := Summary{
		Period: p, Tunnel: tunnel,
		Flows: a.flows, BytesUp: a.up, BytesDown: a.down,
		RetransmittedShare: a.retransmittedShare(),
		Transfers:          a.time.count,
		TransferTime:       a.time.distribution(), Goodput: a.goodput.distribution(),
		Causes: []CauseCount{}, Ends: []EndCount{},
	}
	for word, c := range a.causes {
		s.Causes = append(s.Causes, CauseCount{Cause: doctor.Cause(words[word]), Flows: c.flows, Bytes: c.bytes})
	}
	slices.SortFunc(s.Causes, func(a, b CauseCount) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Cause, b.Cause))
	})
	for end, n := range a.ends {
		s.Ends = append(s.Ends, EndCount{EndedBy: words[end.endedBy], Reason: words[end.reason], Flows: n})
	}
	slices.SortFunc(s.Ends, func(a, b EndCount) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.EndedBy, b.EndedBy))
	})
	return s
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
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// decodeAggregate is the inverse of encode.
func decodeAggregate(b []byte) (*aggregate, error) {
	r := &blobReader{b: b}
	if r.byte() != aggregateFormat {
		return nil, errBlob
	}
	a := newAggregate(coarse)
	a.flows, a.up, a.down, a.sent, a.retransmitted = r.count(), r.count(), r.count(), r.count(), r.count()
	a.time.read(r)
	a.goodput.read(r)
	for n := r.uvarint(); n > 0 && !r.failed; n-- {
		a.causes[r.count()] = &causeTally{r.count(), r.count()}
	}
	for n := r.uvarint(); n > 0 && !r.failed; n-- {
		a.ends[endWords{r.count(), r.count()}] += r.count()
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return a, nil
}
