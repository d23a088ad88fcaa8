package flow

import "testing"

func TestLevel(t *testing.T) {
	for name, c := range map[string]struct {
		sent Sent
		want Level
	}{
		"nothing":                           {Sent{}, LevelUnknown},
		"not known":                         {Sent{-1, -1, -1}, LevelUnknown},
		"acknowledgements of ssh":           {Sent{75_000, 428, 1}, LevelUnknown},
		"5 of 127 segments":                 {Sent{184_000, 6_826, 5}, LevelUnknown},
		"4 of 1000 segments":                {Sent{1_448_000, 5_792, 4}, LevelLow},
		"5 of 1000 segments":                {Sent{1_448_000, 7_240, 5}, LevelRaised},
		"10 of 1000 segments":               {Sent{1_448_000, 14_480, 10}, LevelHigh},
		"9 of 10 000 segments":              {Sent{14_480_000, 13_032, 9}, LevelLow},
		"1000 of 10 000, all of them DSACK": {Sent{14_480_000, 1_448_000, 0}, LevelLow},
		"1000 of 10 000, 950 of them DSACK": {Sent{14_480_000, 1_448_000, 50}, LevelRaised},
		"small segments":                    {Sent{2_000_000, 10_000, 200}, LevelRaised},
	} {
		if got := c.sent.Level(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := (Sent{-1, -1, -1}).Plus(Sent{}).Share(); got >= 0 {
		t.Errorf("the share of what is not known is %g", got)
	}
}
