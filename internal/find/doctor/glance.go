package doctor

import "longhaul/internal/sys/tcpinfo"

// Glance names the limit of a connection between two samples, if these alone show it.
// It returns an empty cause if no figure stands out or nothing was sent. It does not
// distinguish a healthy connection from one with needless losses; Diagnose does.
func Glance(before, after Sample) Cause {
	o := Observation{Samples: []Sample{before, after}}
	f := o.Figures()
	c := newPatient(o, f)
	switch {
	case f.Busy < 0.02 || f.GoodputBps == 0 && after.Info.Unacked == 0:
		return ""
	case after.Info.Unacked > 0 && f.GoodputBps == 0 && after.Info.Has(tcpinfo.FieldBackoff) && after.Info.Backoff >= 2:
		return BlackHole
	}
	for _, entry := range causes {
		if !entry.glances {
			continue
		}
		if finding := entry.rule(c); finding != nil {
			return finding.Cause
		}
	}
	switch {
	case f.Queue > 0.5:
		return Congestion
	case c.lost > 0.0005 && after.Info.Missed() >= before.Info.Missed()+fewMissed:
		return RandomLoss
	}
	return ""
}

// fewMissed is the number of lost segments that a short look must see to name losses: a
// busy host's timers make a sender retransmit one or two for nothing.
const fewMissed = 3
