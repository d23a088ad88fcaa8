package congestion

import (
	"encoding/json"
	"errors"
	"io/fs"
	"testing"
	"time"

	"longhaul/bench/kit/congestion/receiver"
	"longhaul/lab"
	"longhaul/test/nettest"
)

// A trial has every kind of flow: on each leg of two links, from afar, bounded ones again
// and again, and a real-time flow.
func TestTrial(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	trial := Trial{
		Path: quick(), Time: 4 * time.Second, SecondLink: true, NoTimestamps: true,
		Groups: []Group{
			{Algorithm: "reno", Flows: 2, Leg: BothLinks},
			{Algorithm: "reno", Flows: 1, Leg: SecondLink},
			{Algorithm: "cubic", Flows: 1, RTTRatio: 3},
			{Algorithm: "reno", Flows: 1, Bytes: 1000, Every: 500 * ms},
		},
		Media: Media{RateBps: 1e6, Frame: 20 * ms},
	}
	out, err := trial.Run(t.Context(), "all", options(time.Second, "reno"))
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Groups) != 4 || out.Broken != "" {
		t.Fatalf("outcome %+v", out)
	}
	for i, flows := range []int{2, 1, 1} {
		g := out.Groups[i]
		if len(g.GoodputBps) != flows || len(g.SteadyBps) != flows || len(g.SentSeriesBps) != 4 || g.Seconds != nil {
			t.Errorf("group %d: %+v", i, g)
		}
		if g.GoodputBps[0] <= 0 {
			t.Errorf("group %d delivers nothing", i)
		}
	}
	if short := out.Groups[3]; len(short.Seconds) != 3 || short.GoodputBps != nil { // at 0, 0.5 and 1 s
		t.Errorf("short flows: %+v", short)
	}
	if out.Media.Packets == 0 || !out.Media.DelayP50Ms.Some() || float64(out.Media.DelayP50Ms) < milliseconds(trial.Path.RTT)/2 {
		t.Errorf("media %+v, want a delay of at least %v", out.Media, trial.Path.RTT/2)
	}
	data, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	var again Outcome
	if err := json.Unmarshal(data, &again); err != nil || again.Media != out.Media {
		t.Errorf("read back %+v: %v", again.Media, err)
	}

	trial.Groups[0].RTTRatio = 2
	if _, err := trial.Run(t.Context(), "two ratios", options(time.Second, "reno")); err == nil {
		t.Error("two far sites are accepted")
	}
}

func TestMediaOutcome(t *testing.T) {
	begin := time.Unix(1e9, 0)
	var sentAt []time.Time
	delays := map[uint32]time.Duration{}
	for i := range 300 { // 3 s
		sentAt = append(sentAt, begin.Add(time.Duration(i)*10*ms))
		delays[uint32(i)] = time.Duration(i+1) * ms
	}
	delete(delays, 10)  // lost
	delete(delays, 299) // under way
	o := mediaOutcome(sentAt, delays)
	near(t, "the lost share", float64(o.Lost), 1.0/199, 1e-9)
	near(t, "the median", float64(o.DelayP50Ms), 151, 1)
	near(t, "the 99th percentile", float64(o.DelayP99Ms), 297, 1)
	if o := mediaOutcome(nil, nil); o.Lost.Some() || o.DelayP99Ms.Some() {
		t.Errorf("nothing sent: %+v", o)
	}
}

// A receiver in user space completes the handshake and acknowledges, whatever it does.
func TestUserReceivers(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	for _, does := range []receiver.Behaviour{receiver.Honest, receiver.DividesACKs, receiver.ConcealsLoss, receiver.Optimistic, receiver.ConcealsMarks} {
		trial := Trial{Path: quick(), Time: time.Second, Groups: []Group{
			{Algorithm: "reno", Flows: 1, Receiver: does}, {Algorithm: "cubic", Flows: 1},
		}}
		out, err := trial.Run(t.Context(), does.String(), options(time.Second))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			t.Skip("TUN devices cannot be made here")
		}
		if err != nil {
			t.Fatal(err)
		}
		if g := out.Groups[0]; g.GoodputBps[0] <= 0 || g.DeliveredBps <= 0 || out.Groups[1].GoodputBps[0] <= 0 {
			t.Errorf("%s: %+v", does, out)
		}
	}
	two := Trial{Path: quick(), Time: time.Second, Groups: []Group{{Algorithm: "reno", Flows: 2, Receiver: receiver.Honest}}}
	if _, err := two.Run(t.Context(), "two", options(time.Second)); err == nil {
		t.Error("two flows to the receiver are accepted")
	}
}

const rttRatio = 6

// The far host's round trips are six times those of the near one, and its
// connection crosses the same bottleneck.
func TestFarHost(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	p := quick()
	n, err := build(p, withFarHost(lab.TwoSites(p.Conditions), p.RTT, rttRatio))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	near, far := n.flow("reno"), n.flow("reno")
	near.bytes, far.bytes = 1000, 1000
	far.from = n.Host(farHost)
	flows, err := runFlows(t.Context(), []flowSpec{near, far}, patience, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []time.Duration{p.RTT, rttRatio * p.RTT} {
		if flows[i].finished == 0 || flows[i].err != nil {
			t.Fatalf("flow %d finished after %v: %v", i, flows[i].finished, flows[i].err)
		}
		if got := flows[i].connected; got < want { // connect takes a round trip, at least
			t.Errorf("flow %d connected after %v, before a round trip of %v", i, got, want)
		}
	}
}
