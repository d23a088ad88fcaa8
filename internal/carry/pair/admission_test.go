package pair

import (
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

// TestAdmission walks handshakes of a crowd through a far relay that computes so many of them a
// second, one after the other. As many run as it takes to keep it busy, and no more.
func TestAdmission(t *testing.T) {
	for _, test := range []struct {
		name        string
		rtt         time.Duration
		rate        float64 // a second
		least, most int     // that run once the number has settled
	}{
		{"two processors", 10 * time.Millisecond, 800, 300, 768},
		{"a fifth of a processor", 10 * time.Millisecond, 100, 40, 110},
		{"a hundredth", 10 * time.Millisecond, 5, leastLaneDials, leastLaneDials},
		{"a thousandth", 10 * time.Millisecond, 0.5, leastLaneDials, leastLaneDials},
		{"a long path", time.Second, 800, 768, 768},
		{"a long path to a slow relay", time.Second, 100, 200, 500},
	} {
		t.Run(test.name, func(t *testing.T) {
			var a admission
			now := time.Unix(1000, 0)
			free := now // when the far relay has computed all that came
			var running []struct{ began, ends time.Time }
			least, most := maxLaneDials, 0
			for done := 0; done < 8000; {
				for len(running) < a.limit(now, test.rtt, len(running)) {
					if at := now.Add(2 * test.rtt); free.Before(at) {
						free = at
					}
					free = free.Add(time.Duration(float64(time.Second) / test.rate))
					ends := now.Add(handshakeTimeout + maxStrain) // the far relay computes in vain
					if free.Before(ends) {
						ends = free
					}
					running = append(running, struct{ began, ends time.Time }{now, ends})
				}
				first := running[0]
				if tick := now.Add(time.Second); first.ends.After(tick) {
					now = tick
					continue
				}
				if first.ends.After(now) {
					now = first.ends
				}
				a.ended(first.began, now, now.Sub(first.began)-3*test.rtt, len(running))
				running = running[1:]
				if done++; done > 4000 {
					least, most = min(least, a.limitNow()), max(most, a.limitNow())
				}
			}
			if least < test.least || most > test.most {
				t.Errorf("%d to %d run, want %d to %d", least, most, test.least, test.most)
			}
		})
	}
}

// TestAdmissionRests holds that a link that was overloaded begins anew after a rest.
func TestAdmissionRests(t *testing.T) {
	var a admission
	now := time.Unix(1000, 0)
	first := a.limit(now, 0, 0)
	for range 10 {
		began := now
		now = now.Add(handshakeTimeout)
		a.ended(began, now, handshakeTimeout, a.most)
	}
	if got := a.limit(now, 0, 0); got != leastLaneDials {
		t.Errorf("%d run after handshakes that take %v, want %d", got, handshakeTimeout, leastLaneDials)
	}
	if got := a.limit(now.Add(admissionRests+1), 0, 1); got != leastLaneDials {
		t.Errorf("%d run beside a handshake that takes long, want %d", got, leastLaneDials)
	}
	if got := a.limit(now.Add(admissionRests+1), 0, 0); got != first {
		t.Errorf("%d run after a rest, want %d", got, first)
	}
}

// TestAdmissionBegins holds that a link's first handshakes, before a round trip is known, bound the later
// ones no more than those.
func TestAdmissionBegins(t *testing.T) {
	const rtt = 200 * time.Millisecond
	now := time.Unix(1000, 0)
	var known, unknown admission
	want := known.limit(now, rtt, 0)
	unknown.limit(now, 0, 0)
	for of, want := range map[time.Duration]int{rtt: want, 2 * rtt: 2 * min(want, maxLaneDials/2), 0: firstLaneDials} {
		if got := unknown.limit(now.Add(time.Second), of, 0); got != want {
			t.Errorf("%d run once the round trip is known as %v, want %d", got, of, want)
		}
	}
	unknown.limit(now.Add(time.Second), rtt, 0)
	began := now.Add(time.Second)
	unknown.ended(began, began.Add(time.Minute), time.Minute, 1)
	if got := unknown.limit(began.Add(time.Minute), rtt, 1); got != want/2 {
		t.Errorf("%d run after one that took a minute, want %d", got, want/2)
	}
}

// TestStrain holds that the longest delay counts, and fades.
func TestStrain(t *testing.T) {
	var s strain
	now := time.Unix(1000, 0)
	s.note(4*time.Second, now)
	s.note(time.Second, now)
	for after, want := range map[time.Duration]time.Duration{
		0: 4 * time.Second, strainHalves: 2 * time.Second, 3 * strainHalves: time.Second / 2, time.Hour: 0} {
		if got := s.now(now.Add(after)); got != want {
			t.Errorf("%v after it a delay of 4 s counts as %v, want %v", after, got, want)
		}
	}
	s.note(time.Hour, now)
	if got := s.now(now); got != maxStrain {
		t.Errorf("an hour counts as %v, want %v", got, maxStrain)
	}
}

// TestLateHandshake holds what the time says that a lane's handshake takes.
func TestLateHandshake(t *testing.T) {
	const rtt = 600 * time.Millisecond
	made := func(rtt time.Duration, repeats uint32) *lane {
		return &lane{frames: frames{bulk: &bulkConn{rtt: rtt, repeats: repeats}}}
	}
	for _, test := range []struct {
		name   string
		slow   time.Duration // how late PONGs come
		lane   *lane
		err    error
		took   time.Duration
		most   int // that may run after it, of 8
		strain bool
	}{
		{"in its round trips", 0, made(rtt, 0), nil, 3 * rtt, 9, false},
		{"in fewer", 0, made(rtt, 0), nil, 2 * rtt, 9, false},
		{"in its round trips, of which the kernel sees those to a box", 0, made(0, 0), nil, 3 * rtt, 9, false},
		{"late", 0, made(rtt, 0), nil, 3*rtt + 9*time.Second, 8, false},
		{"late, as PONGs are", time.Second, made(rtt, 0), nil, 3*rtt + 9*time.Second, 8, true},
		{"late, with a repeated segment", time.Second, made(rtt, 1), nil, 3*rtt + 9*time.Second, 16, false},
		{"no answer", 0, nil, problem(flow.PairOverloaded, "late"), 9 * time.Second, 8, false},
		{"no answer, and late PONGs", time.Second, nil, problem(flow.PairOverloaded, "late"), 9 * time.Second, 8, true},
		{"no path", time.Second, nil, problem(flow.PairPathDown, "cut"), 9 * time.Second, 16, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSession(&process{}, "b", 1, true)
			now := time.Now()
			s.delays.note(now, rtt)
			s.strain.note(test.slow, now)
			l := &Link{laneDials: 8}
			l.admission.most, l.admission.usedAt = 8, now
			if test.most != 9 {
				l.admission.most = 16
			}
			l.laneDialed(s, test.lane, test.err, now.Add(-test.took))
			if got := l.admission.most; got != test.most {
				t.Errorf("%d may run after it, want %d", got, test.most)
			}
			if got := s.strained() >= 8*time.Second; got != test.strain {
				t.Errorf("it shows strain: %v, want %v", got, test.strain)
			}
		})
	}
}

// TestLatePong holds that a PONG is late beyond the path's round trip, of which the kernel may know only
// that to a box.
func TestLatePong(t *testing.T) {
	const rtt = time.Minute
	for _, late := range []time.Duration{0, 2 * maxStrain} {
		here, _ := tcpPair(t)
		bulk, err := newBulkConn(here)
		nettest.Must(t, err)
		s := newSession(&process{}, "b", 1, true)
		s.delays.note(time.Now(), rtt)
		ctl := newControl(&connection{bulk: bulk})
		ctl.ping, ctl.pinged = 1, time.Now().Add(-rtt-late)
		sent, took, known, ok := ctl.takePong(1)
		if !ok {
			t.Fatal("the PONG is of another PING")
		}
		s.measured(sent, took, known)
		if got := s.strained() > maxStrain/2; got != (late > 0) {
			t.Errorf("a PONG %v beyond the round trip shows a strain of %v", late, s.strained())
		}
	}
}
