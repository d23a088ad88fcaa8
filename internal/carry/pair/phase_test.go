package pair

import "testing"

// TestPhase holds where each event takes a flow from each phase.
func TestPhase(t *testing.T) {
	t.Parallel()
	const (
		fresh, asked, known, dialing = phaseFresh, phaseAsked, phaseKnown, phaseDialing
		refused, open, orphaned      = phaseRefused, phaseOpen, phaseOrphaned
		over                         = phaseOver
	)
	for e, to := range [phaseEvents][phases]phase{
		//            fresh     asked     known     dialing   refused   open      orphaned  over
		eventAsk:     {asked, asked, known, dialing, refused, open, orphaned, over},
		eventHeard:   {known, known, known, dialing, refused, open, orphaned, over},
		eventOpened:  {open, open, open, open, refused, open, orphaned, over},
		eventRefused: {fresh, asked, known, refused, refused, open, orphaned, over},
		eventUnsent:  {fresh, fresh, fresh, dialing, refused, open, orphaned, over},
		eventGone:    {orphaned, orphaned, orphaned, orphaned, orphaned, orphaned, orphaned, over},
		eventOver:    {over, over, over, over, over, over, over, over},
	} {
		for from, want := range to {
			p := phase(from)
			if p.take(phaseEvent(e)); p != want {
				t.Errorf("event %d takes phase %d to %d, want %d", e, from, p, want)
			}
		}
	}
}
