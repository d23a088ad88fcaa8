package portrange

import (
	"os"
	"strconv"
	"strings"
)

// The kernel's settings (ip-sysctl).
const (
	localFile    = "/proc/sys/net/ipv4/ip_local_port_range"
	reservedFile = "/proc/sys/net/ipv4/ip_local_reserved_ports"
)

// Local is the range of which the kernel gives ports to outgoing connections; every port if it
// cannot be read.
func Local() Range {
	text, _ := os.ReadFile(localFile)
	if f := strings.Fields(string(text)); len(f) == 2 {
		if r, ok := parse(f[0] + "-" + f[1]); ok {
			return r
		}
	}
	return Range{0, 0xffff}
}

// Outgoing are the ports that the kernel gives to outgoing connections: those of [Local] that are
// not reserved.
func Outgoing() []Range {
	text, _ := os.ReadFile(reservedFile)
	return without(Local(), string(text))
}

// without takes the ports of a kernel's list, such as "8080,9000-9010", out of a range. The list is
// sorted.
func without(r Range, list string) (left []Range) {
	next := int(r.First)
	for word := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		gap, ok := parse(word)
		if !ok || int(gap.Last) < next || gap.First > r.Last {
			continue
		}
		if int(gap.First) > next {
			left = append(left, Range{uint16(next), gap.First - 1})
		}
		next = int(gap.Last) + 1
	}
	if next <= int(r.Last) {
		left = append(left, Range{uint16(next), r.Last})
	}
	return left
}

// parse reads "port" or "first-last".
func parse(word string) (Range, bool) {
	low, high, ok := strings.Cut(word, "-")
	if !ok {
		high = low
	}
	first, err1 := strconv.ParseUint(low, 10, 16)
	last, err2 := strconv.ParseUint(high, 10, 16)
	return Range{uint16(first), uint16(last)}, err1 == nil && err2 == nil && first <= last
}
