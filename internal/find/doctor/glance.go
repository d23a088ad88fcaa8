package doctor

import (
	"sync"

	"longhaul/internal/sys/tcpinfo"
)

// glanced is what a Glance looks at. Each of a thousand flows in a second would leave 2 KB of garbage.
type glanced struct {
	samples [2]Sample
	patient patient
}

var glances = sync.Pool{New: func() any { return new(glanced) }}

// Glance names the limit of a connection between two samples, if these alone show it.
// It returns an empty cause if no figure stands out or nothing was sent. It does not
// distinguish a healthy connection from one with needless losses; Diagnose does.
func Glance(before, after Sample) Cause {
	at := glances.Get().(*glanced)
	defer glances.Put(at)
	at.samples = [2]Sample{before, after}
	o := Observation{Samples: at.samples[:]}
	f := o.Figures()
	c := &at.patient
	c.begin(o, f)
	switch {
	case c.closed():
		return Reader
	case f.Busy < 0.02 || f.GoodputBps == 0 && after.Info.Unacked == 0:
		return ""
	case after.Info.Unacked > 0 && f.GoodputBps == 0 && after.Info.Has(tcpinfo.FieldBackoff) && after.Info.Backoff >= 2:
		return Stalled
	}
	for _, entry := range causes {
		if !entry.glances {
			continue
		}
		if finding := entry.rule(c); finding != nil {
			return finding.Cause
		}
	}
	// A queue may be the connection's own, and losses those that it takes to find the
	// path's rate. After a time-out it may be the end of all that gets through.
	if after.Info.Backoff == 0 && f.Queue < queued && c.lost > 0.0005 && after.Info.Missed() >= before.Info.Missed()+fewMissed {
		return Loss
	}
	return ""
}

// fewMissed is the number of lost segments that a short look must see to name losses: a
// busy host's timers make a sender retransmit one or two for nothing.
const fewMissed = 3
