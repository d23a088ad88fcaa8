package checksum

import (
	"bytes"
	"testing"
)

func TestSum(t *testing.T) {
	for _, test := range []struct {
		name  string
		parts [][]byte
		want  uint16
	}{
		{"nothing", nil, 0},
		{"the example of RFC 1071, section 3", [][]byte{{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}}, 0xddf2},
		{"the same in parts", [][]byte{{0x00, 0x01}, {}, {0xf2, 0x03, 0xf4, 0xf5}, {0xf6, 0xf7}}, 0xddf2},
		{"an odd byte", [][]byte{{0x01, 0x02, 0x03}}, 0x0402},
		{"a carry of a carry", [][]byte{{0xff, 0xff, 0xff, 0xff}}, 0xffff},
		{"the most words of a packet", [][]byte{bytes.Repeat([]byte{0xff}, 65534)}, 0xffff},
	} {
		if got := Sum(test.parts...); got != test.want {
			t.Errorf("%s: %#04x, want %#04x", test.name, got, test.want)
		}
		if got := Of(test.parts...); got != ^test.want {
			t.Errorf("%s: checksum %#04x, want %#04x", test.name, got, ^test.want)
		}
	}
}

// A checksum that is corrected for a changed word is that of the changed data.
func TestAdd(t *testing.T) {
	data := []byte{0x12, 0x34, 0xff, 0xfe, 0x00, 0x01}
	was := Of(data)
	data[0], data[1] = 0xed, 0xcb
	if got, want := ^Add(Add(^was, ^uint16(0x1234)), 0xedcb), Of(data); got != want {
		t.Errorf("corrected checksum %#04x, want %#04x", got, want)
	}
}

func FuzzSum(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5}, 1)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		if at < 0 || 2*at > len(b) {
			return
		}
		if whole, parts := Sum(b), Sum(b[:2*at], b[2*at:]); whole != parts {
			t.Errorf("the sum of the whole is %#04x, that of parts %#04x", whole, parts)
		}
	})
}
