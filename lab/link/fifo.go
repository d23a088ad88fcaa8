package link

// fifo is a queue in a ring that grows as needed and never shrinks.
type fifo[T any] struct {
	ring       []T // length a power of two
	head, tail uint64
}

func (f *fifo[T]) len() int { return int(f.tail - f.head) }

// front must not be called on an empty queue.
func (f *fifo[T]) front() *T { return &f.ring[f.head&uint64(len(f.ring)-1)] }

func (f *fifo[T]) push(v T) {
	if f.len() == len(f.ring) {
		grown := make([]T, max(64, 2*len(f.ring)))
		for i := range f.len() {
			grown[i] = f.ring[(f.head+uint64(i))&uint64(len(f.ring)-1)]
		}
		f.ring, f.head, f.tail = grown, 0, uint64(f.len())
	}
	f.ring[f.tail&uint64(len(f.ring)-1)] = v
	f.tail++
}

func (f *fifo[T]) pop() T {
	v := *f.front()
	var zero T
	*f.front() = zero
	f.head++
	return v
}
