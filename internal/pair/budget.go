package pair

import "sync/atomic"

// budget bounds the memory of all stores of a node.
type budget struct {
	used  atomic.Int64
	limit atomic.Int64 // bytes; 0: unbounded
}

// Take reserves n bytes.
func (b *budget) Take(n int) bool {
	limit := b.limit.Load()
	if used := b.used.Add(int64(n)); limit > 0 && used > limit {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

// Give returns n bytes.
func (b *budget) Give(n int) { b.used.Add(-int64(n)) }

// Force reserves n bytes beyond the bound.
func (b *budget) Force(n int) { b.used.Add(int64(n)) }

// room reports whether a small chunk may be had.
func (b *budget) room() bool {
	limit := b.limit.Load()
	return limit == 0 || b.used.Load()+smallBuffer < limit
}
