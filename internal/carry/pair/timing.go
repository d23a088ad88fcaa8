package pair

import "time"

func (s *session) rtt() time.Duration { return time.Duration(s.srtt.Load()) }

// patience is max(floor, n round trips): how long an answer may take.
func (s *session) patience(floor time.Duration, n int) time.Duration {
	return max(floor, time.Duration(n)*s.rtt(), s.rtt()+4*time.Duration(s.rttvar.Load()))
}

// connectWithin bounds a connect: beyond it a fresh socket is faster than the kernel's
// repeated SYN, and sooner than the path is known to be slow, it is not.
func (s *session) connectWithin() time.Duration {
	late := s.node.strained() // to see that the connection stands
	if s.rtt() == 0 {
		return handshakeTimeout + late
	}
	return s.patience(time.Second, 4) + late
}

// strained is how much longer than on its path alone an answer may take: this process waits for a
// processor, or the session's other one has answered late.
func (s *session) strained() time.Duration {
	now := time.Now()
	return max(s.slow(now), s.dialStrain.now(now))
}

// slow is the strain that does not depend on lanes.
func (s *session) slow(now time.Time) time.Duration {
	return max(s.node.strain.now(now), s.strain.now(now))
}

// noteDial takes the delay of a lane's handshake. It shows strain only beside other signs of that: a slow
// path delays handshakes as well, and a box may take new connections and pass nothing on.
func (s *session) noteDial(late time.Duration, now time.Time) {
	if s.slow(now) >= growsWithin {
		s.dialStrain.note(late, now)
	}
}

// least is the round trip without queues of a connection whose kernel knows this one: behind a box that
// ends TCP that is the round trip to the box.
func (s *session) least(known time.Duration) time.Duration { return max(known, s.delays.without()) }

// answerWithin is patience with an answer of the other process, not only of its kernel.
func (s *session) answerWithin(floor time.Duration, n int) time.Duration {
	return s.patience(floor, n) + s.strained()
}

// suspectWithin is how long what is under way may make no progress.
func (s *session) suspectWithin() time.Duration { return s.patience(suspectAfter, 4) }

// parkAfter is the silence after which a flow gives its lane back: soon, while a crowd waits for
// lanes. To wake takes far less than another handshake.
func (s *session) parkAfter() time.Duration {
	after := s.node.options.ParkAfter
	if int(s.waiting.Load()) >= crowd {
		after = min(after, s.answerWithin(time.Second, 8))
	}
	return after
}

// stands reports that no flow of the session has got a lane for so long. While others get
// lanes, the turn of each comes.
func (s *session) stands(long time.Duration, now time.Time) bool {
	served := stamp(s.served.Load())
	return served.IsZero() || served.until(now) > long
}

// pong takes the answer to a PING. The round trip is smoothed as TCP's (RFC 6298).
func (s *session) pong(ctl *control, id uint64) {
	ctl.mu.Lock()
	sent, repeats := ctl.pinged, ctl.repeats
	ours, rtt := ctl.ping == id && id != 0, time.Since(sent)
	if ours {
		ctl.ping = 0
	}
	ctl.mu.Unlock()
	if !ours {
		return
	}
	s.delays.note(sent, rtt)
	if known, now := pathOf(ctl.c.bulk); now == repeats {
		s.strain.note(rtt-s.least(known), time.Now())
	}
	rtt = min(rtt, maxRTT)
	old := time.Duration(s.srtt.Load())
	if old == 0 {
		s.srtt.Store(int64(rtt))
		s.rttvar.Store(int64(rtt / 2))
		return
	}
	deviation := (old - rtt).Abs()
	s.rttvar.Store((3*s.rttvar.Load() + int64(deviation)) / 4)
	s.srtt.Store((7*int64(old) + int64(rtt)) / 8)
}

// maxRTT is the longest round trip that a path has. A PONG that takes longer has met
// a relay without a processor, of which no deadline may depend for long.
const maxRTT = 2 * time.Second

const pingEvery = time.Second

// A handshake that takes this much longer than its round trips waits for a processor, here
// or there. Up to growsWithin more of them may run, beyond shrinksBeyond fewer.
const growsWithin = 500 * time.Millisecond
