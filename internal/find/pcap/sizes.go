package pcap

// sizes determines the segment size of a sender from captured packets, before
// segmentation (super-packets) or after it. The size is the bound, unless the
// packets show that the path carries less.
type sizes struct {
	bound int // from the announced MSS of both ends; 0: unknown
	usual int // replaces an unknown bound
	size  int // from the packets; 0: unknown
	max   int // largest payload of one segment
	// burst is the largest payload among the latest packets.
	burst, burstNow int

	last  [sizesOver]int // payloads of the latest packets that may be full
	seen  int
	total int
}

const (
	minSegment = 256 // smaller common divisors are coincidence
	sizesOver  = 16  // packets
)

// limit is the bound or its replacement.
func (s *sizes) limit() int {
	if s.bound > 0 {
		return s.bound
	}
	return s.usual
}

// segment is the segment size, in bytes of payload.
func (s *sizes) segment() int {
	if s.size > 0 {
		return s.size
	}
	return s.limit()
}

// saw records the payload of a packet. A small packet with PSH ends a write of
// the program, and may have any size.
func (s *sizes) saw(payload int, push bool) {
	s.max = max(s.max, min(payload, s.limit()))
	s.burstNow = max(s.burstNow, payload)
	if s.total++; s.total%sizesOver == 0 {
		s.burst, s.burstNow = s.burstNow, 0
	}
	if push && payload <= s.limit() {
		return
	}
	s.last[s.seen%sizesOver] = payload
	s.seen++
	if s.seen < sizesOver || s.seen%(sizesOver/2) != 0 {
		return
	}
	if size := s.found(); size > 0 {
		s.size = size
	}
}

// found is the size of which most of the latest packets are multiples.
// Candidates are the bound, the largest packet below it, and a common divisor;
// 0 if there is none.
func (s *sizes) found() int {
	largest, common := 0, 0
	for _, n := range s.last {
		common = divisor(common, n)
		if n <= s.limit() {
			largest = max(largest, n)
		}
	}
	best, bestMultiples := 0, sizesOver/4
	for _, size := range []int{s.limit(), largest, common, common / max(1, (common+s.limit()-1)/s.limit())} {
		if size < minSegment || s.bound > 0 && size > s.bound {
			continue
		}
		multiples := 0
		for _, n := range s.last {
			if n%size == 0 {
				multiples++
			}
		}
		if multiples > bestMultiples {
			best, bestMultiples = size, multiples
		}
	}
	return best
}

func divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
