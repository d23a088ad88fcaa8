package usable

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/resources"
)

// judge makes a Judge with resources as they are when it is asked.
func judge(tight *[]resources.Resource) *Judge {
	return New(Options{Tight: func() []resources.Resource { return *tight }})
}

// pairHop is a far relay that is the only hop of its tunnel.
func pairHop(state flow.HopState, reason flow.Reason, why, err string) flow.Hop {
	p := &flow.PairHop{Taking: flow.Taking{Peer: "b", Error: err}, State: state, Reason: reason, Why: why}
	return flow.Hop{Name: "b:1", State: state, Usable: state != flow.HopDown, LastError: why, Pair: p}
}

func hop(state flow.HopState) flow.Hop {
	h := flow.Hop{Name: "b:1", State: state, Usable: state == flow.HopUp || state == flow.HopUntried}
	if !h.Usable && state != flow.HopDrained {
		h.LastError = "refused"
	}
	return h
}

func TestDecide(t *testing.T) {
	listening := func(states ...flow.HopState) flow.Tunnel {
		one := flow.Tunnel{Name: "a", State: "listening"}
		for _, s := range states {
			one.Hops = append(one.Hops, hop(s))
		}
		return one
	}
	in := func(state string, of flow.Tunnel) flow.Tunnel { of.State = state; return of }
	lack := func(part flow.HostPart, blocks bool) []flow.HostProblem {
		return []flow.HostProblem{{Part: part, Problem: "gone", Blocks: blocks}}
	}
	paired := func(state flow.HopState, reason flow.Reason, why, err string) flow.Tunnel {
		return flow.Tunnel{State: "listening", Hops: []flow.Hop{pairHop(state, reason, why, err)}}
	}
	kept := hop(flow.HopReturning)
	kept.Usable = true
	full := listening(flow.HopUp)
	full.FlowsNow, full.FlowsLimit = 3, 3
	for _, c := range []struct {
		name   string
		tunnel flow.Tunnel
		tight  []resources.Resource
		lacks  []flow.HostProblem
		want   flow.UseState
		reason flow.Reason
		detail string
	}{
		{"nobody tried it", listening(flow.HopUntried), nil, nil, flow.Untried, "", ""},
		{"a flow was served", listening(flow.HopUp), nil, nil, flow.Up, "", ""},
		{"one of two hops", listening(flow.HopEjected, flow.HopUp), nil, nil, flow.Up, "", ""},
		{"the untried of two hops", listening(flow.HopEjected, flow.HopUntried), nil, nil, flow.Untried, "", ""},
		{"the target is dead", listening(flow.HopEjected), nil, nil, flow.Down, flow.ReasonHopsDown, "has no hop: b:1 is ejected (refused)"},
		{"and tried again", listening(flow.HopReturning), nil, nil, flow.Returning, flow.ReasonHopsDown, "has no hop: b:1 is returning (refused)"},
		{"by its clients only", flow.Tunnel{State: "listening", Hops: []flow.Hop{kept}}, nil, nil, flow.Returning, "", ""},
		{"checks fail", listening(flow.HopDown, flow.HopDrained), nil, nil, flow.Down, flow.ReasonHopsDown, "has no hop: b:1 is down (refused), b:1 is drained"},
		{"a service has no targets", flow.Tunnel{State: "listening", Service: &flow.Service{Name: "_x._tcp.b", Error: "timeout"}}, nil, nil, flow.Down, flow.ReasonHopsDown, "has no hop: the service _x._tcp.b has no targets: timeout"},
		{"all hops drained", listening(flow.HopDrained), nil, nil, flow.Down, flow.ReasonHopsDrained, "has no hop: b:1 is drained"},
		{"draining", in("draining", listening(flow.HopUp)), nil, nil, flow.Down, flow.ReasonDraining, "is draining"},
		{"drained, and the target dead", in("drained", listening(flow.HopReturning)), nil, nil, flow.Down, flow.ReasonDrained, "is drained"},
		{"shedding", in("shedding", listening(flow.HopUp)), []resources.Resource{resources.Memory}, nil, flow.Down, flow.ReasonShedding, "is shedding"},
		{"paused", in("paused", listening(flow.HopUp)), nil, nil, flow.Down, flow.ReasonPaused, "is paused"},
		{"soon to shed", listening(flow.HopUp), []resources.Resource{resources.Memory, resources.CPU}, nil, flow.Down, flow.ReasonResources, "is near a limit: memory, cpu"},
		{"as many flows as it may have", full, nil, nil, flow.Down, flow.ReasonMaxFlows, "is at max_flows: 3"},
		{"rules are missing", listening(flow.HopUp), nil, lack(flow.HostRules, true), flow.Down, flow.ReasonNoRules, "takes no clients: gone"},
		{"the listener's address is missing", in("waiting", listening(flow.HopUp)), nil, lack(flow.HostAddress, true), flow.Down, flow.ReasonListener, "takes no clients: gone"},
		{"one of its addresses is missing", listening(flow.HopUp), nil, lack(flow.HostAddress, false), flow.Up, "", ""},
		{"the pair connects", paired(flow.HopUntried, "", "", ""), nil, nil, flow.Untried, "", ""},
		{"the pair stands", paired(flow.HopUp, "", "", ""), nil, nil, flow.Up, "", ""},
		{"the pair is lost", paired(flow.HopDown, flow.ReasonPairDown, "b cannot be reached", "timeout"), nil, nil, flow.Down, flow.ReasonPairDown, "has no session: b cannot be reached (timeout)"},
		{"it takes no sessions", paired(flow.HopDown, flow.ReasonPairDown, "b takes no new sessions", ""), nil, nil, flow.Down, flow.ReasonPairDown, "has no session: b takes no new sessions"},
		{"the far tunnel takes no flows", paired(flow.HopDown, flow.ReasonHopsDown, "the tunnel of b is drained", ""), nil, nil, flow.Down, flow.ReasonHopsDown, "has no hop: the tunnel of b is drained"},
		{"one of two far relays stands", flow.Tunnel{State: "listening", Hops: []flow.Hop{pairHop(flow.HopDown, flow.ReasonPairDown, "gone", ""), pairHop(flow.HopUp, "", "", "")}}, nil, nil, flow.Up, "", ""},
		{"none of two far relays does", flow.Tunnel{State: "listening", Hops: []flow.Hop{pairHop(flow.HopDown, flow.ReasonPairDown, "gone", ""), pairHop(flow.HopDown, flow.ReasonPairDown, "gone", "")}}, nil, nil, flow.Down, flow.ReasonHopsDown, "has no hop: b:1 is down (gone), b:1 is down (gone)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := judge(&c.tight)
			c.tunnel.Host = c.lacks
			all := []flow.Tunnel{c.tunnel}
			j.Decide(all)
			u := all[0].Usability
			if u.State != c.want || u.Reason() != c.reason || u.Detail() != c.detail || u.Usable != (c.reason == "") {
				t.Errorf("the tunnel is %+v", u)
			}
		})
	}
}

// A tunnel at its limit of flows is full until a tenth is free again.
func TestIsFull(t *testing.T) {
	for _, c := range []struct {
		now   int64
		limit int
		was   bool
		want  bool
	}{
		{now: 1000},
		{now: 99, limit: 100},
		{now: 100, limit: 100, want: true},
		{now: 95, limit: 100, was: true, want: true},
		{now: 90, limit: 100, was: true, want: true},
		{now: 89, limit: 100, was: true},
		{now: 3, limit: 4, was: true},
		{now: 1, limit: 1, was: true, want: true},
		{limit: 1, was: true},
	} {
		if got := isFull(&flow.Tunnel{FlowsNow: c.now, FlowsLimit: c.limit}, c.was); got != c.want {
			t.Errorf("%d of %d flows, full before %v: full %v", c.now, c.limit, c.was, got)
		}
	}
}

// texts writes events as lines.
func texts(all []flow.Event) (lines string) {
	for _, e := range all {
		lines += fmt.Sprintf("%s %s %s: %s to %s (%s)\n", e.Kind, e.Tunnel, e.Subject, e.From, e.To, e.Reason)
	}
	return lines
}

func TestEvents(t *testing.T) {
	var tight []resources.Resource
	j := judge(&tight)
	step := func(tunnels ...flow.Tunnel) { j.Decide(tunnels) }
	a := func(state string, h flow.HopState) flow.Tunnel {
		return flow.Tunnel{Name: "a", State: state, Hops: []flow.Hop{hop(h)}}
	}
	b := flow.Tunnel{Name: "b", State: "listening"}
	step(a("listening", flow.HopUntried), b)
	step(a("listening", flow.HopUntried), b)
	step(a("listening", flow.HopEjected), b)
	step(a("listening", flow.HopReturning), b)
	step(a("draining", flow.HopReturning), flow.Tunnel{Name: "b", State: "draining"})
	step(a("listening", flow.HopReturning), b)
	step(a("listening", flow.HopUp), b)
	step(a("listening", flow.HopUp))
	j.Note(flow.EventPair, "a", "site-b", "up", "")
	j.Note(flow.EventPair, "a", "site-b", "lost", "reset")
	want := `tunnel a : untried to down (has no hop: b:1 is ejected (refused))
hop a b:1: untried to ejected (refused)
tunnel a : down to returning (has no hop: b:1 is returning (refused))
hop a b:1: ejected to returning (refused)
relay  : serving to draining (is draining)
relay  : draining to serving ()
tunnel a : returning to up ()
hop a b:1: returning to up ()
tunnel b : untried to removed ()
pair a site-b: connecting to up ()
pair a site-b: up to lost (reset)
`
	if got := texts(j.Events(time.Time{})); got != want {
		t.Errorf("the events are\n%swant\n%s", got, want)
	}

	// The next process goes on, and has an event for what changed meanwhile.
	next := judge(&tight)
	next.Remember(j.Memory())
	tunnels := []flow.Tunnel{a("listening", flow.HopUp)}
	next.Decide(tunnels)
	if got := texts(next.Events(time.Time{})); got != want {
		t.Errorf("the next process has the events\n%s", got)
	}
	began := j.Events(time.Time{})
	if since := tunnels[0].Usability.Since; !since.Equal(began[6].At) {
		t.Errorf("the tunnel is up since %v, not %v", since, began[6].At)
	}
	next.Decide([]flow.Tunnel{a("listening", flow.HopDown)})
	last := next.Events(began[len(began)-1].At.Add(1))
	if got := texts(last); got != "tunnel a : up to down (has no hop: b:1 is down (refused))\nhop a b:1: up to down (refused)\n" {
		t.Errorf("afterwards it has\n%s", got)
	}

	// A relay that sheds, or a tunnel that is drained, hides the beginning of no outage.
	for state, want := range map[string]string{
		"shedding": `relay  : serving to shedding (is shedding)
tunnel a : up to down (has no hop: b:1 is down (refused))
hop a b:1: up to down (refused)
relay  : shedding to serving ()
tunnel a : down to up ()
hop a b:1: down to up ()
`,
		"drained": `tunnel a : up to down (is drained)
tunnel a : down to down (is drained; has no hop: b:1 is down (refused))
hop a b:1: up to down (refused)
tunnel a : down to down (has no hop: b:1 is down (refused))
tunnel a : down to up ()
hop a b:1: down to up ()
`,
	} {
		j := judge(&tight)
		up := []flow.Tunnel{a("listening", flow.HopUp)}
		j.Decide(up)
		hidden := []flow.Tunnel{a(state, flow.HopUp)}
		j.Decide(hidden)
		if since := hidden[0].Usability.Since; since.Before(up[0].Usability.Since) || since.Equal(up[0].Usability.Since) {
			t.Errorf("%s since %v, up since %v", state, since, up[0].Usability.Since)
		}
		j.Decide([]flow.Tunnel{a(state, flow.HopDown)})
		j.Decide([]flow.Tunnel{a("listening", flow.HopDown)})
		j.Decide([]flow.Tunnel{a("listening", flow.HopUp)})
		if got := texts(j.Events(time.Time{})); got != want {
			t.Errorf("%s: the events are\n%swant\n%s", state, got, want)
		}
	}

	// However much changes, the latest are there. One that flaps takes no room from the others.
	before := slices.DeleteFunc(next.Events(time.Time{}), func(e flow.Event) bool { return e.Kind == flow.EventPair })
	for i := range 2 * MaxEvents {
		next.Note(flow.EventPair, "a", "site-b", fmt.Sprint(i), "")
	}
	all := next.Events(time.Time{})
	if len(all) != MaxEvents || all[MaxEvents-1].To != fmt.Sprint(2*MaxEvents-1) {
		t.Errorf("%d events, the last is %+v", len(all), all[len(all)-1])
	}
	again := judge(&tight) // which a file tells of the events
	again.Note(flow.EventPair, "a", "site-b", "up", "")
	again.Remember(Memory{Events: all})
	for of, j := range map[string]*Judge{"a process": next, "the next process": again} {
		all := j.Events(time.Time{})
		if got := texts(all[:len(before)]); len(all) > MaxEvents || got != texts(before) {
			t.Errorf("%s has %d events, the first are\n%swant\n%s", of, len(all), got, texts(before))
		}
	}
}
