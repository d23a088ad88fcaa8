package pcap

// sizes determines the segment size of a sender from captured packets, before
// segmentation (super-packets) or after it. The size is the bound, unless the
// packets show that the path carries less.
type sizes struct {
	bound int // from the announced MSS of both ends; 0: unknown
	// assumed: the peer announced none, so the bound is the standard's. announced is
	// the bound without the room for options, which some senders use all the same.
	assumed    bool
	announced  int
	exceeding  int // latest payload above the bound that a single packet can have
	exceedings int // times that it was this
	usual      int // replaces an unknown bound
	size       int // from the packets; 0: unknown
	max        int // largest payload of one segment
	// burst is the largest payload among the latest packets.
	burst, burstNow int

	last  [sizesOver]int // payloads of the latest packets that may be full
	seen  int
	total int
}

const (
	minSegment = 256 // smaller common divisors are coincidence
	sizesOver  = 16  // packets
	fewSizes   = 2   // suffice without a bound, if they are the same
)

// agree sets the bound.
func (s *sizes) agree(announced int, assumed bool, options int) {
	s.bound, s.assumed, s.announced = max(announced-options, 1), assumed, announced
}

// manyExceeding is the number of packets of one size above the bound that disprove it.
const manyExceeding = 3

// exceed lifts the bound if a packet disproves it: one that is larger, no multiple as
// a super-packet is, and not the end of a write, at which a super-packet may have any
// size. What an Ethernet packet cannot hold is a super-packet of other segments.
func (s *sizes) exceed(payload int, push bool) {
	switch {
	case s.bound == 0, payload <= s.bound, payload%s.bound == 0, s.size > 0 && payload%s.size == 0:
		return
	case !s.assumed && (push || payload > max(s.usual, s.announced)):
		return
	}
	if payload != s.exceeding {
		s.exceeding, s.exceedings = payload, 0
	}
	s.exceedings++
	many := s.exceedings >= manyExceeding
	switch {
	case s.assumed && (!push || payload <= s.usual || many):
		s.bound, s.assumed = 0, false
	case !s.assumed && (payload <= s.announced || many):
		s.bound, s.size = payload, 0
	}
}

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

// saw records the payload of a packet, and returns the number of its full segments. A
// small packet with PSH ends a write of the program, and may have any size.
func (s *sizes) saw(payload int, push bool) (full int64) {
	before := s.segment()
	s.learn(payload, push)
	full = int64(payload / s.segment())
	if s.segment() == before {
		return full
	}
	for i, n := range s.last[:min(s.seen, sizesOver)] { // those before it, of another size than it seemed
		if i != (s.seen-1)%sizesOver {
			full += int64(n/s.segment() - n/before)
		}
	}
	return full
}

// learn determines the size.
func (s *sizes) learn(payload int, push bool) {
	s.exceed(payload, push)
	s.max = max(s.max, min(payload, s.limit()))
	s.burstNow = max(s.burstNow, payload)
	if s.total++; s.total%sizesOver == 0 {
		s.burst, s.burstNow = s.burstNow, 0
	}
	if push && payload <= s.limit() {
		return
	}
	if payload > s.size && payload <= s.limit() && s.size > 0 && payload%s.size != 0 {
		s.size = 0 // it is a segment, and larger
	}
	s.last[s.seen%sizesOver] = payload
	s.seen++
	switch {
	case s.bound == 0 && s.seen < sizesOver && s.seen >= fewSizes:
		if size := s.same(); size > 0 || payload > s.size && payload <= s.usual {
			s.size = size
		}
		return
	case s.seen < sizesOver || s.seen%(sizesOver/2) != 0:
		return
	}
	if size := s.found(); size > 0 {
		s.size = size
	}
}

// same is the payload of all packets so far, if it is one that a segment may have; 0:
// they differ.
func (s *sizes) same() int {
	for _, n := range s.last[:s.seen] {
		if n != s.last[0] || n < minSegment || n > s.usual {
			return 0
		}
	}
	return s.last[0]
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
	best, bestMultiples := 0, sizesOver/2
	if s.bound == 0 {
		bestMultiples = sizesOver / 4 // the default is a guess
	}
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
		if best == 0 && multiples > bestMultiples || multiples > bestMultiples+bestMultiples/4 { // clearly more
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
