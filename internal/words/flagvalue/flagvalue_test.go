package flagvalue

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestValues(t *testing.T) {
	d, share, rateBps, n, names := 63*time.Millisecond, 0.1, int64(1e9), 3, []string{"a", "b"}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddDuration(flags, &d, "rtt", "")
	AddShare(flags, &share, "loss", "")
	AddRate(flags, &rateBps, "rate", "")
	AddCount(flags, &n, "repeat", "")
	AddNames(flags, &names, "case", "")
	for _, f := range []struct{ flag, placeholder, usual string }{
		{"rtt", "DURATION", "63ms"}, {"loss", "SHARE", "10%"}, {"rate", "RATE", "1Gbit"},
		{"repeat", "N", "3"}, {"case", "LIST", "a,b"},
	} {
		flag := flags.Lookup(f.flag)
		if placeholder, _ := pflag.UnquoteUsage(flag); placeholder != f.placeholder || flag.DefValue != f.usual {
			t.Errorf("--%s %s (default %s), want %s and %s", f.flag, placeholder, flag.DefValue, f.placeholder, f.usual)
		}
	}
	for _, mistake := range []struct{ flag, value, want string }{
		{"rtt", "63x", "write it like 63ms"},
		{"loss", "150%", `invalid share "150%"`},
		{"loss", "NaN", `invalid share "NaN"`},
		{"rate", "fast", "write it like 1Gbit or 100Mbit"},
		{"repeat", "-1", `invalid number "-1": write a whole number from 0`},
		{"repeat", "9223372036854775808", "invalid number"},
		{"case", "a,,b", "separate names by commas"},
	} {
		if err := flags.Set(mistake.flag, mistake.value); err == nil || !strings.Contains(err.Error(), mistake.want) {
			t.Errorf("--%s %s: error %v, want %q", mistake.flag, mistake.value, err, mistake.want)
		}
	}
	if got := flags.Lookup("rtt").Value.String(); got != "63ms" {
		t.Errorf("after a mistake --rtt is %s, want the usual 63ms", got)
	}
	for _, arg := range []string{"rtt=20ms", "loss=2.5%", "rate=0", "repeat=7"} {
		name, value, _ := strings.Cut(arg, "=")
		if err := flags.Set(name, value); err != nil || flags.Lookup(name).Value.String() != value {
			t.Errorf("--%s: %v", arg, err)
		}
	}
	if d != 20*time.Millisecond || share != 0.025 || rateBps != 0 || n != 7 {
		t.Errorf("got %v, %v, %v, %v", d, share, rateBps, n)
	}
	for _, list := range []string{"c, d", "e"} {
		if err := flags.Set("case", list); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(names, []string{"c", "d", "e"}) {
		t.Errorf("--case c,d --case e gives %q", names)
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
