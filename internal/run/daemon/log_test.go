package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/loglimit"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

// gate is a log reader that reads nothing before open.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	b    bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(p)
}

func (g *gate) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.String()
}

func TestStuckLogDropsAndCounts(t *testing.T) {
	nettest.CheckLeaks(t)
	g := &gate{open: make(chan struct{})}
	w := newAsyncWriter(g, func(n uint64) { fmt.Fprintf(g, "dropped %d\n", n) })
	const surplus = 100
	// The writer has one line, the queue the rest.
	for i := range logQueueLines + 1 + surplus {
		fmt.Fprintf(w, "line %d\n", i)
	}
	if n := w.total.Load(); n < surplus || n > surplus+1 {
		t.Errorf("%d lines were dropped, want %d", n, surplus)
	}
	close(g.open)
	w.close(patience)
	lines := strings.Split(strings.TrimSpace(g.String()), "\n")
	if want := fmt.Sprintf("dropped %d", w.total.Load()); lines[1] != want {
		t.Errorf("after the first line stands %q, want %q", lines[1], want)
	}
	if got := len(lines) - 1 + int(w.total.Load()); got != logQueueLines+1+surplus {
		t.Errorf("%d lines are accounted for", got)
	}
}

func TestClosingDoesNotWaitForAStuckLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		w := newAsyncWriter(g, func(uint64) {})
		fmt.Fprintln(w, "never read")
		start := time.Now()
		w.close(50 * time.Millisecond)
		if took := time.Since(start); took != 50*time.Millisecond {
			t.Errorf("closing a stuck log takes %v, want 50ms", took)
		}
		close(g.open)
		<-w.done
	})
}

func record(end flow.EndReason, err error) flow.Record {
	return flow.Record{
		Tunnel:    "db",
		Client:    flow.Address{AddrPort: netip.MustParseAddrPort("10.0.0.1:4000")},
		Listen:    flow.Address{AddrPort: netip.MustParseAddrPort("10.0.0.2:6000")},
		Target:    flow.Address{AddrPort: netip.MustParseAddrPort("[2001:db8::1]:6000")},
		Start:     time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		Elapsed:   units.Seconds(2 * time.Second),
		BytesUp:   1_000_000,
		BytesDown: 500,
		ClientLeg: flow.LegRecord{Side: "lan", CongestionControl: "cubic", RTT: units.Seconds(150 * time.Microsecond), MinRTT: units.Seconds(100 * time.Microsecond)},
		TargetLeg: flow.LegRecord{Side: "wan", CongestionControl: "bbr", RTT: units.Seconds(63 * time.Millisecond), MinRTT: units.Seconds(62500 * time.Microsecond), Retransmits: 7},
		Reason:    end,
		Err:       err,
	}
}

// logLines runs records through a flow log and returns its lines without time.
func logLines(t *testing.T, json bool, feed func(l *flowLog)) string {
	t.Helper()
	var b bytes.Buffer
	opts := &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	var h slog.Handler = slog.NewTextHandler(&b, opts)
	if json {
		h = slog.NewJSONHandler(&b, opts)
	}
	l := newFlowLog(slog.New(h))
	feed(l)
	l.close()
	return b.String()
}

func TestLineOfAFlow(t *testing.T) {
	nettest.CheckLeaks(t)
	got := logLines(t, false, func(l *flowLog) {
		paired := record(flow.EndTargetReset, errors.New("connection reset by peer"))
		paired.Name, paired.Peer = flow.NameOf([]byte("5f3a0000-0001-4002-8003-0000000000ff")), "site-b/b1"
		l.add([]flow.Record{record(flow.EndClean, nil), paired})
		l.add([]flow.Record{{Tunnel: "db", Client: flow.Address{AddrPort: netip.MustParseAddrPort("10.0.0.1:4000")}, Start: time.Unix(0, 0).UTC(), ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg(), Reason: flow.EndTargetUnknown}})
	})
	want := `level=INFO msg=flow tunnel=db client=10.0.0.1:4000 target=[2001:db8::1]:6000 start=2030-01-02T03:04:05.000Z elapsed_seconds=2 bytes_up=1000000 bytes_down=500 goodput_up_bps=4000000 goodput_down_bps=2000 client_side=lan client_rtt_seconds=0.00015 client_min_rtt_seconds=0.0001 client_retransmits=0 client_cc=cubic target_side=wan target_rtt_seconds=0.063 target_min_rtt_seconds=0.0625 target_retransmits=7 target_cc=bbr end=end ended_by=both
level=INFO msg=flow tunnel=db client=10.0.0.1:4000 target=[2001:db8::1]:6000 name=5f3a0000-0001-4002-8003-0000000000ff peer=site-b/b1 start=2030-01-02T03:04:05.000Z elapsed_seconds=2 bytes_up=1000000 bytes_down=500 goodput_up_bps=4000000 goodput_down_bps=2000 client_side=lan client_rtt_seconds=0.00015 client_min_rtt_seconds=0.0001 client_retransmits=0 client_cc=cubic target_side=wan target_rtt_seconds=0.063 target_min_rtt_seconds=0.0625 target_retransmits=7 target_cc=bbr end=target-reset ended_by=target error="connection reset by peer"
level=INFO msg=flow tunnel=db client=10.0.0.1:4000 start=1970-01-01T00:00:00.000Z elapsed_seconds=0 bytes_up=0 bytes_down=0 end=target-unresolved ended_by=target
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log differs (-want +got):\n%s", diff)
	}
}

// TestEndByThePeersWord holds that an end which only the other relay of a pair has seen
// is recorded as its word, in the log and for the monitor.
func TestEndByThePeersWord(t *testing.T) {
	r := record(flow.EndTargetRefused, errors.New("connection refused"))
	r.ByPeer = true
	got := logLines(t, false, func(l *flowLog) { l.add([]flow.Record{r}) })
	if want := "end=target-refused ended_by=peer error=\"connection refused\"\n"; !strings.HasSuffix(got, want) {
		t.Errorf("the line is %s, want it to end in %s", got, want)
	}
	if m := monitor.NewRecord(&r); m.EndedBy != flow.EndedByPeer {
		t.Errorf("the monitor's record was ended by %s", m.EndedBy)
	}
}

func TestJSONLineOfAFlow(t *testing.T) {
	line := logLines(t, true, func(l *flowLog) { l.add([]flow.Record{record(flow.EndClean, nil)}) })
	var got map[string]any
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatal(err)
	}
	if got["bytes_up"] != 1e6 || got["target_rtt_seconds"] != 0.063 || got["end"] != "end" || got["start"] != "2030-01-02T03:04:05Z" {
		t.Errorf("got %s", line)
	}
}

// More flows than the queue holds end while the log is stuck: the flow log drops
// their lines and reports the number.
func TestFlowLinesThatWereDropped(t *testing.T) {
	nettest.CheckLeaks(t)
	got := logLines(t, false, func(l *flowLog) {
		l.mu.Lock()
		l.records = make([]flow.Record, flowQueue-1)
		l.mu.Unlock()
		l.add([]flow.Record{record(flow.EndClean, nil), record(flow.EndClean, nil), record(flow.EndClean, nil)})
	})
	if lines := strings.Count(got, "msg=flow "); lines != flowQueue {
		t.Errorf("%d lines of flows, want %d", lines, flowQueue)
	}
	if want := "dropped flow lines: flows end faster than the log writes\" lines=2"; !strings.Contains(got, want) {
		t.Errorf("no line says %s", want)
	}
}

func TestRefusalsAreCountedNotRepeated(t *testing.T) {
	now := time.Unix(1000, 0)
	got := logLines(t, false, func(l *flowLog) {
		l.refusals = loglimit.NewWithClock(l.log, func() time.Time { return now })
		l.refusals.Counted(refusedLine, "more connections refused")
		denied := record(flow.EndDenied, nil)
		// Written directly, without the loop.
		for range 5 {
			l.refused(denied)
		}
		limit := record(flow.EndFlowLimit, nil) // another kind gets its own line
		limit.Name, limit.Peer = flow.NameOf([]byte("5f3a0000-0001-4002-8003-0000000000ff")), "site-a"
		l.refused(limit)
		now = now.Add(loglimit.Pause)
		l.refused(denied)
		l.refused(denied)
		now = now.Add(loglimit.Pause)
		l.refusals.Flush()
	})
	want := `level=WARN msg="connection refused" tunnel=db client=10.0.0.1:4000 listen=10.0.0.2:6000 reason=denied
level=WARN msg="connection refused" tunnel=db client=10.0.0.1:4000 listen=10.0.0.2:6000 reason=flow-limit name=5f3a0000-0001-4002-8003-0000000000ff peer=site-a
level=WARN msg="connection refused" tunnel=db client=10.0.0.1:4000 listen=10.0.0.2:6000 reason=denied suppressed=4
level=WARN msg="more connections refused" tunnel=db reason=denied suppressed=1
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log differs (-want +got):\n%s", diff)
	}
}

func TestEveryEndReasonSaysWho(t *testing.T) {
	for reason, want := range map[flow.EndReason]string{
		flow.EndClean: "both", flow.EndClientReset: "client", flow.EndClientTimeout: "client",
		flow.EndTargetReset: "target", flow.EndTargetTimeout: "target", flow.EndTargetRefused: "target",
		flow.EndTargetUnreached: "target", flow.EndTargetUnknown: "target",
		flow.EndNoLocalPort: "relay", flow.EndNoResources: "relay", flow.EndIdle: "relay",
		flow.EndHalfClosed: "relay", flow.EndDrain: "relay", flow.EndLoop: "relay",
	} {
		if got := reason.EndedBy(); got != want {
			t.Errorf("%s was ended by %s, want %s", reason, got, want)
		}
	}
}

// patience bounds every wait of a test. None that passes comes near it.
const patience = time.Minute
