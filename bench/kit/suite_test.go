package kit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"longhaul/lab/experiment"
	"longhaul/test/nettest"
)

func TestResult(t *testing.T) {
	c := CaseResult{Name: "outage", About: "outages of 20 s at random moments, flows that begin and end all the time, and a long text behind it"}
	for _, seconds := range []float64{0.4, 0.9, 0.5} {
		c.Add("pair", Measured{Name: "goes on after it, slowest", Unit: "s", Value: seconds, Bound: AtMost(0.8), Exact: true})
		c.Add("pair", Measured{Name: "goes on after it, median", Unit: "s", Value: seconds, Bound: AtMost(0.8)})
		c.Add("plain", Measured{Name: "goes on after it, slowest", Unit: "s", Value: 12 * seconds})
		c.Add("pair", Measured{Name: "first second, of the limit", Value: 0.95, Bound: AtLeast(0.9)})
	}
	c.Skipped = []Skipped{{"stunnel", "needs stunnel4 (Debian package stunnel4)"}}
	c.Figures[0].First = "flow 12: " + strings.Repeat("read: connection reset by peer ", 5)
	c.Finish()
	verdicts := []string{}
	for _, f := range c.Figures {
		verdict := "-"
		if f.OK != nil {
			verdict = fmt.Sprint(*f.OK)
		}
		verdicts = append(verdicts, fmt.Sprintf("%s %s %.1f %s", f.Way, f.Name, f.Median, verdict))
	}
	want := []string{"pair goes on after it, slowest 0.5 false", "pair goes on after it, median 0.5 true",
		"plain goes on after it, slowest 6.0 -", "pair first second, of the limit 0.9 true"}
	if fmt.Sprint(verdicts) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", verdicts, want)
	}
	r := Result{Repeat: 3, Cases: []CaseResult{c}}
	if !errors.Is(r.Judge(), experiment.ErrShown) {
		t.Error("a bound was missed, and the result is right")
	}
	var text strings.Builder
	nettest.Must(t, r.WriteText(&text))
	for line := range strings.Lines(text.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, part := range []string{"NO  pair", "≤ 0.800", "0.400-0.900", "≥ 0.900", "not run: needs stunnel4", "Medians of 3 runs"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("the text lacks %q:\n%s", part, text.String())
		}
	}
}

// Names of figures leave room for the numbers beside them.
func TestDigits(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1000: "1000", 0.1234: "0.123", 1.234: "1.23", 12.34: "12.3", 123.4: "123", -0.5: "-0.500"} {
		if got := digits(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
