package pair

import (
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestShutLane holds that a lane whose window is closed is lost once the other relay has everything that
// went out: nothing is missing there, so that it asks for nothing.
func TestShutLane(t *testing.T) {
	const long = time.Minute
	for _, test := range []struct {
		name      string
		shut      bool          // the window is closed
		waits     time.Duration // for room
		onTheWay  bool
		releasing bool // RELEASE is offered
		dead      bool
	}{
		{name: "room", waits: long},
		{name: "closed for a moment", shut: true, waits: time.Millisecond},
		{name: "closed while bytes are on the way", shut: true, waits: long, onTheWay: true},
		{name: "closed, and nothing is on the way", shut: true, waits: long, dead: true},
		{name: "closed in front of a RELEASE", shut: true, releasing: true, dead: true},
		{name: "closed in front of a RELEASE, while bytes are on the way", shut: true, releasing: true, onTheWay: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			here, _ := tcpPair(t)
			bulk, err := newBulkConn(here)
			nettest.Must(t, err)
			if test.shut {
				fillWindow(t, bulk)
			}
			n := &process{}
			n.stores = &n.budget
			s := newSession(n, "b", 1, true)
			f := newFlow(s, 1, nil)
			f.phase, f.leg.writable = phaseKnown, true
			l := &lane{s: &s.relation, home: s, frames: frames{bulk: bulk}}
			l.answered.Store(true)
			st := f.lanes.add(l, nil, true)
			nettest.Must(t, f.sf.Attach(0))
			f.sf.Out.Keep(make([]byte, 100))
			if test.onTheWay {
				_, _ = f.sf.Out.Next(&st.sent, 50)
			}
			now := time.Now()
			ago := stampOf(now.Add(-long))
			st.since, st.sentAt, f.near.releasing = ago, ago, test.releasing
			if test.waits > 0 {
				st.roomAt = stampOf(now.Add(-test.waits))
			}
			if why := f.watch.whyDead(st, now); (why != "") != test.dead {
				t.Errorf("why it is dead: %q; want that: %t", why, test.dead)
			}
		})
	}
}

// fillWindow writes until the other end's window is closed.
func fillWindow(t *testing.T, bulk *bulkConn) {
	t.Helper()
	piece := make([]byte, largeBuffer)
	nettest.Eventually(t, 30*time.Second, func() bool {
		bulk.control(func(fd int) { _, _ = send(fd, piece) })
		return isShut(bulk)
	}, func() string { return "the window stays open" })
}
