package relay

import (
	"testing"
	"unsafe"
)

// TestFlowSize holds that an idle flow takes one of the allocator's classes to the full. The next ones have 384
// and, for a paired one, 176 bytes.
func TestFlowSize(t *testing.T) {
	if n := unsafe.Sizeof(flow{}); n > 352 {
		t.Errorf("a flow has %d bytes, 352 fit", n)
	}
	if n := unsafe.Sizeof(paired{}); n > 160 {
		t.Errorf("what a paired flow adds has %d bytes, 160 fit", n)
	}
}
