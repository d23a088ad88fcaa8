package pair

import (
	"testing"
	"time"
)

// TestVerification holds what is found from the rates of lanes, with the others and alone.
func TestVerification(t *testing.T) {
	all := [3]*lane{{}, {}, {}}
	rates := func(values ...float64) (r laneRates) {
		for i, rate := range values {
			r = append(r, laneRate{all[i], rate})
		}
		return r
	}
	beside, paused := rates(10, 10, 10), rates(10, 0, 0)
	for _, c := range []struct {
		name  string
		takes []laneRates
		queue time.Duration
		want  verdict
	}{
		{"nothing changes", []laneRates{beside, paused, beside, paused, beside, paused, beside}, 0, separate},
		{"one pause is not enough", []laneRates{beside, paused, beside}, 0, undecided},
		{"it doubles alone", []laneRates{beside, rates(20, 0, 0), beside, rates(20, 0, 0), beside}, 0, contending},
		{"the others are other", []laneRates{rates(10, 3, 30), paused, rates(10, 3, 30), paused, rates(10, 3, 30), paused, rates(10, 3, 30)}, 0, separate},
		{"the other relay goes on", []laneRates{beside, beside}, 0, crowded},
		{"a queue stands", []laneRates{beside, paused, beside, paused}, 5 * time.Millisecond, crowded},
		{"the others have less, and fill no queue", []laneRates{rates(10, 5, 5), paused, rates(10, 5, 5), paused, rates(10, 5, 5), paused, rates(10, 5, 5), paused, rates(10, 5, 5)}, 0, separate},
		{"another main lane", []laneRates{beside, rates(20, 0, 0), {{all[1], 10}, {all[2], 10}}}, 0, undecided},
		{"rates that say nothing", []laneRates{beside, rates(20), rates(10, 2, 30), rates(6), rates(20, 20, 10), rates(30),
			rates(8, 4, 20), rates(9), rates(20, 9, 20), rates(5), rates(9, 22, 4), rates(12), rates(14, 10, 10)}, 0, uncertain},
	} {
		v := &verification{lanes: 3}
		got := undecided
		for _, r := range c.takes {
			if got != undecided {
				break
			}
			got, _ = v.take(r, c.queue)
		}
		if got != c.want {
			t.Errorf("%s: verdict %d, want %d; shares %v", c.name, got, c.want, v.shares)
		}
	}
}

// TestVerificationOfFullLink holds that lanes are too many that fill a link which is not full
// without them, although the main lane loses nothing.
func TestVerificationOfFullLink(t *testing.T) {
	all := [3]*lane{{}, {}, {}}
	v := &verification{lanes: 3, fills: true}
	got := undecided
	for range 3 {
		for _, r := range []laneRates{{{all[0], 10}, {all[1], 6}, {all[2], 6}}, {{all[0], 10}, {all[1], 0}, {all[2], 0}}} {
			if got == undecided {
				got, _ = v.take(r, 0)
			}
		}
	}
	if got != contending || v.remain(got) != 2 {
		t.Errorf("verdict %d, which leaves %d lanes, want %d and 2", got, v.remain(got), contending)
	}
}
