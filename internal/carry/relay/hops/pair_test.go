package hops

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
)

func TestOfPair(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, c := range []struct {
		name   string
		pair   flow.Taking
		want   flow.HopState
		reason flow.Reason
		why    string
	}{
		{"it connects", flow.Taking{Since: ago(firstSettles / 2)}, flow.HopUntried, "", ""},
		{"it never stood", flow.Taking{Peer: "b", Since: ago(firstSettles), Problem: flow.PairPathDown}, flow.HopDown, flow.ReasonPairDown, "b cannot be reached"},
		{"it stands", flow.Taking{Takes: true, Stood: true, Met: true, Since: ago(0)}, flow.HopUp, "", ""},
		{"the far tunnel takes no flows", flow.Taking{Peer: "b", Takes: true, Stood: true, Met: true, Since: ago(time.Hour), Trouble: "is drained"}, flow.HopDown, flow.ReasonHopsDown, "the tunnel of b is drained"},
		{"it was just lost", flow.Taking{Stood: true, Met: true, Since: ago(settles / 4)}, flow.HopUp, "", ""},
		{"it is lost", flow.Taking{Peer: "b", Stood: true, Met: true, Since: ago(settles), Problem: flow.PairDraining}, flow.HopDown, flow.ReasonPairDown, "b takes no new sessions"},
		{"upgraded, it connects", flow.Taking{Stood: true, Since: ago(firstSettles / 2)}, flow.HopUp, "", ""},
		{"upgraded while it was lost", flow.Taking{Peer: "b", Stood: true, Since: ago(firstSettles)}, flow.HopDown, flow.ReasonPairDown, "no session with b stands"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ofPair(c.pair, c.pair.Peer, time.Now()); got.State != c.want || got.Reason != c.reason || got.Why != c.why {
				t.Errorf("the hop is %+v", got)
			}
		})
	}
}

// farRelay is a carrier that takes no flows itself.
type farRelay struct {
	flow.Carrier
	says flow.Taking
}

func (f *farRelay) Taking() flow.Taking { return f.says }

// A hop of several gets new flows if its session stands, and its far relay neither owes an answer nor has
// a trouble, nor is that of an earlier hop. Screens show it once that is no matter of moments.
func TestOrderOfFarRelays(t *testing.T) {
	stands := flow.Taking{Peer: "b", Takes: true, Stood: true, Met: true, Since: time.Now()}
	lost := flow.Taking{Peer: "b", Stood: true, Met: true, Since: time.Now()}
	gone := flow.Taking{Peer: "b", Stood: true, Met: true, Since: time.Now().Add(-time.Hour)}
	with := func(p flow.Taking, change func(*flow.Taking)) flow.Taking { change(&p); return p }
	host := func(name string) flow.Taking { return with(stands, func(p *flow.Taking) { p.Host = name }) }
	suspect := with(stands, func(p *flow.Taking) { p.Suspect = true })
	crowd := with(stands, func(p *flow.Taking) { p.Crowded = true })
	trouble := with(stands, func(p *flow.Taking) { p.Trouble = "is drained" })
	for _, c := range []struct {
		name   string
		says   []flow.Taking
		drain  int // hop; -1: none
		eject  int
		want   []uint16
		states []flow.HopState
	}{
		{"both stand", []flow.Taking{stands, stands}, -1, -1, []uint16{0, 1}, []flow.HopState{flow.HopUp, flow.HopUp}},
		{"one was lost a moment ago", []flow.Taking{lost, stands}, -1, -1, []uint16{1}, []flow.HopState{flow.HopUp, flow.HopUp}},
		{"one is gone", []flow.Taking{gone, stands}, -1, -1, []uint16{1}, []flow.HopState{flow.HopDown, flow.HopUp}},
		{"one owes an answer", []flow.Taking{suspect, stands}, -1, -1, []uint16{1}, []flow.HopState{flow.HopUp, flow.HopUp}},
		{"one has a trouble", []flow.Taking{trouble, stands}, -1, -1, []uint16{1}, []flow.HopState{flow.HopDown, flow.HopUp}},
		{"flows of one wait for lanes", []flow.Taking{crowd, stands}, -1, -1, []uint16{1}, []flow.HopState{flow.HopUp, flow.HopUp}},
		{"flows of both wait for lanes", []flow.Taking{crowd, crowd}, -1, -1, []uint16{0, 1}, []flow.HopState{flow.HopUp, flow.HopUp}},
		{"of one they wait, one has a trouble", []flow.Taking{trouble, crowd}, -1, -1, []uint16{1}, []flow.HopState{flow.HopDown, flow.HopUp}},
		{"of one they wait, one owes an answer", []flow.Taking{suspect, crowd}, -1, -1, []uint16{1}, []flow.HopState{flow.HopUp, flow.HopUp}},
		{"none", []flow.Taking{gone, suspect}, -1, -1, nil, []flow.HopState{flow.HopDown, flow.HopUp}},
		{"one is drained", []flow.Taking{stands, stands}, 0, -1, []uint16{1}, []flow.HopState{flow.HopDrained, flow.HopUp}},
		{"one is ejected", []flow.Taking{stands, stands}, -1, 0, []uint16{1, 0}, []flow.HopState{flow.HopEjected, flow.HopUp}},
		{"one is ejected and gone", []flow.Taking{gone, stands}, -1, 0, []uint16{1}, []flow.HopState{flow.HopDown, flow.HopUp}},
		{"two hosts", []flow.Taking{host("b/1"), host("b/2")}, -1, -1, []uint16{0, 1}, []flow.HopState{flow.HopUp, flow.HopUp}},
		{"one host", []flow.Taking{host("b/1"), host("b/1")}, -1, -1, []uint16{0}, []flow.HopState{flow.HopUp, flow.HopSameHost}},
		{"one host, its first address drained", []flow.Taking{host("b/1"), host("b/1")}, 0, -1, []uint16{1}, []flow.HopState{flow.HopDrained, flow.HopUp}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var forward []Target
			for i, p := range c.says {
				forward = append(forward, Target{Host: "b", Port: uint16(i + 1), Weight: 1, Priority: 1, Carrier: &farRelay{says: p}})
			}
			s := New(forward, Ordered, Health{EjectAfter: 1}.WithDefaults(), nil)
			const now = time.Hour
			if c.drain >= 0 {
				s.All()[c.drain].Drain(true)
			}
			if c.eject >= 0 {
				s.ConnectFailed(s.All()[c.eject], 1, now, errBroken)
			}
			if got := s.Order(nil, netip.Addr{}, now); !slices.Equal(got, c.want) {
				t.Errorf("a flow tries %v, want %v", got, c.want)
			}
			if got := s.Serves(now); got != (len(c.want) > 0) {
				t.Errorf("a flow finds a hop: %v", got)
			}
			for i, h := range s.Snapshot(nil, now) {
				usable := c.states[i] == flow.HopUp
				if h.State != c.states[i] || h.Usable != usable {
					t.Errorf("hop %d is %s, usable %v, %q", i, h.State, h.Usable, h.LastError)
				}
			}
		})
	}
}

// What lasts is shown: a far relay that goes on owing an answer is down. One whose session was away for
// long gets its share little by little.
func TestSuspectAndReturningFarRelay(t *testing.T) {
	first := &farRelay{says: flow.Taking{Peer: "b", Host: "b/1", Takes: true, Suspect: true, Stood: true, Met: true, Since: time.Now().Add(-time.Hour)}}
	second := &farRelay{says: flow.Taking{Peer: "b", Host: "b/2", Takes: true, Stood: true, Met: true, Since: time.Now()}}
	s := New([]Target{{Host: "b", Port: 1, Weight: 1, Priority: 1, Carrier: first}, {Host: "b", Port: 2, Weight: 1, Priority: 1, Carrier: second}},
		LeastFlows, Health{}.WithDefaults(), nil)
	const now = time.Hour
	if h := s.Snapshot(nil, now)[0]; h.State != flow.HopUp || h.Host != "b/1" {
		t.Errorf("at first the hop is %+v", h)
	}
	if h := s.Snapshot(nil, now+settles)[0]; h.State != flow.HopDown || h.Usable || h.LastError != "b/1 owes an answer" || time.Since(h.Since) > time.Minute {
		t.Errorf("then it is %+v", h)
	}
	lost := flow.Taking{Peer: "b", Host: "b/1", Stood: true, Met: true, Since: time.Now(), Problem: flow.PairPathDown, Error: "connection refused"}
	first.says = lost // a moment's grace is for one that was up
	if h := s.Snapshot(nil, now+settles)[0]; h.State != flow.HopDown || h.Usable || h.LastError != "b/1 owes an answer" {
		t.Errorf("once its session is lost it is %+v", h)
	}
	lost.Since = lost.Since.Add(-settles)
	first.says = lost
	if h := s.Snapshot(nil, now+settles)[0]; h.State != flow.HopDown || h.LastError != "b/1 cannot be reached: connection refused" {
		t.Errorf("after the grace it is %+v", h)
	}
	s.Snapshot(nil, now+2*settles)
	first.says = flow.Taking{Peer: "b", Takes: true, Stood: true, Met: true, Since: time.Now()}
	s.Order(nil, netip.Addr{}, now+3*settles)
	if share := s.All()[0].share(now+3*settles, DefaultSlowReturn); share != minShare {
		t.Errorf("it returns with %v of its share", share)
	}
	if share := s.All()[1].share(now+3*settles, DefaultSlowReturn); share != 1 {
		t.Errorf("the other has %v of its share", share)
	}
}

// Two processes that run with one key are two hosts with a copied key, and not one relay.
func TestSameHostOrSameKey(t *testing.T) {
	for _, c := range []struct {
		instance uint64
		want     string
	}{{1, "leads to the same relay as b:1"}, {2, "has the same key as b:1"}, {0, "leads to the same relay as b:1"}} {
		says := flow.Taking{Peer: "b", Host: "b/1", Takes: true, Stood: true, Met: true, Instance: 1}
		other := says
		other.Instance = c.instance
		s := New([]Target{{Host: "b", Port: 1, Weight: 1, Priority: 1, Carrier: &farRelay{says: says}},
			{Host: "b", Port: 2, Weight: 1, Priority: 1, Carrier: &farRelay{says: other}}}, Ordered, Health{}.WithDefaults(), nil)
		if h := s.Snapshot(nil, time.Hour)[1]; h.State != flow.HopSameHost || h.LastError != c.want {
			t.Errorf("instance %d: the hop is %s, %q", c.instance, h.State, h.LastError)
		}
	}
}

// A hop that the operator has put back is up since then, however long its session has stood.
func TestResumedHopIsUpSinceThen(t *testing.T) {
	says := flow.Taking{Peer: "b", Takes: true, Stood: true, Met: true, Since: time.Now().Add(-time.Hour)}
	s := New([]Target{{Host: "b", Port: 1, Weight: 1, Priority: 1, Carrier: &farRelay{says: says}}}, Ordered, Health{}.WithDefaults(), nil)
	s.All()[0].Drain(true)
	s.All()[0].Drain(false)
	if h := s.Snapshot(nil, monotime.Now())[0]; h.State != flow.HopUp || time.Since(h.Since) > time.Minute {
		t.Errorf("the hop is %s since %v", h.State, h.Since)
	}
}

var errBroken = errors.New("lost")
