package stream

import (
	"cmp"
	"slices"
)

// spill keeps bytes that came before their turn, because several lanes carry a flow. A nil
// one has none.
type spill struct {
	chunks []*chunk // by their start; they may overlap
	size   int      // memory of chunks, in bytes
}

// maxSpillChunks bounds the work of a look: some bytes alone take a whole chunk. In three round trips of
// 2 s 16 lanes bring 12 000 records of 8 ms.
const maxSpillChunks = 16 << 10

// Early is memory for bytes that come before their turn.
type Early struct{ c *chunk }

// Space is the memory, for one call of Spilled.
func (e *Early) Space() []byte { return e.c.space() }

// take returns memory for up to want bytes at an offset; nil: none is to be had.
func (s *spill) take(b Budget, offset uint64, want int) *Early {
	i, _ := slices.BinarySearchFunc(s.chunks, offset, func(c *chunk, at uint64) int { return cmp.Compare(c.start, at) })
	if i > 0 {
		if c := s.chunks[i-1]; c.end() == offset && c.users == 0 && len(c.space()) > 0 {
			c.users++
			return &Early{c}
		}
	}
	// The next larger chunk, unless less than half of it would be used.
	class := 0
	for class < len(chunkSizes)-1 && chunkSizes[class] < want && chunkSizes[class+1] < 2*want {
		class++
	}
	if len(s.chunks) >= maxSpillChunks {
		return nil
	}
	for !b.Take(chunkSizes[class], s.size) {
		if class--; class < 0 {
			return nil
		}
	}
	c := newChunk(class, offset)
	c.users++
	s.size += c.size()
	s.chunks = slices.Insert(s.chunks, i, c)
	return &Early{c}
}

// at returns bytes from an offset on, and their chunk; nil: they are not here.
func (s *spill) at(offset uint64) ([]byte, *chunk) {
	if s == nil {
		return nil, nil
	}
	i, _ := slices.BinarySearchFunc(s.chunks, offset+1, func(c *chunk, at uint64) int { return cmp.Compare(c.start, at) })
	for i--; i >= 0 && s.chunks[i].start+ChunkMax > offset; i-- {
		if c := s.chunks[i]; offset < c.end() {
			return c.buf[offset-c.start : c.n], c
		}
	}
	return nil, nil
}

// trim frees what is before an offset.
func (s *spill) trim(b Budget, pos uint64) {
	if s == nil || len(s.chunks) == 0 {
		return
	}
	begun, _ := slices.BinarySearchFunc(s.chunks, pos, func(c *chunk, at uint64) int { return cmp.Compare(c.start, at) })
	kept := 0
	for _, c := range s.chunks[:begun] {
		if c.end() > pos || c.users > 0 {
			s.chunks[kept] = c
			kept++
			continue
		}
		s.size -= c.size()
		c.drop(b)
	}
	if s.chunks = slices.Delete(s.chunks, kept, begun); len(s.chunks) == 0 {
		s.chunks = nil
	}
}

func (s *spill) drop(b Budget) {
	if s == nil {
		return
	}
	for _, c := range s.chunks {
		c.drop(b)
	}
	s.chunks, s.size = nil, 0
}
