package pair

import (
	"cmp"
	"sync/atomic"
	"time"
)

const (
	tickEvery = 100 * time.Millisecond
	pingEvery = time.Second
	// pongWithin is the shortest time for an answer of the other relay.
	pongWithin = 2 * time.Second
	// maxRTT is the longest round trip that a path has. A PONG that takes longer has met
	// a relay without a processor, of which no deadline may depend for long.
	maxRTT = 2 * time.Second
	// owesFloor is the time after which the kernel repeats a segment that was lost, beside a round trip,
	// and a little.
	owesFloor = 250 * time.Millisecond
	// refusedEvery is the time between two attempts while something answers and refuses: it may be somebody's
	// server, to which each of them is an odd client.
	refusedEvery = 2 * time.Second
	// laneErrSettles is how long no lane can be made until a session's state says so.
	laneErrSettles = time.Second
	// crowd is the least number of flows without a lane that share what goes ahead, so that all go on
	// soon: all together twice maxAhead.
	crowd = 32
)

// timing is how long the other process may take for an answer. The round trip is that of the control
// connection.
type timing struct {
	srtt       atomic.Int64 // nanoseconds; 0: not measured
	rttvar     atomic.Int64
	delays     delays
	here       *strain      // of this process
	strain     strain       // of both processes, as PONGs show it
	dialStrain strain       // as handshakes of lanes show it beside late PONGs
	waiting    atomic.Int64 // flows that need a lane and have none
	resuming   atomic.Int64 // those that had a target at the latest look
	served     atomic.Int64 // stamp of when a flow last got a lane; 0: never
}

func (t *timing) rtt() time.Duration { return time.Duration(t.srtt.Load()) }

// patience is max(floor, n round trips): how long an answer may take.
func (t *timing) patience(floor time.Duration, n int) time.Duration {
	return max(floor, time.Duration(n)*t.rtt(), t.rtt()+4*time.Duration(t.rttvar.Load()))
}

// connectWithin bounds a connect: beyond it a fresh socket is faster than the kernel's
// repeated SYN, and sooner than the path is known to be slow, it is not.
func (t *timing) connectWithin() time.Duration {
	late := t.here.now(time.Now()) // to see that the connection stands
	if t.rtt() == 0 {
		return handshakeTimeout + late
	}
	return t.patience(time.Second, 4) + late
}

// strained is how much longer than on its path alone an answer may take: this process waits for a
// processor, or the session's other one has answered late.
func (t *timing) strained() time.Duration {
	now := time.Now()
	return max(t.slow(now), t.dialStrain.now(now))
}

// slow is the strain that does not depend on lanes.
func (t *timing) slow(now time.Time) time.Duration {
	return max(t.here.now(now), t.strain.now(now))
}

// noteDial takes the delay of a lane's handshake. It shows strain only beside other signs of that: a slow
// path delays handshakes as well, and a box may take new connections and pass nothing on.
func (t *timing) noteDial(late time.Duration, now time.Time) {
	if t.slow(now) >= growsWithin {
		t.dialStrain.note(late, now)
	}
}

// least is the round trip without queues of a connection whose kernel knows this one: behind a box that
// ends TCP that is the round trip to the box.
func (t *timing) least(known time.Duration) time.Duration { return max(known, t.delays.without()) }

// answerWithin is patience with an answer of the other process, not only of its kernel.
func (t *timing) answerWithin(floor time.Duration, n int) time.Duration {
	return t.patience(floor, n) + t.strained()
}

// suspectWithin is how long what is under way may make no progress.
func (t *timing) suspectWithin() time.Duration { return t.patience(suspectAfter, 4) }

// owesWithin is how long the far relay may owe an answer until new flows go to other hops: a PING that was
// lost once is answered within it. Nothing is reset for that, so what a far relay without a processor takes
// longer does not count. What this process does does: its PING may have gone out late. handshake is the
// round trip that counts until one is measured.
func (t *timing) owesWithin(now time.Time, handshake time.Duration) time.Duration {
	return owesFloor + 2*cmp.Or(t.rtt(), handshake) + t.here.now(now)
}

// parkAfter is the silence after which a flow gives its lane back: soon, while a crowd waits for
// lanes. To wake takes far less than another handshake.
func (t *timing) parkAfter(usual time.Duration) time.Duration {
	if t.isCrowd() {
		return min(usual, t.answerWithin(time.Second, 8))
	}
	return usual
}

// isCrowd reports that so many flows wait for a lane.
func (t *timing) isCrowd() bool { return t.waiting.Load() >= crowd }

// isCrowded reports that so many standing flows wait for one. New flows count as no crowd: they come at all
// times, and more of them to the hop that has none.
func (t *timing) isCrowded() bool { return t.resuming.Load() >= crowd }

// stands reports that no flow of the session has got a lane for so long. While others get
// lanes, the turn of each comes.
func (t *timing) stands(long time.Duration, now time.Time) bool {
	served := stamp(t.served.Load())
	return served.IsZero() || served.until(now) > long
}

// measured takes a round trip of the control connection; known is its kernel's, 0: of no use. It is
// smoothed as TCP's (RFC 6298).
func (t *timing) measured(sent time.Time, rtt, known time.Duration) {
	t.delays.note(sent, rtt)
	if known > 0 {
		t.strain.note(rtt-t.least(known), time.Now())
	}
	rtt = min(rtt, maxRTT)
	old := t.rtt()
	if old == 0 {
		t.srtt.Store(int64(rtt))
		t.rttvar.Store(int64(rtt / 2))
		return
	}
	deviation := (old - rtt).Abs()
	t.rttvar.Store((3*t.rttvar.Load() + int64(deviation)) / 4)
	t.srtt.Store((7*int64(old) + int64(rtt)) / 8)
}
