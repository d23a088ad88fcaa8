package units

import (
	"testing"
	"time"
)

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
