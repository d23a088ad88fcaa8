package units

import "testing"

// FuzzUnits holds that what a unit writes, it reads back as the same value.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"1Gbit", "2.5Gb/s", "16MiB", "1m30s", "7d", "1e9", "0x10", "..", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseRate(s); err == nil {
			if again, err := ParseRate(v.String()); err != nil || again != v || v < 0 {
				t.Errorf("rate %q = %d, written %s, read %d, %v", s, v, v, again, err)
			}
		}
		if v, err := ParseSize(s); err == nil {
			if again, err := ParseSize(v.String()); err != nil || again != v || v < 0 {
				t.Errorf("size %q = %d, written %s, read %d, %v", s, v, v, again, err)
			}
		}
		if v, err := ParseDuration(s); err == nil {
			if again, err := ParseDuration(FormatDuration(v)); err != nil || again != v || v < 0 {
				t.Errorf("duration %q = %d, written %s, read %d, %v", s, v, FormatDuration(v), again, err)
			}
		}
	})
}
