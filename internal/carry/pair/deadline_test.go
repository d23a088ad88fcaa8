package pair

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

// TestClientsOfAnOutage holds how long a client waits that comes before a session, in an
// outage, or while nothing is wrong but that no lane can be made.
func TestClientsOfAnOutage(t *testing.T) {
	const deadline, resume = 10 * time.Second, time.Minute
	failed := errors.New("no port is free")
	for _, test := range []struct {
		name    string
		late    time.Duration // for which the relay waits for a processor, until the client has come
		proven  time.Duration // after that, while an attempt for the first session lacks HELLO alone; 0: none does
		before  time.Duration // until the first session stands
		comes   time.Duration // after that
		outage  time.Duration // after the client has come; it begins at once
		laneErr error         // why no lane could be made; nil: lanes are being made
		served  time.Duration // until the latest other flow gets a lane, after the client has come
		waits   time.Duration
	}{
		{"while the session stands", 0, 0, 0, time.Minute, 0, failed, 0, deadline},
		{"before the first session", 0, 0, 9 * time.Second, -5 * time.Second, 0, failed, 0, deadline},
		{"before the first session, of which a handshake is under way", 0, 25 * time.Second, 2 * resume, -2 * resume, 0, failed, 0, 25 * time.Second},
		{"before the first session, of which a handshake hangs", 0, 2 * resume, 4 * resume, -4 * resume, 0, failed, 0, resume},
		{"before the first session, at a relay without a processor", 8 * time.Second, 0, 2 * resume, -2 * resume, 0, failed, 0, deadline + 250*time.Millisecond},
		{"in a short outage", 0, 0, 0, time.Second, 2 * time.Second, failed, 0, 2*time.Second + deadline},
		{"in an outage beyond its deadline", 0, 0, 0, time.Second, 20 * time.Second, failed, 0, 20*time.Second + deadline},
		{"in an outage of almost resume", 0, 0, 0, time.Second, resume - time.Second, failed, 0, resume},
		{"in an outage beyond resume", 0, 0, 0, time.Second, 2 * resume, failed, 0, resume},
		{"in a crowd", 0, 0, 0, time.Second, 0, nil, 0, resume},
		{"while the other relay is overloaded", 0, 0, 0, time.Second, 0, problem(flow.PairOverloaded, "late"), 0, resume},
		{"beside flows that get lanes", 0, 0, 0, time.Second, 0, failed, 30 * time.Second, 30*time.Second + deadline},
		{"in a crowd that gets lanes", 0, 0, 0, time.Second, 0, nil, 2 * resume, 2*resume + deadline},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &process{}
				n.stores = &n.budget
				s := newSession(n, "b", 1, true)
				l := &Link{node: n, s: s, kick: make(chan struct{}, 1)}
				l.setPaths(nil)
				s.link, s.paths = l, &l.paths
				s.unmade.note(test.laneErr)
				stands := func(on bool) {
					s.mu.Lock()
					defer s.mu.Unlock()
					if !on {
						s.ctl.Store(nil)
						s.since = time.Now()
						return
					}
					if s.ctl.Store(&control{}); s.stood {
						s.outage += time.Since(s.since)
					}
					s.stood, s.since = true, time.Now()
				}
				came := test.before + test.comes
				time.AfterFunc(test.before, func() { stands(true) })
				if test.outage > 0 {
					time.AfterFunc(came, func() { stands(false) })
					time.AfterFunc(came+test.outage, func() { stands(true) })
				}
				time.Sleep(came)
				synctest.Wait()
				n.strain.note(test.late, time.Now())
				if test.proven > 0 {
					s.proven.Add(1)
					time.AfterFunc(test.proven, func() { s.proven.Add(-1) })
				}
				for at := time.Duration(0); at <= test.served && test.served > 0; at += deadline / 2 {
					time.AfterFunc(at, func() { s.served.Store(int64(stampNow())) })
				}
				f := newFlow(s, 1, nil)
				f.opening = &opening{began: stampNow(), Open: wire.Open{Deadline: deadline}}
				began := time.Now()
				for !f.over.Load() {
					time.Sleep(tickEvery)
					w, _, _ := s.waitAt(time.Now(), resume)
					f.watch.look(time.Now(), w)
					synctest.Wait()
				}
				if waited := time.Since(began); waited < test.waits || waited > test.waits+2*tickEvery {
					t.Errorf("the client waits %v, want %v", waited, test.waits)
				}
			})
		})
	}
}

// A path that has become slower than the relays know takes lanes again.
func TestLaneWithin(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		name  string
		stand bool
		err   error
		since time.Duration
		want  time.Duration
	}{
		{"lanes are made", true, nil, 0, handshakeTimeout},
		{"lanes have just failed", true, errors.New("i/o timeout"), time.Second, time.Second},
		{"lanes have failed for a while", true, errors.New("i/o timeout"), 5 * time.Second, 5 * time.Second},
		{"lanes have failed for long", true, errors.New("i/o timeout"), time.Minute, handshakeTimeout},
		{"in an outage", false, errors.New("i/o timeout"), 5 * time.Second, time.Second},
	} {
		s := newSession(&process{}, "b", 1, true)
		if test.err != nil {
			s.srtt.Store(int64(time.Millisecond))
		}
		if s.unmade.err, s.unmade.since = test.err, now.Add(-test.since); test.stand {
			s.ctl.Store(&control{})
		}
		if got := s.laneWithin(now); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
