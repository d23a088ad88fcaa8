package netfilter

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sort"
)

// number is a value of a dimension: an address or a port.
type number struct{ hi, lo uint64 }

func (a number) less(b number) bool { return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo }

func (a number) next() number {
	lo, carry := bits.Add64(a.lo, 1, 0)
	return number{a.hi + carry, lo}
}

func (a number) previous() number {
	lo, borrow := bits.Sub64(a.lo, 1, 0)
	return number{a.hi - borrow, lo}
}

func (a number) and(b number) number { return number{a.hi & b.hi, a.lo & b.lo} }

func (a number) or(b number) number { return number{a.hi | b.hi, a.lo | b.lo} }

func (a number) xor(b number) number { return number{a.hi ^ b.hi, a.lo ^ b.lo} }

func (a number) not() number { return number{^a.hi, ^a.lo} }

func (a number) isZero() bool { return a == number{} }

func (a number) ones() int { return bits.OnesCount64(a.hi) + bits.OnesCount64(a.lo) }

// left shifts by n bits.
func (a number) left(n int) number {
	if n >= 64 {
		return number{a.lo << (n - 64), 0}
	}
	return number{a.hi<<n | a.lo>>(64-n), a.lo << n}
}

// lowest is the number of zero bits below the lowest one; 128 for zero.
func (a number) lowest() int {
	if a.lo != 0 {
		return bits.TrailingZeros64(a.lo)
	}
	return 64 + bits.TrailingZeros64(a.hi)
}

// length is the number of bits without leading zeros.
func (a number) length() int {
	if a.hi != 0 {
		return 64 + bits.Len64(a.hi)
	}
	return bits.Len64(a.lo)
}

// lowBits are n ones.
func lowBits(n int) number {
	if n == 0 {
		return number{}
	}
	if n <= 64 {
		return number{0, ^uint64(0) >> (64 - n)}
	}
	return number{^uint64(0) >> (128 - n), ^uint64(0)}
}

func small(v uint64) number { return number{0, v} }

// numberOf reads up to 16 bytes, the first of which counts most.
func numberOf(b []byte) number {
	var full [16]byte
	copy(full[16-min(len(b), 16):], b)
	return number{binary.BigEndian.Uint64(full[:8]), binary.BigEndian.Uint64(full[8:])}
}

func addressNumber(a netip.Addr) number { return numberOf(a.AsSlice()) }

func (a number) address(isSix bool) netip.Addr {
	var full [16]byte
	binary.BigEndian.PutUint64(full[:8], a.hi)
	binary.BigEndian.PutUint64(full[8:], a.lo)
	if isSix {
		return netip.AddrFrom16(full)
	}
	return netip.AddrFrom4([4]byte(full[12:]))
}

// interval includes both ends.
type interval struct{ first, last number }

// ranges are disjoint intervals in order. They are shared and never changed.
type ranges []interval

func one(first, last number) ranges { return ranges{{first, last}} }

// rangesOf puts intervals in order and joins those that overlap or touch.
func rangesOf(all []interval) ranges {
	sort.Slice(all, func(i, j int) bool { return all[i].first.less(all[j].first) })
	var joined ranges
	for _, r := range all {
		if n := len(joined); n > 0 && (!joined[n-1].last.less(r.first) || joined[n-1].last.next() == r.first) {
			if joined[n-1].last.less(r.last) {
				joined[n-1].last = r.last
			}
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

func prefixRange(p netip.Prefix) interval {
	first := addressNumber(p.Masked().Addr())
	return interval{first, first.or(lowBits(p.Addr().BitLen() - p.Bits()))}
}

// from is the index of the first interval that ends at v or later.
func (s ranges) from(v number) int {
	return sort.Search(len(s), func(i int) bool { return !s[i].last.less(v) })
}

func (s ranges) intersect(t ranges) (both ranges) {
	if len(s) == 0 || len(t) == 0 {
		return nil
	}
	i, j := s.from(t[0].first), t.from(s[0].first)
	for i < len(s) && j < len(t) {
		r := s[i]
		if r.first.less(t[j].first) {
			r.first = t[j].first
		}
		if t[j].last.less(r.last) {
			r.last = t[j].last
		}
		if !r.last.less(r.first) {
			both = append(both, r)
		}
		if s[i].last.less(t[j].last) {
			i++
		} else {
			j++
		}
	}
	return both
}

// subtract returns s itself if t has nothing of it.
func (s ranges) subtract(t ranges) (rest ranges) {
	if len(s) == 0 || len(t) == 0 {
		return s
	}
	j := t.from(s[0].first)
	if j == len(t) || s[len(s)-1].last.less(t[j].first) {
		return s
	}
	for _, r := range s {
		for j < len(t) && t[j].last.less(r.first) {
			j++
		}
		gone := false
		for k := j; k < len(t) && !r.last.less(t[k].first); k++ {
			if r.first.less(t[k].first) {
				rest = append(rest, interval{r.first, t[k].first.previous()})
			}
			if !t[k].last.less(r.last) {
				gone = true
				break
			}
			r.first = t[k].last.next()
		}
		if !gone {
			rest = append(rest, r)
		}
	}
	return rest
}

func (s ranges) equal(t ranges) bool {
	if len(s) != len(t) {
		return false
	}
	if len(s) > 0 && &s[0] == &t[0] {
		return true
	}
	for i := range s {
		if s[i] != t[i] {
			return false
		}
	}
	return true
}

// maxFreeBits bounds what a mask with holes becomes: 1024 ranges.
const maxFreeBits = 10

// masked returns the values v within an interval for which v & mask == value; ok is false
// if they are too many ranges.
func masked(mask, value number, within interval) (s ranges, ok bool) {
	fixed := lowBits(within.first.xor(within.last).length()).not()
	if !within.first.xor(value).and(mask).and(fixed).isZero() {
		return nil, true
	}
	tail := min(mask.and(fixed.not()).lowest(), fixed.lowest())
	low := lowBits(tail)
	free := mask.or(fixed).or(low).not()
	base := within.first.and(fixed).or(value.and(mask).and(fixed.not()))
	n := free.ones()
	if n > maxFreeBits {
		return nil, false
	}
	var places []number
	for f := free; !f.isZero(); {
		bit := small(1).left(f.lowest())
		places, f = append(places, bit), f.and(bit.not())
	}
	all := make([]interval, 0, 1<<n)
	for i := range 1 << n {
		v := base
		for k, bit := range places {
			if i&(1<<k) != 0 {
				v = v.or(bit)
			}
		}
		all = append(all, interval{v, v.or(low)})
	}
	return rangesOf(all), true
}

// The dimensions of a flow.
const (
	source = iota
	target
	targetPort
	sourcePort
	dimensions
)

// box is the flows with any combination of what the dimensions have.
type box [dimensions]ranges

// split cuts a box in two by one dimension.
func (b box) split(by int, keep ranges) (in, out box, inside, outside bool) {
	in, out = b, b
	in[by], out[by] = b[by].intersect(keep), b[by].subtract(keep)
	if len(in[by]) > 0 && len(out[by]) == 0 {
		in[by] = b[by]
	}
	return in, out, len(in[by]) > 0, len(out[by]) > 0
}

// joined joins two boxes that differ in one dimension alone.
func (b box) joined(c box) (box, bool) {
	differs := -1
	for d := range b {
		if !b[d].equal(c[d]) {
			if differs >= 0 {
				return b, false
			}
			differs = d
		}
	}
	if differs >= 0 {
		b[differs] = rangesOf(append(append([]interval(nil), b[differs]...), c[differs]...))
	}
	return b, true
}

// meets reports whether two have a value in common. It looks the fewer up in the more.
func (s ranges) meets(t ranges) bool {
	if len(s) > len(t) {
		s, t = t, s
	}
	for _, r := range s {
		if i := t.from(r.first); i < len(t) && !r.last.less(t[i].first) {
			return true
		}
	}
	return false
}
