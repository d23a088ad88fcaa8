package stream

import "sync"

// The sizes of chunks in bytes: a flow begins with the smallest and takes the next
// one when it has filled one. With the head of their frame they fill TLS records.
var chunkSizes = [...]int{4<<10 - frameHead, 32<<10 - frameHead, ChunkMax}

const frameHead = 16

// ChunkMax is the most bytes of one chunk, and so of one frame.
const ChunkMax = 256<<10 - frameHead

var pools = [len(chunkSizes)]sync.Pool{}

// Budget bounds the memory of all stores of a process.
type Budget interface {
	// Take reserves n bytes; it reports false if they would pass the bound.
	Take(n int) bool
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
	c, _ := pools[class].Get().(*chunk)
	if c == nil {
		c = &chunk{class: class, buf: make([]byte, chunkSizes[class])}
	}
	c.start, c.n, c.gone = start, 0, false
	return c
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
		b.Give(c.size())
		pools[c.class].Put(c)
	}
}

// store keeps the bytes from base on, up to what was committed.
type store struct {
	budget Budget
	chunks []*chunk
	grown  int // the class of the next chunk
}

// space returns room behind the last byte; nil if the budget has none, unless must is set.
func (s *store) space(at uint64, must bool) []byte {
	if n := len(s.chunks); n > 0 && len(s.chunks[n-1].space()) > 0 {
		return s.chunks[n-1].space()
	}
	class := s.grown
	for class > 0 && !s.budget.Take(chunkSizes[class]) {
		class--
	}
	// The smallest chunk is beyond every bound for a flow that has none: it would
	// never go on.
	if class == 0 && !s.budget.Take(chunkSizes[0]) {
		if len(s.chunks) > 0 && !must {
			return nil
		}
		s.budget.Force(chunkSizes[0])
	}
	c := newChunk(class, at)
	s.chunks = append(s.chunks, c)
	return c.space()
}

// commit counts n bytes that were written to space.
func (s *store) commit(n int) {
	last := s.chunks[len(s.chunks)-1]
	if last.n += n; len(last.space()) == 0 {
		s.grown = min(last.class+1, len(chunkSizes)-1)
	}
}

// trim frees chunks whose bytes are all before base, and an empty one.
func (s *store) trim(base uint64) {
	n := 0
	for n < len(s.chunks) && s.chunks[n].end() <= base {
		s.chunks[n].drop(s.budget)
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
	for _, c := range s.chunks {
		if offset < c.end() {
			return c.buf[offset-c.start : c.n], c
		}
	}
	return nil, nil
}
