package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"longhaul/internal/nettest"
)

// A transfer ends when its time is up, with what has arrived, and says so.
func TestMaxTime(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	const endless = 1 << 40
	e := Experiment{Name: "endless", Conditions: fast(), Cases: []Case{{
		Name: "direct", Bytes: endless, QuickBytes: endless,
		Setup: func(context.Context, *stage) (netip.AddrPort, error) { return netip.AddrPortFrom(HostB, bulkPort), nil },
	}}}
	var notes []string
	result, err := e.Run(t.Context(), RunOptions{
		MaxTime: time.Second,
		Notef:   func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) },
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
