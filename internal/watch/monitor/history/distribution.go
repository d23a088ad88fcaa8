package history

import (
	"encoding/binary"
	"errors"
	"math"
)

// Distribution is of a positive quantity. All is zero if Count is.
type Distribution struct {
	Count int64   `json:"count"`
	Min   float64 `json:"min"`
	P10   float64 `json:"p10"`
	P25   float64 `json:"p25"`
	P50   float64 `json:"p50"`
	P75   float64 `json:"p75"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Mean  float64 `json:"mean"`
	Bins  []Bin   `json:"bins"` // from the least to the largest value, empty ones between included
}

// Bin counts the values from From to below To. Bins have the bounds 1, 2, 5,
// 10, … times a power of ten, the same for every distribution.
type Bin struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Count int64   `json:"count"`
}

// tally counts values in bins whose width is a share of the value: the top bits
// of a float32 are its logarithm, near enough, and cost nothing.
type tally struct {
	shift    uint // how many bits of the float32 are let go
	count    int64
	sum      float64
	min, max float32
	bins     []uint32
}

// Octaves that a tally tells apart: from less than a microsecond to more than
// ten terabits a second. What lies outside is counted at the ends.
const (
	leastBits = 107 << 23 // 2^-20
	octaves   = 64
)

// How fine a tally is. A quantile is the middle of its bin, so it is wrong by
// half a bin at most: 0.4 %, or 3.2 % for what is kept and charted.
const (
	fine   = 16
	coarse = 19
)

func newTally(shift uint) *tally { return &tally{shift: shift} }

func (t *tally) add(value float64) {
	v := float32(value)
	if !(v > 0) || math.IsInf(float64(v), 0) {
		return
	}
	if t.bins == nil {
		t.bins = make([]uint32, octaves<<(23-t.shift))
	}
	if t.count == 0 || v < t.min {
		t.min = v
	}
	t.max = max(t.max, v)
	t.count++
	t.sum += float64(v)
	bin := 0
	if bits := math.Float32bits(v); bits > leastBits {
		bin = min(int(bits-leastBits)>>t.shift, len(t.bins)-1)
	}
	t.bins[bin]++
}

// middle of a bin.
func (t *tally) middle(bin int) float64 {
	return float64(math.Float32frombits(leastBits + uint32(bin)<<t.shift + 1<<(t.shift-1)))
}

// quantile is negative where there are no values.
func (t *tally) quantile(q float64) float64 {
	if t.count == 0 {
		return -1
	}
	rank := int64(math.Ceil(q * float64(t.count)))
	var seen int64
	for i, n := range t.bins {
		if seen += int64(n); n > 0 && seen >= rank {
			return min(max(t.middle(i), float64(t.min)), float64(t.max))
		}
	}
	return float64(t.max)
}

func (t *tally) distribution() Distribution {
	var all []Counted
	for i, n := range t.bins {
		if n > 0 {
			all = append(all, Counted{min(max(t.middle(i), float64(t.min)), float64(t.max)), int64(n)})
		}
	}
	d := NewDistribution(all)
	if t.count > 0 {
		d.Min, d.Max, d.Mean = float64(t.min), float64(t.max), t.sum/float64(t.count)
	}
	return d
}

// Counted is a positive value that occurs Count times, at least once.
type Counted struct {
	Value float64
	Count int64
}

// Quantile of values in ascending order; negative: there are none.
func Quantile(all []Counted, q float64) float64 {
	var count, seen int64
	for _, v := range all {
		count += v.Count
	}
	rank := int64(math.Ceil(q * float64(count)))
	for _, v := range all {
		if seen += v.Count; seen >= rank {
			return v.Value
		}
	}
	return -1
}

// NewDistribution is that of values in ascending order.
func NewDistribution(all []Counted) Distribution {
	d := Distribution{Bins: []Bin{}}
	if len(all) == 0 {
		return d
	}
	d.Min, d.Max = all[0].Value, all[len(all)-1].Value
	edge := edgeBelow(d.Min)
	for _, v := range all {
		d.Count += v.Count
		d.Mean += v.Value * float64(v.Count)
		for len(d.Bins) == 0 || v.Value >= d.Bins[len(d.Bins)-1].To {
			d.Bins = append(d.Bins, Bin{From: edgeValue(edge), To: edgeValue(edge + 1)})
			edge++
		}
		d.Bins[len(d.Bins)-1].Count += v.Count
	}
	d.Mean /= float64(d.Count)
	for _, q := range []struct {
		to *float64
		q  float64
	}{{&d.P10, .10}, {&d.P25, .25}, {&d.P50, .50}, {&d.P75, .75}, {&d.P90, .90}, {&d.P95, .95}, {&d.P99, .99}} {
		*q.to = Quantile(all, q.q)
	}
	return d
}

// edgeValue is the bound number i: 1, 2, 5, 10, 20, … from i = 0.
func edgeValue(i int) float64 {
	decade := int(math.Floor(float64(i) / 3))
	return [3]float64{1, 2, 5}[i-3*decade] * math.Pow10(decade)
}

// edgeBelow is the number of the largest bound that is not above v.
func edgeBelow(v float64) int {
	i := 3 * int(math.Floor(math.Log10(v)))
	for edgeValue(i+1) <= v {
		i++
	}
	for edgeValue(i) > v {
		i--
	}
	return i
}

var errBlob = errors.New("a stored value cannot be understood")

// append writes the tally: its bins that are not empty as distances and counts.
func (t *tally) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(t.count))
	if t.count == 0 {
		return b
	}
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(t.sum))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(t.min))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(t.max))
	last := 0
	for i, n := range t.bins {
		if n > 0 {
			b = binary.AppendUvarint(b, uint64(i-last))
			b = binary.AppendUvarint(b, uint64(n))
			last = i
		}
	}
	return b
}

// read adds what append has written of a tally of the same fineness.
func (t *tally) read(r *blobReader) {
	count := r.count()
	if count == 0 {
		return
	}
	sum, least, most := math.Float64frombits(r.uint64()), math.Float32frombits(r.uint32()), math.Float32frombits(r.uint32())
	if !(least > 0 && most >= least && most <= math.MaxFloat32 && sum > 0 && sum <= math.MaxFloat64) {
		r.fail()
		return
	}
	if t.bins == nil {
		t.bins = make([]uint32, octaves<<(23-t.shift))
	}
	var at, seen uint64
	for seen < uint64(count) {
		at += r.uvarint()
		n := r.uvarint()
		if r.failed || at >= uint64(len(t.bins)) || n == 0 || n > math.MaxUint32 {
			r.fail()
			return
		}
		t.bins[at] += uint32(n)
		seen += n
	}
	if seen != uint64(count) {
		r.fail()
		return
	}
	if t.count == 0 || least < t.min {
		t.min = least
	}
	t.max = max(t.max, most)
	t.count += count
	t.sum += sum
}
