package pair

import "time"

// maxLaneDials bounds handshakes of lanes at the same time: after an outage each
// flow needs one. It stays below the far relay's maxHandshakes.
const maxLaneDials = 768

// A handshake that takes this much longer than its round trips waits for a processor, here
// or there. Up to growsWithin more of them may run, beyond shrinksBeyond fewer.
const growsWithin = 500 * time.Millisecond

const (
	// leastLaneDials are the handshakes of lanes that may always run at the same time, and
	// those for each round trip with which a link begins: one beginning each millisecond.
	leastLaneDials = 8
	firstLaneDials = 64
	firstDialEvery = time.Millisecond
	shrinksBeyond  = time.Second
	// admissionRests is the time without a handshake after which a link begins as a new one.
	admissionRests = 10 * time.Second
)

// admission bounds the handshakes of a link's lanes that run at the same time, to about as many
// as finish in half a second beyond their round trips. Further ones would only take memory and make all
// late, until none ends in its time. Flows that wait meanwhile get lanes of flows that end.
type admission struct {
	most   int
	first  int       // with which a link begins on the path as it is known; 0: the path counts no more
	cutAt  time.Time // of the latest reduction
	usedAt time.Time
}

// limit is how many may run now, on a path with a round trip without queues. running are those that do. A
// link begins before it knows its round trip, so this counts until handshakes have shown more.
func (a *admission) limit(now time.Time, rtt time.Duration, running int) int {
	first := min(max(firstLaneDials, int(2*rtt/firstDialEvery)), maxLaneDials)
	switch {
	case a.most == 0, running == 0 && now.Sub(a.usedAt) > admissionRests:
		a.most, a.first, a.usedAt = firstLaneDials, first, now
	case a.first != 0:
		a.first = first
	}
	return a.limitNow()
}

func (a *admission) limitNow() int { return max(a.most, a.first) }

// ended takes the news of a handshake with the time that it took beyond its round trips. running
// are those that ran at the same time.
func (a *admission) ended(began, now time.Time, late time.Duration, running int) {
	a.usedAt = now
	switch {
	case late > shrinksBeyond && began.After(a.cutAt):
		// Once for all that ran then, and to no less than a half.
		share := max(growsWithin.Seconds()/late.Seconds(), 0.5)
		a.most, a.first, a.cutAt = max(int(share*float64(a.limitNow())), leastLaneDials), 0, now
	case late <= growsWithin && 2*running >= a.limitNow():
		a.most = min(a.limitNow()+1, maxLaneDials)
	}
}
