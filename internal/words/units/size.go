package units

import (
	"fmt"
	"strings"
)

// Size is a number of bytes.
type Size int64

var sizeUnits = []unit{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40},
}

// ParseSize reads a number of bytes: "16MiB" (binary), "16MB" (decimal), "1460B" or a
// bare "1460". A lone letter is binary, as in iperf3 and GNU's programs: "16M" is "16MiB".
func ParseSize(s string) (Size, error) {
	number, factor := s, 1.0
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			number, factor = rest, u.factor
			break
		}
	}
	v, err := scale(number, factor)
	if err != nil {
		return 0, fmt.Errorf("invalid size %q", s)
	}
	return Size(v), nil
}

// String writes the size with the largest unit that keeps it whole.
func (s Size) String() string {
	for _, u := range []unit{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if f := Size(u.factor); s >= f && s%f == 0 {
			return fmt.Sprintf("%d%s", s/f, u.suffix)
		}
	}
	return fmt.Sprintf("%dB", s)
}

// FormatSize writes bytes for people, with three digits: "24 MiB", "1.5 KiB".
func FormatSize(bytes float64) string {
	return scaled(bytes, 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
}
