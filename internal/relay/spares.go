package relay

// sparesKept is how many unused values of a kind a worker keeps: enough for
// the turnover of one turn, little beside what the flows need.
const sparesKept = 256

// spares keeps what short connections would otherwise have the garbage
// collector find.
type spares[T any] []*T

// get returns a zero value.
func (s *spares[T]) get() *T {
	n := len(*s)
	if n == 0 {
		return new(T)
	}
	v := (*s)[n-1]
	(*s)[n-1] = nil
	*s = (*s)[:n-1]
	var zero T
	*v = zero
	return v
}

// put takes back what will not be changed any more. It can be read until the
// next get.
func (s *spares[T]) put(v *T) {
	if len(*s) < sparesKept {
		*s = append(*s, v)
	}
}
