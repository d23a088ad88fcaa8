//go:build timed

package calibrate_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"longhaul/lab/calibrate"
	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// holds expects every row of a measurement to be as asked.
func holds(t *testing.T, measure func() (calibrate.Row, error)) {
	t.Helper()
	nettest.MostOf(t, func() error {
		row, err := measure()
		if err != nil {
			return err
		}
		t.Logf("%-45s asked %-28s got %s", row.What, row.Asked, row.Got)
		if !row.OK {
			return fmt.Errorf("%s: asked %s, got %s", row.What, row.Asked, row.Got)
		}
		return nil
	})
}

func TestIdleRTTIsAsAsked(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, kind.Name == "veth")
		for _, rtt := range []time.Duration{0, 200 * time.Microsecond, 10 * time.Millisecond, 63 * time.Millisecond, 300 * time.Millisecond} {
			for _, dir := range []link.Direction{link.AToB, link.BToA} {
				nettest.Must(t, p.Link.Set(dir, link.Settings{Delay: rtt / 2, RateBps: 1e9}))
			}
			holds(t, func() (calibrate.Row, error) { return p.IdleRTT(t.Context()) })
		}
	})
}

func TestRateIsAsAsked(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, kind.Name == "veth")
		for _, s := range []link.Settings{
			{RateBps: 1e6}, {RateBps: 10e6}, {RateBps: 100e6},
			{RateBps: 20e6, ATM: true}, {RateBps: 100e6, PacketsPerSecond: 2000},
		} {
			s.Delay = time.Millisecond
			nettest.Must(t, p.Link.Set(link.AToB, s))
			holds(t, func() (calibrate.Row, error) { return p.Rate(t.Context(), link.AToB) })
		}
	})
}

func TestPolicerAdmitsItsRate(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, kind.Name == "veth")
		for _, rate := range []int64{5e6, 50e6} {
			nettest.Must(t, p.Link.Set(link.AToB, policed(rate)))
			holds(t, func() (calibrate.Row, error) { return p.Policer(t.Context(), link.AToB) })
		}
	})
}

// At a tenth of the rate that lab calibrate asks for.
func TestTCPFillsTheLink(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		s := tcpPath()
		p := newPath(t, kind, s, s, false)
		holds(t, func() (calibrate.Row, error) { return p.TCP(t.Context(), link.AToB, 2*time.Second) })
	})
}

func TestManagedQueues(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, false)
		for _, algorithm := range []link.AQMAlgorithm{link.CoDel, link.FQCoDel, link.PIE} {
			s := link.Settings{Delay: time.Millisecond, RateBps: 20e6, AQM: link.AQM{Algorithm: algorithm, ECN: true}}
			nettest.Must(t, p.Link.Set(link.AToB, s))
			holds(t, func() (calibrate.Row, error) { return p.Wait(t.Context(), link.AToB) })
			holds(t, func() (calibrate.Row, error) { return p.Marks(t.Context(), link.AToB) })
			if algorithm == link.FQCoDel {
				holds(t, func() (calibrate.Row, error) { return p.Isolation(t.Context(), link.AToB) })
			}
		}
	})
}

func TestAccessNetwork(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		s := real(t)
		p := newPath(t, kind, s, s, kind.Name == "veth")
		for _, measure := range []func(context.Context, link.Direction) (calibrate.Row, error){
			p.Trace, p.Policer, p.MarkAbove, p.Thinning, p.Aggregation, p.RateLoss,
		} {
			holds(t, func() (calibrate.Row, error) { return measure(t.Context(), link.AToB) })
		}
	})
}
