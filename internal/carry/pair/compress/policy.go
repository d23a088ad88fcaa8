package compress

import "sync"

const (
	// minPlain: fewer bytes gain nothing that anybody notices.
	minPlain = 4 << 10
	// sampleSize is how much of a record tells whether the stream shrinks.
	sampleSize = 16 << 10
	// keepsPercent is the most that a record may keep of its size.
	keepsPercent = 80
	// What does not shrink is sampled again after so many bytes, then after twice as many,
	// and so on: a stream that never shrinks has one sample in 64 MiB.
	firstPause, lastPause = 1 << 20, 64 << 20
	// fullFor is how many bytes are compressed since a lane was full: shorter records leave
	// room on it although it is what limits the stream.
	fullFor = 4 << 20
)

// Policy decides which bytes of a stream are compressed. Several lanes may ask it at once.
type Policy struct {
	mu      sync.Mutex
	shrinks bool  // the last bytes that were tried became smaller
	pause   int64 // bytes until the next sample
	paused  int64 // the length of the latest pause
	credit  int64 // bytes until it counts again that lanes are not full
}

// Full takes the news that a lane had no room although there were bytes to send.
func (p *Policy) Full() {
	p.mu.Lock()
	p.credit = fullFor
	p.mu.Unlock()
}

// Append appends the record of plain, if that is worth it; otherwise it returns nil.
func (p *Policy) Append(dst, plain []byte) []byte {
	sample, try := p.next(len(plain))
	if !try {
		return nil
	}
	if sample && len(plain) > sampleSize {
		if part := plain[:sampleSize]; !smaller(Append(dst, part), dst, part) {
			p.tried(false)
			return nil
		}
	}
	record := Append(dst, plain)
	worth := smaller(record, dst, plain)
	p.tried(worth)
	if !worth {
		return nil
	}
	return record
}

// smaller reports whether what was appended to dst is worth it.
func smaller(all, dst, plain []byte) bool {
	return 100*(len(all)-len(dst)) <= keepsPercent*len(plain)
}

// next counts n bytes, and reports whether to compress them, and to look at a sample first.
func (p *Policy) next(n int) (sample, try bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pause > 0 {
		p.pause -= int64(n)
		return false, false
	}
	if n < minPlain || n > MaxPlain || p.credit <= 0 {
		return false, false
	}
	p.credit -= int64(n)
	return !p.shrinks, true
}

func (p *Policy) tried(shrinks bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shrinks = shrinks; shrinks {
		p.paused = 0
		return
	}
	p.paused = min(max(2*p.paused, firstPause), lastPause)
	p.pause = p.paused
}
