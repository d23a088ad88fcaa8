package pattern

import "testing"

// read returns n bytes from an offset on.
func read(offset, n int64) []byte {
	var b []byte
	for int64(len(b)) < n {
		b = append(b, At(offset+int64(len(b)), n-int64(len(b)))...)
	}
	return b
}

func TestMatch(t *testing.T) {
	for _, offset := range []int64{0, 1, 1<<20 - 4, 1<<20 - 3, 1 << 20, 1 << 40} {
		for _, n := range []int64{0, 1, 7, 256 << 10, 3 << 20} {
			b := read(offset, n)
			if !Match(offset, b) {
				t.Errorf("%d bytes from %d on do not match themselves", n, offset)
			}
			if n < 7 {
				continue
			}
			for _, shift := range []int64{-1, 1, 8, 1448, 4096, 1 << 20} {
				if offset+shift >= 0 && Match(offset+shift, b) {
					t.Errorf("%d bytes from %d on match %d further", n, offset, shift)
				}
			}
			b[n/2] ^= 1
			if Match(offset, b) {
				t.Errorf("a changed bit among %d bytes from %d on is not seen", n, offset)
			}
		}
	}
}
