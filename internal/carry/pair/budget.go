package pair

import "sync/atomic"

// leastHeld is the memory in bytes that a store may have beyond every bound: a flow without any
// would never go on.
const leastHeld = 16 << 10

// laneMemory is about what a flow's further lane takes in bytes: TLS, two goroutines, buffers. A
// flow gets one only while it could keep laneRoom besides.
const (
	laneMemory = 32 << 10
	laneRoom   = 256 << 10
)

// budget bounds the memory of all stores of a node, and of flows' further lanes. A store may have
// as much as is left for all: so many that want more have equal parts, and the next one still
// finds some (Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998). An eighth is left
// for what stores have in any case.
type budget struct {
	used  atomic.Int64
	limit atomic.Int64 // bytes
}

// Take reserves n bytes for a store that has held bytes already.
func (b *budget) Take(n, held int) bool {
	if held+n > leastHeld && !b.fits(n, held) {
		return false
	}
	b.used.Add(int64(n))
	return true
}

// fits reports whether a store that has held bytes may have n more.
func (b *budget) fits(n, held int) bool {
	limit := b.limit.Load()
	return int64(held+n) <= limit-limit/8-b.used.Load()
}

// Give returns n bytes.
func (b *budget) Give(n int) { b.used.Add(-int64(n)) }

// Force reserves n bytes beyond the bound.
func (b *budget) Force(n int) { b.used.Add(int64(n)) }

// room reports whether a small chunk may be had.
func (b *budget) room() bool {
	return b.used.Load()+smallBuffer < b.limit.Load()
}
