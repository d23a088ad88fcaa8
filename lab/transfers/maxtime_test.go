package transfers

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/linktest"
	"longhaul/lab/progress"
	"longhaul/test/nettest"
)

// A transfer ends when its time is up, with what has arrived, and says so: also while it
// connects.
func TestMaxTime(t *testing.T) {
	t.Parallel()
	slow := linktest.Fast()
	slow.RTT = 10 * time.Second
	for name, conditions := range map[string]lab.Conditions{"while it sends": linktest.Fast(), "while it connects": slow} {
		t.Run(name, func(t *testing.T) { maxTime(t, conditions) })
	}
}

func maxTime(t *testing.T, conditions lab.Conditions) {
	nettest.RequireSandbox(t)
	const endless = 1 << 40
	e := Experiment{Name: "endless", Conditions: conditions, Cases: []Case{{
		Name: "direct", Bytes: endless, QuickBytes: endless,
		Setup: func(context.Context, *lab.Stage) (netip.AddrPort, error) {
			return netip.AddrPortFrom(lab.HostB, bulkPort), nil
		},
	}}}
	var notes []string
	result, err := e.Run(t.Context(), Options{
		MaxTime: time.Second,
		Report: func(r progress.Report) {
			if r.Kind == progress.Note {
				notes = append(notes, r.Text)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := result.Cases[0]
	if c.Bytes >= endless || c.Seconds != 1 || c.GoodputBps != float64(c.Bytes)*8 || c.Hung != 0 {
		t.Errorf("a transfer that ended after a second: %+v", c)
	}
	if len(notes) == 0 || !strings.HasPrefix(notes[0], "direct: ended after 1s with 0 % of the data") {
		t.Errorf("the notes are %q, want that the transfer ended after 1s", notes)
	}
}
