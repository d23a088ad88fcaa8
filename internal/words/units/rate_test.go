package units

import "testing"

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

func TestFormatRate(t *testing.T) {
	for got, want := range map[string]string{
		FormatRate(1e9): "1 Gb/s", FormatRate(2.5e9): "2.5 Gb/s", FormatRate(45_000_000): "45 Mb/s",
		FormatRate(9600): "9.6 kb/s", FormatRate(300): "300 b/s", FormatRate(123_456_789): "123 Mb/s",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
