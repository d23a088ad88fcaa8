package flow

// Sent counts the data that legs sent. A negative count is unknown.
type Sent struct {
	Bytes int64 // retransmissions included
	Again int64 // bytes that were retransmitted
	// Missed counts the retransmitted segments without those that the peer reported to
	// have had already (DSACK): these were sent again for nothing, and were not lost.
	Missed int64
}

// Level says how much of the data of legs was retransmitted.
type Level string

// The levels. Below [minSegments] there is none: a busy host's timers make a sender
// retransmit a few segments on a path that loses none.
const (
	LevelUnknown Level = ""
	LevelLow     Level = "low"
	LevelRaised  Level = "raised" // the path deserves attention
	LevelHigh    Level = "high"   // the path suffers
)

// The bounds of the levels.
const (
	RaisedShare = 0.001
	HighShare   = 0.01

	minSegments = 1000
	minMissed   = 5
	segment     = 1448 // bytes of a usual one; a lower bound of the share where segments are larger
)

// Plus adds counts of another leg or time.
func (s Sent) Plus(o Sent) Sent {
	return Sent{s.Bytes + max(o.Bytes, 0), s.Again + max(o.Again, 0), s.Missed + max(o.Missed, 0)}
}

// Share is the part of the data that was retransmitted; negative: nothing was sent, or
// it is not known.
func (s Sent) Share() float64 {
	if s.Bytes <= 0 || s.Again < 0 {
		return -1
	}
	return min(1, float64(s.Again)/float64(s.Bytes))
}

// Level judges the data that the peer missed.
func (s Sent) Level() Level {
	if s.Bytes < minSegments*segment || s.Again < 0 || s.Missed < 0 {
		return LevelUnknown
	}
	missed := min(s.Share(), float64(s.Missed)*segment/float64(s.Bytes))
	switch {
	case s.Missed < minMissed || missed < RaisedShare:
		return LevelLow
	case missed < HighShare:
		return LevelRaised
	}
	return LevelHigh
}

// Sent is what a leg sent until its end.
func (l *LegRecord) Sent() Sent { return Sent{l.BytesSent, l.BytesRetransmitted, l.Retransmits} }
