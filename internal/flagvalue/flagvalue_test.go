package flagvalue

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestValues(t *testing.T) {
	var (
		d       time.Duration
		share   float64
		rateBps int64 = 1
	)
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Add(flags, "rtt", "", "63ms", Duration(&d))
	Add(flags, "loss", "", "0", Share(&share))
	Add(flags, "rate", "", "1Gbit", Rate(&rateBps))
	for _, mistake := range []struct{ flag, value, want string }{
		{"rtt", "63x", "write it like 63ms"},
		{"loss", "150%", `invalid share "150%"`},
		{"loss", "NaN", `invalid share "NaN"`},
		{"rate", "fast", "write it like 1Gbit or 100Mbit"},
	} {
		if err := flags.Set(mistake.flag, mistake.value); err == nil || !strings.Contains(err.Error(), mistake.want) {
			t.Errorf("--%s %s: error %v, want %q", mistake.flag, mistake.value, err, mistake.want)
		}
	}
	if got := flags.Lookup("rtt").Value.String(); got != "63ms" {
		t.Errorf("after a mistake --rtt is %s, want the usual 63ms", got)
	}
	for _, arg := range []string{"rtt=20ms", "loss=2.5%", "rate=0"} {
		name, value, _ := strings.Cut(arg, "=")
		if err := flags.Set(name, value); err != nil || flags.Lookup(name).Value.String() != value {
			t.Errorf("--%s: %v", arg, err)
		}
	}
	if d != 20*time.Millisecond || share != 0.025 || rateBps != 0 {
		t.Errorf("got %v, %v, %v", d, share, rateBps)
	}
	if err := flags.Set("rtt", "2"); err != nil || d != 2*time.Second {
		t.Errorf("--rtt 2 is %v, %v; want 2 s", d, err)
	}
}

func TestList(t *testing.T) {
	l := List[time.Duration]{Parse: Parse(Duration)}
	if err := l.Set("1ms"); err != nil {
		t.Fatal(err)
	}
	if err := l.Set("10ms, 2s"); err != nil {
		t.Fatal(err)
	}
	if want := []time.Duration{10 * time.Millisecond, 2 * time.Second}; !slices.Equal(l.Values, want) || l.String() != "10ms, 2s" {
		t.Errorf("%v (%s), want %v", l.Values, l.String(), want)
	}
	if err := l.Set("1ms,soon"); err == nil {
		t.Error("a list with a mistake is taken")
	}
}
