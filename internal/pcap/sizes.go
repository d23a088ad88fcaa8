package pcap

// sizes finds the size of a sender's segments from what was captured, which
// may be before segmentation (super-packets of many segments) or after. It is
// the bound, unless what is sent shows that the path carries less.
type sizes struct {
	bound int // by the MSS that the two ends announced; 0 where unknown
	usual int // taken for the bound where it is unknown
	size  int // found; 0 where nothing was
	max   int // largest payload of one segment
	// burst is the largest payload of the last packets.
	burst, burstNow int

	last  [sizesOver]int // payloads of the last packets that may be full
	seen  int
	total int
}

const (
	leastSegment = 256 // smaller common divisors are those of chance
	sizesOver    = 16  // packets
)

// limit is the bound, or what is taken for it.
func (s *sizes) limit() int {
	if s.bound > 0 {
		return s.bound
	}
	return s.usual
}

// segment is the size, in bytes of payload.
func (s *sizes) segment() int {
	if s.size > 0 {
		return s.size
	}
	return s.limit()
}

// saw takes in the payload of a packet. A small one with PSH ends what the
// program wrote, and may be of any size.
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

// found is the size of which most of the last packets are whole multiples: the
// bound, the largest packet below it, or what goes into all of them; 0 where
// they show none.
func (s *sizes) found() int {
	largest, common := 0, 0
	for _, n := range s.last {
		common = divisor(common, n)
		if n <= s.limit() {
			largest = max(largest, n)
		}
	}
	best, most := 0, sizesOver/4
	for _, size := range []int{s.limit(), largest, common, common / max(1, (common+s.limit()-1)/s.limit())} {
		if size < leastSegment || s.bound > 0 && size > s.bound {
			continue
		}
		multiples := 0
		for _, n := range s.last {
			if n%size == 0 {
				multiples++
			}
		}
		if multiples > most {
			best, most = size, multiples
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
