package linkcheck_test

import (
	"fmt"
	"testing"
	"time"

	"longhaul/internal/lab/link"
	"longhaul/internal/lab/linkcheck"
	"longhaul/internal/lab/linktest"
	"longhaul/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func newPath(t *testing.T, kind linktest.Kind, ab, ba link.Settings, v6 bool) linkcheck.Path {
	t.Helper()
	a, b, l := linktest.New(t, kind, 1500, ab, ba)
	p := linkcheck.Path{Link: l, A: linkcheck.Host{Addr: a.V4, Run: a.Run}, B: linkcheck.Host{Addr: b.V4, Run: b.Run}}
	if v6 {
		p.A.Addr, p.B.Addr = a.V6, b.V6
	}
	return p
}

// settles expects every row of a measurement to hold.
func settles(t *testing.T, measure func() ([]linkcheck.Row, error)) {
	t.Helper()
	nettest.Settles(t, func() error {
		rows, err := measure()
		for _, row := range rows {
			t.Logf("%-45s asked %-28s got %s", row.What, row.Asked, row.Got)
			if !row.OK && err == nil {
				err = fmt.Errorf("%s: asked %s, got %s", row.What, row.Asked, row.Got)
			}
		}
		return err
	})
}

// one makes a measurement of one row one of several.
func one(row linkcheck.Row, err error) ([]linkcheck.Row, error) {
	return []linkcheck.Row{row}, err
}

func forEachKind(t *testing.T, f func(t *testing.T, kind linktest.Kind)) {
	for _, kind := range linktest.Kinds {
		t.Run(kind.Name, func(t *testing.T) { f(t, kind) })
	}
}

func TestIdleRTT(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, kind.Name == "veth")
		for _, rtt := range []time.Duration{0, 200 * time.Microsecond, 10 * time.Millisecond, 63 * time.Millisecond, 300 * time.Millisecond} {
			for _, dir := range []link.Direction{link.AToB, link.BToA} {
				if err := p.Link.Set(dir, link.Settings{Delay: rtt / 2, RateBps: 1e9}); err != nil {
					t.Fatal(err)
				}
			}
			settles(t, func() ([]linkcheck.Row, error) { return one(p.IdleRTT(t.Context())) })
		}
	})
}

func TestRate(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, kind.Name == "veth")
		for _, s := range []link.Settings{
			{RateBps: 1e6}, {RateBps: 10e6}, {RateBps: 100e6},
			{RateBps: 20e6, ATM: true}, {RateBps: 100e6, PacketsPerSecond: 2000},
		} {
			s.Delay = time.Millisecond
			if err := p.Link.Set(link.AToB, s); err != nil {
				t.Fatal(err)
			}
			settles(t, func() ([]linkcheck.Row, error) { return one(p.Rate(t.Context(), link.AToB)) })
		}
	})
}

func TestPolicer(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, kind.Name == "veth")
		for _, rate := range []int64{5e6, 50e6} {
			s := link.Settings{Delay: time.Millisecond, RateBps: 2 * rate, Policer: link.Policer{RateBps: rate, BurstBytes: 64 << 10}}
			if err := p.Link.Set(link.AToB, s); err != nil {
				t.Fatal(err)
			}
			before := p.Link.Counters(link.AToB)
			settles(t, func() ([]linkcheck.Row, error) { return one(p.Policer(t.Context(), link.AToB)) })
			if c := p.Link.Counters(link.AToB); c.Policed == before.Policed || c.QueueDrops != before.QueueDrops {
				t.Errorf("policed at %d bit/s: counters %+v, before %+v", rate, c, before)
			}
		}
	})
}

func TestLoss(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		p := newPath(t, kind, link.Settings{}, link.Settings{}, false)
		for _, loss := range []link.Loss{
			{},
			{Probability: 0.01},
			{Probability: 0.1},
			{Probability: 0.001, ToBad: 0.005, ToGood: 0.2, BadProbability: 0.5},
		} {
			if err := p.Link.Set(link.BToA, link.Settings{Delay: time.Millisecond, Loss: loss, Seed: 42}); err != nil {
				t.Fatal(err)
			}
			settles(t, func() ([]linkcheck.Row, error) {
				lost, pattern, err := p.Loss(t.Context(), link.BToA, 20_000)
				return []linkcheck.Row{lost, pattern}, err
			})
		}
	})
}

// At a tenth of what lab check asks for, so that a busy machine does not fail it.
func TestTCP(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		s := link.Settings{Delay: 10 * time.Millisecond, RateBps: 100e6, Loss: link.Loss{Probability: 0.1}}
		p := newPath(t, kind, s, s, false)
		settles(t, func() ([]linkcheck.Row, error) {
			before := p.Link.Counters(link.AToB).DeviceDrops
			row, err := p.TCP(t.Context(), link.AToB, 2*time.Second)
			if n := p.Link.Counters(link.AToB).DeviceDrops - before; err == nil && n > 0 {
				err = fmt.Errorf("%d packets were lost beside the settings", n)
			}
			return one(row, err)
		})
		if got := p.Link.Settings(link.AToB); got != s {
			t.Errorf("the settings were left as %+v", got)
		}
		// In front of a veth port an emulator that runs late loses some.
		if c := p.Link.Counters(link.AToB); c.WriteErrors != 0 || c.DeviceDrops != 0 && kind.Name != "veth" {
			t.Errorf("lost beside the settings: %+v", c)
		}
	})
}
