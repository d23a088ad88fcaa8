package units

import (
	"testing"
	"time"
)

func TestParseRate(t *testing.T) {
	tests := []struct {
		in   string
		want Rate // 0: refused
	}{
		{"1Gbit", 1e9}, {"1gbit", 1e9}, {"100Mbit/s", 1e8}, {"2.5Gb/s", 25e8}, {"64kbit", 64e3}, {"9600bit", 9600},
		{"1.5Mbit", 15e5}, {"10b/s", 10}, {"1Tbit", 1e12},
		{"1G", 1e9}, {"200M", 2e8}, {"64k", 64e3}, {"64K", 64e3}, {"1m", 0}, {"1M/s", 0}, {"1", 0}, {"", 0}, {"Gbit", 0}, {"1GB/s", 0}, {"1Gbps", 0}, {"-1Gbit", 0}, {"1e9bit", 0},
		{"1Xbit", 0}, {"99999999999Gbit", 0}, {"1 Gbit", 0}, {".bit", 0}, {"1.2.3bit", 0}, {"bit", 0}, {"/s", 0},
	}
	for _, tt := range tests {
		got, err := ParseRate(tt.in)
		if got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("ParseRate(%q) = %d, %v; want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want Size // -1: refused
	}{
		{"16MiB", 16 << 20}, {"16MB", 16e6}, {"1460", 1460}, {"1460B", 1460}, {"0", 0}, {"1.5KiB", 1536}, {"2GiB", 2 << 30}, {"4kB", 4000},
		{"16M", 16 << 20}, {"64k", 64 << 10}, {"1.5G", 3 << 29},
		{"", -1}, {"MiB", -1}, {"M", -1}, {"16Mb", -1}, {"16 MiB", -1}, {"-1", -1}, {"99999999999999999999", -1}, {"9223372036854775807KiB", -1}, {"16mib", -1},
	}
	for _, tt := range tests {
		got, err := ParseSize(tt.in)
		if err != nil {
			got = -1
		}
		if got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	tests := []struct {
		in   string
		want time.Duration // -1: refused
	}{
		{"500ms", 500 * time.Millisecond}, {"1m30s", 90 * time.Second}, {"7d", 168 * time.Hour}, {"0.5d", 12 * time.Hour}, {"0s", 0},
		{"", -1}, {"5", 5 * time.Second}, {"0.5", 500 * time.Millisecond}, {".", -1}, {"-5s", -1}, {"+5s", -1}, {"5 s", -1}, {"d", -1}, {"1d2h", -1}, {"999999999d", -1},
	}
	for _, tt := range tests {
		got, err := ParseDuration(tt.in)
		if err != nil {
			got = -1
		}
		if got != tt.want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", tt.in, got, err, tt.want)
		}
	}
}

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
