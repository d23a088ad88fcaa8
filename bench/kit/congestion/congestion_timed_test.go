//go:build timed

package congestion

import (
	"fmt"
	"math"
	"testing"
	"time"

	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/test/nettest"
)

// A lossless run fills the link, soon, and with no more queue than there is room
// for.
func TestSingleFillsTheLink(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.MostOf(t, func() error {
		result, err := Single(t.Context(), quick(), options(3*time.Second, "cubic", "reno"))
		if err != nil {
			return err
		}
		for _, c := range result.Cases {
			last := len(c.Runs[0].RTTSeriesMs) - 1
			// The smoothed round trip is the path's, with the queue on top.
			rtt, cwnd := c.Runs[0].RTTSeriesMs[last], c.Runs[0].CwndSeries[last]
			if c.SteadyBps < 0.8*c.LimitBps || c.SteadyBps > 1.05*c.LimitBps || !c.SecondsTo90.Some() || c.SecondsTo90 > 2 ||
				c.QueueP95Ms <= 0 || c.SentPerDelivered > 1.2 || rtt > 60 || cwnd < 10 {
				return fmt.Errorf("%s does not fill the link: at the end the round trip is %v ms and the window %v packets; %+v", c.Name, rtt, cwnd, c)
			}
		}
		return nil
	})
}

// 10 % of loss are seen as 10 %, and reno does not get through them.
func TestSingleWithLoss(t *testing.T) {
	nettest.RequireSandbox(t)
	p := quick()
	p.Loss.Probability = 0.1
	nettest.MostOf(t, func() error {
		result, err := Single(t.Context(), p, options(3*time.Second, "reno"))
		if err != nil {
			return err
		}
		c := result.Cases[0]
		if c.SteadyBps > 0.5*c.LimitBps || c.SecondsTo90.Some() {
			return fmt.Errorf("reno reaches %.0f %% of the limit through 10 %% loss, and 90 %% after %v s", 100*c.SteadyBps/c.LimitBps, c.SecondsTo90)
		}
		if math.Abs(float64(c.SentPerDelivered)-1/0.9) > 0.06 || math.Abs(float64(c.RetransmitRatio)-0.1) > 0.05 {
			return fmt.Errorf("sent ÷ delivered is %v, want 1.11; %v is sent again, want 0.1", c.SentPerDelivered, c.RetransmitRatio)
		}
		return nil
	})
}

// Connections take a round trip, and not a second one.
func TestFarHostIsNoFarther(t *testing.T) {
	nettest.RequireSandbox(t)
	p := quick()
	nettest.MostOf(t, func() error {
		n, err := build(p, withFarHost(lab.TwoSites(p.Conditions), p.RTT, rttRatio))
		if err != nil {
			return err
		}
		defer n.Close()
		near, far := n.flow("reno"), n.flow("reno")
		near.bytes, far.bytes = 1000, 1000
		far.from = n.Host(farHost)
		flows, err := runFlows(t.Context(), []flowSpec{near, far}, patience, nil)
		if err != nil {
			return err
		}
		for i, want := range []time.Duration{p.RTT, rttRatio * p.RTT} {
			if got := flows[i].connected; got > want+p.RTT {
				return fmt.Errorf("flow %d connected after %v, want a round trip of %v", i, got, want)
			}
		}
		return nil
	})
}

// Real flows through shortened faults: the link changes when it should and
// changes back.
func TestFaultsMeetFlows(t *testing.T) {
	nettest.RequireSandbox(t)
	p := quick()
	p.RTT = 40 * ms
	when := shape{at: 2500 * ms, after: 3 * time.Second}
	for _, name := range []string{"outage", "rate-cut", "policer"} {
		t.Run(name, func(t *testing.T) {
			f := faultNamed(t, name)
			f.lasts = min(f.lasts, 2500*ms)
			nettest.MostOf(t, func() error {
				r, err := f.run(t.Context(), when, p, "cubic", options(0, "cubic"), 1, 1)
				if err != nil {
					return err
				}
				during := func(from, to time.Duration) float64 {
					return stats.Mean(r.delivery[from/sampleEvery:to/sampleEvery]) / p.LimitBps()
				}
				if !(math.Abs(float64(r.BeforeShare)-0.9) <= 0.11) { // nor is None
					return fmt.Errorf("delivery before is %v, want 0.9 ± 0.11", r.BeforeShare)
				}
				if last := during(when.time(f)-time.Second, when.time(f)); last < 0.3 {
					return fmt.Errorf("at the end it delivers %.2f of the limit, want 0.3 or more", last)
				}
				least, most := map[string]float64{"rate-cut": 0.08}[name], map[string]float64{"outage": 0.01, "rate-cut": 0.12, "policer": 0.55}[name]
				if got := during(3500*ms, 5*time.Second); got < least || got > most {
					return fmt.Errorf("in the midst of the fault it delivers %.3f of the limit, want %v to %v", got, least, most)
				}
				if share := float64(r.DuringShare); name == "rate-cut" && (share < 0.8 || share > 1.2) {
					return fmt.Errorf("at a tenth of the rate it delivers %.2f of what there is, want 1 ± 0.2", share)
				}
				return nil
			})
		})
	}
}
