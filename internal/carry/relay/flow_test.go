package relay

import (
	"math"
	"testing"
	"unsafe"
)

// TestFlowSize holds that an idle flow takes one of the allocator's classes to the full. The next ones have 384
// and, for a paired one, 160 bytes.
func TestFlowSize(t *testing.T) {
	if n := unsafe.Sizeof(flow{}); n > 352 {
		t.Errorf("a flow has %d bytes, 352 fit", n)
	}
	if n := unsafe.Sizeof(paired{}); n > 144 {
		t.Errorf("what a paired flow adds has %d bytes, 144 fit", n)
	}
}

// TestRetainedIsBounded holds that what a carrier retains of a flow counts in full up to 2 GiB, and as that beyond.
func TestRetainedIsBounded(t *testing.T) {
	for _, n := range []int64{0, 64 << 20, math.MaxInt32, math.MaxInt32 + 1, 1 << 40} {
		var dir direction
		if dir.retains(n); int64(dir.held) != min(n, math.MaxInt32) {
			t.Errorf("%d retained bytes count as %d", n, dir.held)
		}
	}
}
