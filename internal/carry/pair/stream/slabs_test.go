package stream

import (
	"bytes"
	"os"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

// resident is how many bytes of some memory the process has, as the kernel says.
func resident(t *testing.T, all [][]byte) (n int) {
	t.Helper()
	page := os.Getpagesize()
	for _, b := range all {
		pages := make([]byte, len(b)/page)
		_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&pages[0])))
		if errno != 0 {
			t.Fatal(errno)
		}
		for _, p := range pages {
			n += page * int(p&1)
		}
	}
	return n
}

// TestSlabs holds that slabs do not overlap, and that the kernel has the memory of free ones again
// but for what is spare.
func TestSlabs(t *testing.T) {
	s := slabs{size: 256 << 10, most: 4 << 20}
	const n = 256 // 64 MiB
	all := make([][]byte, n)
	for i := range all {
		all[i] = s.take()
		for at := range all[i] {
			all[i][at] = byte(i)
		}
	}
	for i, b := range all {
		if len(b) != s.size || cap(b) != s.size || !bytes.Equal(b, bytes.Repeat([]byte{byte(i)}, s.size)) {
			t.Fatalf("slab %d of %d bytes has another one's", i, len(b))
		}
	}
	during := resident(t, all)
	for _, b := range all {
		s.give(b)
	}
	if after := resident(t, all); during != n*s.size || after != s.most {
		t.Errorf("the process has %d bytes of %d in use, and %d after", during, n*s.size, after)
	}
	if got := len(s.spare) * s.size; got != s.most {
		t.Errorf("%d bytes are spare", got)
	}
	for range n {
		b := s.take()
		b[0], b[len(b)-1] = 1, 1
	}
	if len(s.empty)+len(s.spare) != 0 {
		t.Error("slabs are left that should be used again")
	}
}

// TestSlabsAreShared has many goroutines take and give slabs.
func TestSlabsAreShared(t *testing.T) {
	s := slabs{size: 32 << 10, most: 1 << 20}
	var all sync.WaitGroup
	for k := range 8 {
		all.Go(func() {
			var mine [][]byte
			for i := range 2000 {
				b := s.take()
				b[0], b[len(b)-1] = byte(k), byte(k)
				if mine = append(mine, b); i%3 > 0 {
					old := mine[0]
					mine = mine[1:]
					if old[0] != byte(k) || old[len(old)-1] != byte(k) {
						t.Error("a slab is another goroutine's as well")
						return
					}
					s.give(old)
				}
			}
		})
	}
	all.Wait()
}
