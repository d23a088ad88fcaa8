package relay

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

// eachFlow visits the samples of all flows.
func (r *Relay) eachFlow(visit func(*report.Sample)) error {
	_, err := r.Sample(func(portion []report.Sample) {
		for i := range portion {
			visit(&portion[i])
		}
	})
	return err
}

// sampled returns the samples of the flows that are visited, by the flows' IDs.
func (g *rig) sampled() map[report.ID]report.Sample {
	g.t.Helper()
	all := map[report.ID]report.Sample{}
	if err := g.relay.eachFlow(func(s *report.Sample) {
		if _, twice := all[s.ID]; twice || s.ID == 0 {
			g.t.Errorf("flow %d is visited twice, or has no name", s.ID)
		}
		all[s.ID] = *s
	}); err != nil {
		g.t.Fatal(err)
	}
	return all
}

// theOne waits until the sample of the only flow satisfies want.
func (g *rig) theOne(what string, want func(*report.Sample) bool) report.Sample {
	g.t.Helper()
	var last map[report.ID]report.Sample
	nettest.Eventually(g.t, patience, func() bool {
		last = g.sampled()
		for _, s := range last {
			return len(last) == 1 && want(&s)
		}
		return false
	}, func() string { return what })
	for _, s := range last {
		return s
	}
	panic("no flow")
}

func TestEachFlow(t *testing.T) {
	nettest.CheckLeaks(t)
	began := time.Now()
	g := newRig(t, nil)
	if got := g.sampled(); len(got) != 0 {
		t.Errorf("%d flows before the first", len(got))
	}
	c, s := g.pair()
	var congestion [2]string
	fresh := g.theOne("the flow is not open", func(s *report.Sample) bool {
		congestion[client] = cmp.Or(s.ClientLeg.CongestionControl, congestion[client])
		congestion[target] = cmp.Or(s.TargetLeg.CongestionControl, congestion[target])
		return s.State == "open"
	})
	if fresh.Tunnel != "t" || fresh.Client != c.LocalAddr().(*net.TCPAddr).AddrPort() || fresh.Listen != g.addr || fresh.Target != addrOf(g.target) || fresh.Hop != addrOf(g.target).String() {
		t.Errorf("the sample of a new flow is not of this flow: %+v", fresh)
	}
	if now := time.Now(); fresh.Start.Before(began.Round(0)) || fresh.Start.After(now.Round(0)) {
		t.Errorf("it began at %v, the relay was started after %v and it is %v", fresh.Start, began, now)
	}
	for _, leg := range []report.LegSample{fresh.ClientLeg, fresh.TargetLeg} {
		if !leg.Known || leg.Info.State != tcpinfo.Established || leg.SendBuffer <= 0 || leg.SendQueued < 0 {
			t.Errorf("leg %+v", leg)
		}
	}

	for _, name := range congestion {
		if name == "" {
			t.Error("no sample has the congestion control of a leg")
		}
	}

	write(t, c, pattern(5000))
	expect(t, s, pattern(5000))
	moved := g.theOne("the bytes are not counted", func(s *report.Sample) bool { return s.BytesUp == 5000 && !s.Unchanged })
	if moved.BytesDown != 0 || moved.ID != fresh.ID {
		t.Errorf("5000 bytes have gone up on the same flow, the sample is %+v", moved)
	}
	g.theOne("it does not fall quiet", func(s *report.Sample) bool {
		return s.Unchanged && !s.ClientLeg.Known && !s.TargetLeg.Known && s.BytesUp == 5000
	})
	write(t, s, pattern(1))
	expect(t, c, pattern(1))
	if woken := g.sampled()[fresh.ID]; woken.Unchanged || woken.BytesDown != 1 || !woken.ClientLeg.Known || woken.ClientLeg.Info.BytesSent != 1 {
		t.Errorf("after another byte: %+v", woken)
	}

	// A flow with unacknowledged bytes is not quiet.
	s.SetReadBuffer(1)
	go func() { _, _ = c.Write(make([]byte, 64<<20)) }()
	g.theOne("nothing is stuck", func(s *report.Sample) bool { return s.TargetLeg.Known && s.TargetLeg.Info.NotsentBytes > 0 })
	for range 3 {
		if g.sampled()[fresh.ID].Unchanged {
			t.Error("a flow with data under way is quiet")
		}
	}
	reset(t, s)
	if r := g.expectReason(report.EndTargetReset); r.Flow != fresh.ID || r.ClientLeg.BytesSent < 0 && r.TargetLeg.BytesSent < 0 {
		t.Errorf("record %+v", r)
	}
	if got := g.sampled(); len(got) != 0 {
		t.Errorf("%d flows after the end", len(got))
	}
	g.relay.Close()
	if _, err := g.relay.Sample(func([]report.Sample) {}); err != ErrClosed {
		t.Errorf("a closed relay: %v", err)
	}
}

func TestEachFlowOfAConnectingOne(t *testing.T) {
	nettest.CheckLeaks(t)
	answer := make(chan struct{})
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward[0].Host = "slow.example"
		o.Resolve = func(ctx context.Context, _ string) (names.Answer, error) {
			select {
			case <-answer:
			case <-ctx.Done():
			}
			return names.Answer{}, ctx.Err()
		}
	})
	defer close(answer)
	dial(t, g.addr)
	s := g.theOne("it is not being connected", func(s *report.Sample) bool { return s.State == "dialing" })
	if s.Target.IsValid() || s.TargetLeg.Known || s.TargetLeg.SendBuffer >= 0 || !s.ClientLeg.Known || s.Unchanged {
		t.Errorf("a flow that is being connected has the sample %+v", s)
	}
}

// TestEachFlowWhileFlowsComeAndGo is mainly for the race detector.
func TestEachFlowWhileFlowsComeAndGo(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	g.echo()
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := tryDial(g.addr)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = c.Write([]byte{1})
				_, _ = c.Read(make([]byte, 1))
				c.Close()
			}
		})
	}
	visited := map[report.ID]int64{}
	nettest.Eventually(t, patience, func() bool {
		for id, s := range g.sampled() {
			if s.BytesUp < visited[id] {
				t.Errorf("flow %d had moved %d bytes and now %d", id, visited[id], s.BytesUp)
			}
			visited[id] = s.BytesUp
		}
		return len(visited) > 200
	}, func() string { return "few flows are visited" })
	close(stop)
	clients.Wait()
	nettest.Eventually(t, patience, func() bool { return g.relay.FlowsNow() == 0 }, func() string { return "flows are left" })
	told := map[report.ID]bool{}
	nettest.Eventually(t, patience, func() bool { return int64(len(g.flows.all())) == g.relay.Overview().Tunnels[0].FlowsTotal },
		func() string { return "flows have no record" })
	for _, r := range g.flows.all() {
		if r.Flow == 0 || told[r.Flow] {
			t.Errorf("record of flow %d", r.Flow)
		}
		told[r.Flow] = true
	}
	for id := range visited {
		if !told[id] {
			t.Errorf("flow %d was visited and has no record", id)
		}
	}
}

// TestSamplesComeInPortions: an event loop samples a bounded number of its
// flows at a time, and every flow is visited. TestASampleHoldsNoLoopUp measures
// the duration of a portion.
func TestSamplesComeInPortions(t *testing.T) {
	nettest.CheckLeaks(t)
	g, flows := crowd(t, 6*portionFlows)
	for _, pass := range []string{"the kernel is asked about each", "all are quiet"} {
		g.wakeAll(pass == "all are quiet")
		visited, turns := 0, 0
		g.eachPortion(flows, func(n int, _ time.Duration) {
			if n > portionFlows {
				t.Errorf("%s: a portion of %d flows, want %d at most", pass, n, portionFlows)
			}
			visited += n
			turns++
		})
		if visited != flows || turns < flows/portionFlows {
			t.Errorf("%s: %d flows were visited in %d portions, want %d flows in %d portions or more", pass, visited, turns, flows, flows/portionFlows)
		}
	}
}

// TestAPortionEndsAtItsTime: a portion is of few flows if its time passes: of one about which the
// kernel is asked, of clockEvery quiet ones.
func TestAPortionEndsAtItsTime(t *testing.T) {
	nettest.CheckLeaks(t)
	g, flows := crowd(t, 4*clockEvery) // more than clockEvery for a loop of two
	buf := make([]report.Sample, portionFlows)
	for _, c := range []struct {
		name  string
		rests bool
		want  int
	}{{"busy", false, 1}, {"quiet", true, clockEvery}} {
		g.wakeAll(c.rests)
		visited := 0
		for _, w := range g.relay.workers {
			w.do(func() {
				defer func(real func() time.Duration) { w.clock = real }(w.clock)
				now := w.clock()
				w.clock = func() time.Duration { now += portionTime; return now }
				p := places{left: flows}
				w.beginVisits(&p)
				for n, more := 0, true; more; visited += n {
					if n, more = w.sample(buf, &p); n > c.want || n < c.want && more {
						t.Errorf("%s: a portion of %d flows, want %d", c.name, n, c.want)
					}
				}
			})
		}
		if visited != flows {
			t.Errorf("%s: %d of %d flows were visited", c.name, visited, flows)
		}
	}
}

// TestIdleFlowsAreNotQueried: the kernel is queried about flows that moved nothing since it was asked
// last, and of which nothing is under way, never again.
func TestIdleFlowsAreNotQueried(t *testing.T) {
	nettest.CheckLeaks(t)
	g, flows := crowd(t, 2*portionFlows)
	queried := func() (legs int) {
		for _, s := range g.sampled() {
			for _, l := range []report.LegSample{s.ClientLeg, s.TargetLeg} {
				if l.Known {
					legs++
				}
			}
		}
		return legs
	}
	first := 0
	for range 3 { // new flows, those at rest, and the others
		legs := queried()
		if first += legs; legs > 2*maxVisited {
			t.Errorf("a sample queries the kernel about %d legs", legs)
		}
	}
	if first < 2*flows {
		t.Errorf("the kernel is queried about %d legs of %d", first, 2*flows)
	}
	nettest.Eventually(t, patience, func() bool { return len(g.sampled()) == 0 }, func() string { return "idle flows are visited" })
	for range 3 {
		if legs := queried(); legs != 0 {
			t.Errorf("a sample of %d idle flows queries the kernel about %d legs, want none", flows, legs)
		}
	}
}

// eachPortion visits flows like Sample, up to a number in each loop, and reports the
// number of flows and the duration of each portion.
func (g *rig) eachPortion(left int, visit func(flows int, took time.Duration)) {
	buf := make([]report.Sample, portionFlows)
	for _, w := range g.relay.workers {
		p := places{left: left}
		w.do(func() { w.beginVisits(&p) })
		for more := true; more; {
			n := 0
			var took time.Duration
			w.do(func() {
				begin := time.Now()
				n, more = w.sample(buf, &p)
				took = time.Since(begin)
			})
			visit(n, took)
		}
	}
}

// wakeAll has every flow wait for a visit, as one that rests or not.
func (g *rig) wakeAll(rests bool) {
	for _, w := range g.relay.workers {
		w.do(func() {
			w.eachFlow(func(f *flow) {
				w.stir(f)
				f.rests = rests
			})
		})
	}
}

// crowd makes a relay with idle flows, as many as requested or as this
// process's descriptors allow.
func crowd(t testing.TB, flows int) (g *rig, made int) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	const others = 1000
	more := was
	more.Cur = max(was.Cur, uint64(4*flows+others))
	more.Max = max(was.Max, more.Cur)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &more); err != nil {
		more.Cur = was.Max
		more.Max = was.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &more); err != nil {
			t.Fatal(err)
		}
		flows = min(flows, int(more.Cur-others)/4)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: was.Cur, Max: more.Max}) })
	g = newRig(t, nil)
	clients, targets := make([]net.Conn, flows), make([]net.Conn, flows)
	t.Cleanup(func() {
		for i := range flows {
			for _, c := range []net.Conn{clients[i], targets[i]} {
				if c != nil {
					c.Close()
				}
			}
		}
	})
	for i := range flows {
		var err error
		if clients[i], err = tryDial(g.addr); err != nil {
			t.Fatal(err)
		}
		if targets[i], err = g.target.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	return g, flows
}

// TestEachFlowAsksInTurns holds that a Sample queries the kernel about maxVisited of many busy flows, whose lag it
// reports, and that each flow has its turn. New flows are all visited at once.
func TestEachFlowAsksInTurns(t *testing.T) {
	nettest.CheckLeaks(t)
	g, flows := crowd(t, 3*maxVisited)
	asked, first := map[report.ID]int{}, map[report.ID]bool{}
	lags := []int{}
	for pass := range 6 { // the first two query the kernel about the same ones
		queried := 0
		lag, err := g.relay.Sample(func(portion []report.Sample) {
			for i := range portion {
				s := &portion[i]
				if s.Skipped == s.ClientLeg.Known || s.Unchanged || s.Skipped && pass > 0 || s.Waited != 1 && s.Waited > pass {
					t.Errorf("sample %d: %+v", pass, s)
				}
				if pass == 0 {
					first[s.ID] = true
				}
				if !s.Skipped {
					asked[s.ID]++
					queried++
				}
			}
		})
		if err != nil || queried > maxVisited || queried < maxVisited-len(g.relay.workers) {
			t.Errorf("sample %d queries the kernel about %d flows, %v, want %d", pass, queried, err, maxVisited)
		}
		lags = append(lags, lag)
		g.wakeAll(false)
	}
	if len(first) != flows || len(asked) != flows {
		t.Errorf("%d of %d flows are visited at first, and %d are asked about", len(first), flows, len(asked))
	}
	most := map[report.ID]int{} // of a loop with few flows, a place is for fewer
	for _, w := range g.relay.workers {
		w.do(func() {
			n := int(w.load.Load())
			places := (maxVisited*n + flows - 1) / flows
			w.eachFlow(func(f *flow) { most[report.ID(f.id)] = 1 + (5*places+n-1)/n })
		})
	}
	for id, times := range asked {
		if times > most[id] {
			t.Errorf("the kernel was asked about flow %d %d times in six samples", id, times)
		}
	}
	if last := lags[len(lags)-1]; last < 2 || last > 4 {
		t.Errorf("lags of %v samples, want three or so at last", lags)
	}
}

// TestIdleFlowsTakeNoPlaces holds that the busy flows of a loop have all places that they need while those of the
// other one are at rest.
func TestIdleFlowsTakeNoPlaces(t *testing.T) {
	nettest.CheckLeaks(t)
	g, _ := crowd(t, 2*maxVisited)
	for i, w := range g.relay.workers {
		nettest.Eventually(t, patience, func() bool { return len(g.sampled()) == 0 }, func() string { return "they do not fall quiet" })
		busy, queried := 0, 0
		w.do(func() {
			w.eachFlow(func(f *flow) {
				w.stir(f)
				busy++
			})
		})
		for _, s := range g.sampled() {
			if s.ClientLeg.Known {
				queried++
			}
		}
		if queried != min(busy, maxVisited) {
			t.Errorf("loop %d: the kernel is queried about %d of %d busy flows", i, queried, busy)
		}
	}
}

// TestRunning holds that the relay names all of its flows, and none that has ended.
func TestRunning(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	g.pair()
	c, _ := g.pair()
	running := func() (ids []report.ID) {
		if err := g.relay.Running(func(some []report.ID) { ids = append(ids, some...) }); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	if ids := running(); len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("two flows run, and not %v", ids)
	}
	reset(t, c)
	g.expectReason(report.EndClientReset)
	nettest.Eventually(t, patience, func() bool { return len(running()) == 1 }, func() string { return "a flow that has ended runs" })
	g.relay.Close()
	if err := g.relay.Running(func([]report.ID) {}); err != ErrClosed {
		t.Errorf("a closed relay: %v", err)
	}
}

// TestSumsAreExact holds that a tunnel's bytes are those that have moved, flows at rest and running ones included,
// without a sample; and those of a removed tunnel as long as it has flows, also when it returns.
func TestSumsAreExact(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, s := g.pair()
	want := int64(0)
	move := func(from, to *net.TCPConn, n int) {
		write(t, from, pattern(n))
		expect(t, to, pattern(n))
		want += int64(n)
	}
	sums := func(of func(Snapshot) []report.Tunnel) func() bool {
		return func() bool {
			all := of(g.relay.Overview())
			return len(all) == 1 && all[0].Name == "t" && all[0].BytesUp+all[0].BytesDown == want
		}
	}
	inForce := sums(func(s Snapshot) []report.Tunnel { return s.Tunnels })
	for _, n := range []int{1, 100, 3 * smallRead, 1 << 20} {
		move(c, s, n)
		move(s, c, n+1)
		nettest.Eventually(t, patience, inForce, func() string { return "the sums are wrong" })
	}
	reload := func(tunnels ...Tunnel) {
		t.Helper()
		change, err := g.relay.Prepare(tunnels)
		if err == nil {
			err = change.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	was, life := *g.relay.table.Load().tunnels[0].tunnel, g.relay.Overview().Tunnels[0].Life
	reload()
	move(c, s, 4000)
	nettest.Eventually(t, patience, sums(func(s Snapshot) []report.Tunnel { return s.Removed }), func() string { return "the sums of a removed tunnel are wrong" })
	if all := g.relay.Snapshot().Tunnels; len(all) != 1 || all[0].State != "removed" || all[0].BytesUp+all[0].BytesDown != want {
		t.Errorf("a removed tunnel with a flow is %+v", all)
	}
	reload(was)
	move(s, c, 300)
	nettest.Eventually(t, patience, inForce, func() string { return "the sums are wrong after the tunnel returned" })
	reset(t, c)
	g.expectReason(report.EndClientReset)
	if now := g.relay.Overview().Tunnels[0]; !inForce() || now.Life != life {
		t.Errorf("the sums are wrong after the end, or said to be new: life %d after %d", now.Life, life)
	}
	reload()
	if o := g.relay.Overview(); len(o.Removed) != 0 {
		t.Errorf("a removed tunnel without flows is left: %+v", o.Removed)
	}
	reload(was)
	if now := g.relay.Overview().Tunnels[0]; now.BytesUp != 0 || now.Life == life {
		t.Errorf("a tunnel that returned without flows counts %d bytes, in life %d after %d", now.BytesUp, now.Life, life)
	}
}

func BenchmarkEachFlow(b *testing.B) {
	g, flows := crowd(b, 10_000)
	for _, quiet := range []bool{false, true} {
		name := "busy"
		if quiet {
			name = "quiet"
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if !quiet {
					for _, w := range g.relay.workers {
						w.do(func() { w.eachFlow(func(f *flow) { w.stir(f) }) })
					}
				}
				_, _ = g.relay.Sample(func([]report.Sample) {})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(flows), "ns/flow")
		})
	}
}

func TestEndsAreCounted(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	for i := range 3 {
		c, s := g.pair()
		if i == 0 {
			reset(t, c)
			expectReset(t, s)
			continue
		}
		c.CloseWrite()
		expectEnd(t, s)
		s.CloseWrite()
		expectEnd(t, c)
	}
	want := []report.Ended{{Reason: report.EndClientReset, EndedBy: "client", Flows: 1}, {Reason: report.EndClean, EndedBy: "both", Flows: 2}}
	var got []report.Ended
	nettest.Eventually(t, patience, func() bool {
		got = g.relay.Overview().Tunnels[0].Ended
		return slices.Equal(got, want)
	}, func() string { return "the ends are not counted" })
}

func TestEveryReasonIsCounted(t *testing.T) {
	if len(report.EndReasons) > maxReasons {
		t.Fatalf("%d reasons, room for %d", len(report.EndReasons), maxReasons)
	}
	var c endCounts
	for i, r := range report.EndReasons {
		for range i + 1 {
			c.add(r)
		}
	}
	var byPeer endCounts
	byPeer.add(report.EndIdle)
	list := endList(&c, &byPeer)
	if want := (report.Ended{Reason: report.EndIdle, EndedBy: "peer", Flows: 1}); list[len(list)-1] != want {
		t.Errorf("told by the peer: %+v, want %+v", list[len(list)-1], want)
	}
	list = list[:len(list)-1]
	if len(list) != len(report.EndReasons) {
		t.Fatalf("%d of %d reasons", len(list), len(report.EndReasons))
	}
	for i, e := range list {
		if e.Flows != int64(i+1) || e.Reason != report.EndReasons[i] || !slices.Contains([]string{"client", "target", "both", "relay"}, e.EndedBy) {
			t.Errorf("a reason is out of order or counted wrong: %+v", e)
		}
	}
}
