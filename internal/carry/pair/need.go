package pair

import "time"

// laneNeed is a flow's time without a lane that it needs.
type laneNeed struct {
	f       *Flow
	since   stamp         // zero: it has one, or needs none
	wokeAt  stamp         // of the latest WAKE; zero: none is waiting for its lane
	outage  time.Duration // together, before since
	resumes int32
	lost    bool // a lane, and none has come in its place
}

// note keeps account of the time without a lane, and asks for one.
func (nd *laneNeed) note() {
	f := nd.f
	need := f.lanes.main() == nil && f.phase != phaseOver && (f.sf.NeedsLane() || f.s.near && !f.phase.known() && !f.sf.Over() && f.leg.open())
	switch {
	case !need && !nd.since.IsZero():
		nd.outage += nd.since.since()
		nd.since = 0
		if !f.lanes.attaching() {
			nd.wokeAt = 0
		}
		f.s.waiting.Add(-1)
	case need && nd.since.IsZero():
		nd.since, nd.wokeAt = stampNow(), 0
		f.s.waiting.Add(1)
	}
	if need && f.s.near && !f.near.queued {
		f.s.link.want(f)
	}
	nd.goAhead()
}

// crowdedOut reports that the flow's client waits with what it sends: a crowd waits for lanes, and the
// flow has its first bytes here. The kernel keeps the others, and no goroutine.
func (nd *laneNeed) crowdedOut() bool {
	f := nd.f
	return f.lanes.main() == nil && f.sf.Out.Kept() > 0 && !f.leg.failed && f.s.isCrowd()
}

// goAhead sends the first bytes ahead of the lane that the flow needs. At the near relay
// the flow may have that lane in place of a lost one, but the far relay has not come to it.
func (nd *laneNeed) goAhead() {
	f := nd.f
	switch {
	case f.s.near && !f.phase.known():
		if f.lanes.main() == nil && !nd.since.IsZero() {
			f.s.openAhead(f)
		}
	case f.lanes.main() == nil && !nd.since.IsZero() || f.lanes.main() != nil && nd.lost && f.lanes.attaching() && !f.s.noResume:
		f.s.wakePeer(f)
	}
}
