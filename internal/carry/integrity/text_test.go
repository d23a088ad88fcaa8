package integrity

import (
	"strings"
	"testing"
	"time"
)

// A relay's clock that is off is a note below its chain, which is whole all the same.
func TestReportNotesClocks(t *testing.T) {
	off, well := int64(-7*60), int64(60)
	var b strings.Builder
	report := Report{Tunnel: "t", State: Whole, Chains: []Chain{{State: Whole, Hops: []Hop{
		{Kind: KindRelay, Host: "relay-b", ClockAheadSeconds: &well},
		{Kind: KindRelay, Host: "relay-c", ClockAheadSeconds: &off},
		{Kind: KindTarget},
	}}}}
	if err := report.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := "    the clock of relay-c is 7m0s behind this relay's; timedatectl there and\n    here tells whether it is kept right (NTP)\n"
	if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "clock of relay-b") {
		t.Errorf("want %q in\n%s", want, b.String())
	}
}

// A report's line says how old it is and stays within 80 columns.
func TestReportLine(t *testing.T) {
	now := time.Now()
	line := Report{Tunnel: "t", At: now.Add(-90 * time.Second), State: Broken, Summary: strings.Repeat("no answer ", 12)}.Line(now)
	if !strings.HasPrefix(line, "  check 90s ago: broken: no answer ") || len([]rune(line)) != 80 || !strings.HasSuffix(line, "…") {
		t.Errorf("%q", line)
	}
}

// A hop that was not reached has a name in the table all the same.
func TestReportNamesEveryHop(t *testing.T) {
	for _, test := range []struct {
		hop  Hop
		want string
	}{
		{Hop{Kind: KindUnknown}, "target"},
		{Hop{Kind: KindTarget}, "target"},
		{Hop{Kind: KindTarget, Host: "server"}, "target server"},
		{Hop{Kind: KindRelay, Host: "relay-b"}, "relay-b"},
	} {
		if got := test.hop.label(); got != test.want {
			t.Errorf("%+v is %q, want %q", test.hop, got, test.want)
		}
	}
}
