package relay

// sparesKept is the number of unused values of a type that a worker keeps:
// enough for the turnover of one turn.
const sparesKept = 256

// spares recycles values of short flows, which would otherwise be garbage.
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

// put takes back a value that nobody will change. It stays readable until the
// next get.
func (s *spares[T]) put(v *T) {
	if len(*s) < sparesKept {
		*s = append(*s, v)
	}
}
