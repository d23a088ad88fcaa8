package stream

import "slices"

// The sizes of chunks in bytes: a flow begins with the smallest and takes the next
// one when it has filled one. With the head of their frame they fill TLS records.
var chunkSizes = [...]int{4<<10 - frameHead, 32<<10 - frameHead, 64<<10 - frameHead, ChunkMax}

// chunkShare is the least number of chunks in what a store may keep of each lane: the first one
// may be acknowledged but for its last byte, and the last one may be empty.
const chunkShare = 8

const frameHead = 16

// ChunkMax is the most bytes of one chunk, and so of one frame.
const ChunkMax = 256<<10 - frameHead

// memory has the slabs of each size. The head of a frame, for which they have room, lies elsewhere.
var memory = [len(chunkSizes)]slabs{
	{size: chunkSizes[0] + frameHead, most: 1 << 20}, {size: chunkSizes[1] + frameHead, most: 1 << 20},
	{size: chunkSizes[2] + frameHead, most: 1 << 20}, {size: chunkSizes[3] + frameHead, most: 16 << 20}}

// Budget bounds the memory of all stores of a process.
type Budget interface {
	// Take reserves n bytes for a store that has held bytes; it reports false if they would
	// pass its bound. A store that has little gets them in any case: it would never go on.
	Take(n, held int) bool
	// Give returns n bytes, also those that were taken without asking.
	Give(n int)
	// Force reserves n bytes beyond the bound.
	Force(n int)
}

// chunk is a piece of memory with successive bytes of a stream.
type chunk struct {
	class int
	buf   []byte
	start uint64 // offset in the stream of the first byte
	n     int    // bytes
	users int    // calls that use the memory without the flow's lock
	gone  bool   // nobody needs the bytes but they
}

func newChunk(class int, start uint64) *chunk {
	return &chunk{class: class, buf: memory[class].take()[:chunkSizes[class]], start: start}
}

func (c *chunk) size() int     { return chunkSizes[c.class] }
func (c *chunk) end() uint64   { return c.start + uint64(c.n) }
func (c *chunk) space() []byte { return c.buf[c.n:] }

// drop frees the chunk as soon as nobody uses its memory.
func (c *chunk) drop(b Budget) {
	c.gone = true
	c.free(b)
}

// leave ends a use of the memory.
func (c *chunk) leave(b Budget) {
	c.users--
	c.free(b)
}

func (c *chunk) free(b Budget) {
	if c.gone && c.users == 0 {
		memory[c.class].give(c.buf[:cap(c.buf)])
		c.buf = nil
		b.Give(c.size())
	}
}

// store keeps the bytes from base on, up to what was committed.
type store struct {
	from    *Budget
	chunks  []*chunk
	size    uint32 // memory of chunks, in bytes
	largest int8   // the highest class of a chunk
	grown   int8   // the class of the next chunk
}

func (s *store) budget() Budget { return *s.from }

// space returns room behind the last byte; nil if the budget has none, unless must is set.
func (s *store) space(at uint64, must bool) []byte {
	if n := len(s.chunks); n > 0 && len(s.chunks[n-1].space()) > 0 {
		return s.chunks[n-1].space()
	}
	class := int(min(s.grown, s.largest))
	for class > 0 && !s.budget().Take(chunkSizes[class], int(s.size)) {
		class--
	}
	if class == 0 && !s.budget().Take(chunkSizes[0], int(s.size)) {
		if !must {
			return nil
		}
		s.budget().Force(chunkSizes[0])
	}
	c := newChunk(class, at)
	s.chunks = append(s.chunks, c)
	s.size += uint32(c.size())
	return c.space()
}

// setLargest bounds the memory of one chunk, in bytes, unless that is too little.
func (s *store) setLargest(bytes int) {
	s.largest = 1
	for int(s.largest) < len(chunkSizes)-1 && chunkSizes[s.largest+1] <= bytes {
		s.largest++
	}
}

// commit counts n bytes that were written to space.
func (s *store) commit(n int) {
	last := s.chunks[len(s.chunks)-1]
	if last.n += n; len(last.space()) == 0 {
		s.grown = int8(min(last.class+1, len(chunkSizes)-1))
	}
}

// trim frees chunks whose bytes are all before base, and an empty one.
func (s *store) trim(base uint64) {
	n := 0
	for n < len(s.chunks) && s.chunks[n].end() <= base {
		s.size -= uint32(s.chunks[n].size())
		s.chunks[n].drop(s.budget())
		n++
	}
	if n == 0 {
		return
	}
	if s.chunks = append(s.chunks[:0], s.chunks[n:]...); len(s.chunks) == 0 {
		s.chunks = nil
	}
}

// at returns the bytes of one chunk from an offset on.
func (s *store) at(offset uint64) (b []byte, of *chunk) {
	i, _ := slices.BinarySearchFunc(s.chunks, offset, func(c *chunk, at uint64) int {
		if c.end() <= at {
			return -1
		}
		return 1
	})
	if i == len(s.chunks) {
		return nil, nil
	}
	c := s.chunks[i]
	return c.buf[offset-c.start : c.n], c
}
