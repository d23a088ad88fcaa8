package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"longhaul/internal/find/measure"
)

// interval is a second of a test of which little is known.
func interval(second int, streams ...measure.IntervalStream) measure.Interval {
	return measure.Interval{Start: time.Duration(second) * time.Second, End: time.Duration(second+1) * time.Second, Streams: streams}
}

func stream(id int, sends bool, bytes int64) measure.IntervalStream {
	return measure.IntervalStream{ID: id, Sends: sends, Bytes: bytes, Retransmits: -1,
		Sample: measure.Sample{CwndBytes: -1, RTT: -1, RTTVar: -1, PMTU: -1, MSS: -1}}
}

// summary is of a test of two seconds that sent some bytes in one stream.
func summary(sent int64) measure.Summary {
	local, remote := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 40000}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 5201}
	return measure.Summary{
		Options: measure.Options{Streams: 1, Direction: measure.Send, Duration: 2 * time.Second, Version: "test"},
		Remote:  remote, Elapsed: 2 * time.Second, SentBps: float64(sent) * 4,
		Streams: []measure.StreamSummary{{ID: 5, Sends: true, Local: local, Remote: remote, SentBytes: sent, ReceivedBytes: sent, Retransmits: -1}},
	}
}

func TestProgress(t *testing.T) {
	timed := NewProgress(measure.Options{Duration: 3 * time.Second, Omit: time.Second})
	for second, want := range []float64{0.5, 0.75, 1, 1} {
		if got := timed.Share(interval(second)); got != want {
			t.Errorf("second %d of a test of time: %v, want %v", second, got, want)
		}
	}
	// In both directions at once, the one that is behind counts.
	amount := NewProgress(measure.Options{Bytes: 1000, Direction: measure.Both})
	for second, want := range []float64{0.1, 0.2, 1} {
		up := int64(100)
		if second == 2 {
			up = 2000
		}
		if got := amount.Share(interval(second, stream(1, true, up), stream(2, false, 900))); got != want {
			t.Errorf("second %d of a test of an amount: %v, want %v", second, got, want)
		}
	}
}

func TestCSVHasAsManyValuesAsNames(t *testing.T) {
	var out bytes.Buffer
	c := NewCSV(&out)
	c.Interval(interval(0, stream(5, true, 1000)), 0.5)
	if err := c.Summary(summary(2000), nil); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll() // refuses rows of other lengths
	if err != nil || len(rows) != 3 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if got := strings.Join(rows[1], ","); !strings.HasPrefix(got, "interval,5,sent,0.000,1.000,false,1000,8000,,,,,,,,") {
		t.Errorf("unknown figures are not empty: %s", got)
	}
}

// An object has the intervals of its own test alone.
func TestJSONOfTestsInTurn(t *testing.T) {
	var out bytes.Buffer
	j := NewJSON(&out, 0)
	for range 2 {
		j.Interval(interval(0, stream(5, true, 1000)), 0.5)
		if err := j.Summary(summary(1000), nil); err != nil {
			t.Fatal(err)
		}
	}
	for decoder := json.NewDecoder(&out); decoder.More(); {
		var object struct {
			Start     struct{ Version string }
			Intervals []any
			End       struct {
				Sent struct{ Bytes int64 } `json:"sum_sent"`
			}
		}
		if err := decoder.Decode(&object); err != nil {
			t.Fatal(err)
		}
		if object.Start.Version != "test" || len(object.Intervals) != 1 || object.End.Sent.Bytes != 1000 {
			t.Errorf("%+v", object)
		}
	}
}

func TestTextLeavesTheRemainderOut(t *testing.T) {
	var out bytes.Buffer
	w := NewText(&out, time.Second, 0)
	w.Interval(interval(0, stream(5, true, 1_000_000)), 0.5)
	rest := interval(1, stream(5, true, 10))
	rest.End = rest.Start + 50*time.Millisecond
	w.Interval(rest, 1)
	if err := w.Summary(summary(1_000_010), nil); err != nil {
		t.Fatal(err)
	}
	if want := "  0.0-1.0   s  50 % sent       8.0 Mb/s\n\nsent 1.0MB in 2.0 s over 1 stream: 4.0 Mb/s\n  retransmitted  not told by the sender\n"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}

// TestFailures: a test that failed has the figures of this side, and one that never began
// has none.
func TestFailures(t *testing.T) {
	failure := errors.New("interrupted after 2.0 s of 1m")
	s := summary(1000)
	s.Streams[0].ReceivedBytes = -1
	s.RemoteCPU.Total = -1
	for _, test := range []struct {
		name string
		make func(io.Writer) Writer
		s    measure.Summary
		want string
		not  string
	}{
		{"text", func(w io.Writer) Writer { return NewText(w, time.Second, 0) }, s,
			"\nsent 1.0kB in 2.0 s over 1 stream: 4.0 kb/s\n  counted        by this side: the server's count is unknown\n", "there"},
		{"CSV", func(w io.Writer) Writer { return NewCSV(w) }, s, "\ntotal,5,sent,0.000,2.000,false,1000,,,", "-1"},
		{"JSON", func(w io.Writer) Writer { return NewJSON(w, 0) }, s, `"error": "interrupted after 2.0 s of 1m"`, `"sum_received"`},
		{"text of nothing", func(w io.Writer) Writer { return NewText(w, time.Second, 0) }, measure.Summary{}, "", "CPU"},
		{"CSV of nothing", func(w io.Writer) Writer { return NewCSV(w) }, measure.Summary{}, "", "kind"},
		{"JSON of nothing", func(w io.Writer) Writer { return NewJSON(w, 0) }, measure.Summary{},
			`"error": "interrupted after 2.0 s of 1m"`, "connected"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := test.make(&out).Summary(test.s, failure); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); !strings.Contains(got, test.want) || strings.Contains(got, test.not) {
				t.Errorf("%q\nwant %q, and not %q", got, test.want, test.not)
			}
			if strings.HasPrefix(test.name, "JSON") && !json.Valid(out.Bytes()) {
				t.Errorf("invalid JSON: %s", out.String())
			}
		})
	}
}
