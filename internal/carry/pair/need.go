package pair

// noteNeed keeps account of the time without a lane, and asks for one.
func (f *Flow) noteNeed() {
	need := f.lane() == nil && f.phase != phaseOver && (f.sf.NeedsLane() || f.s.near && !f.phase.known() && !f.sf.Over() && f.leg.open())
	switch {
	case !need && !f.needSince.IsZero():
		f.outage += f.needSince.since()
		f.needSince = 0
		if !f.attaching() {
			f.wokeAt = 0
		}
		f.s.waiting.Add(-1)
	case need && f.needSince.IsZero():
		f.needSince, f.wokeAt = stampNow(), 0
		f.s.waiting.Add(1)
	}
	if need && f.s.near && !f.queued {
		f.s.link.want(f)
	}
	f.goAhead()
}

// crowdedOut reports that the flow's client waits with what it sends: a crowd waits for lanes, and the
// flow has its first bytes here. The kernel keeps the others, and no goroutine.
func (f *Flow) crowdedOut() bool {
	return f.lane() == nil && f.sf.Out.Kept() > 0 && !f.leg.failed && f.s.isCrowd()
}

// goAhead sends the first bytes ahead of the lane that the flow needs. At the near relay
// the flow may have that lane in place of a lost one, but the far relay has not come to it.
func (f *Flow) goAhead() {
	switch {
	case f.s.near && !f.phase.known():
		if f.lane() == nil && !f.needSince.IsZero() {
			f.s.openAhead(f)
		}
	case f.lane() == nil && !f.needSince.IsZero() || f.lane() != nil && f.lost && f.attaching() && !f.s.noResume:
		f.s.wakePeer(f)
	}
}
