package stream

import (
	"os"
	"sync"
	"syscall"
)

// Payload lies outside of the Go heap, in slabs of memory that the kernel has again as soon as
// flows need them no more. On the heap it would stay until two collections later, and garbage
// could grow to as much again before the first.

// arenaSize is how much address space is taken from the kernel at once, in bytes. Its memory comes
// with the first use of each page. It is never given back, its memory is.
const arenaSize = 4 << 20

// slabs are slabs of one size. The kernel gets back those whose size is a multiple of its pages'.
type slabs struct {
	size int
	// most bounds the memory of free slabs that is kept for the next use, in bytes: bulk flows
	// need a slab again soon, and new memory costs them a sixth of their CPU time.
	most int

	mu    sync.Mutex
	spare [][]byte // free, with their memory
	empty [][]byte // free, without
}

// take returns a slab. What it has in it is of no meaning.
func (s *slabs) take() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range []*[][]byte{&s.spare, &s.empty} {
		if n := len(*list); n > 0 {
			b := (*list)[n-1]
			*list = (*list)[:n-1]
			return b
		}
	}
	arena, err := mapMemory(arenaSize)
	if err != nil {
		return make([]byte, s.size) // no address space is left: the heap says so, or has some
	}
	for ; len(arena) > s.size; arena = arena[s.size:] {
		s.empty = append(s.empty, arena[:s.size:s.size])
	}
	return arena
}

// give takes a slab back. Memory that is no slab goes the way of all memory.
func (s *slabs) give(b []byte) {
	if cap(b) != s.size {
		return
	}
	s.mu.Lock()
	keep := (len(s.spare)+1)*s.size <= s.most
	if keep {
		s.spare = append(s.spare, b)
	}
	s.mu.Unlock()
	if keep {
		return
	}
	if s.size%os.Getpagesize() == 0 { // of larger pages other slabs have a part
		_ = syscall.Madvise(b, syscall.MADV_DONTNEED)
	}
	s.mu.Lock()
	s.empty = append(s.empty, b)
	s.mu.Unlock()
}

func mapMemory(size int) ([]byte, error) {
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err == nil {
		// Huge pages would stay while any part of one is in use.
		_ = syscall.Madvise(b, syscall.MADV_NOHUGEPAGE)
	}
	return b, err
}
