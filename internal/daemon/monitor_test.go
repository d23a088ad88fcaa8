package daemon

import (
	"io"
	"log/slog"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/check"
	"longhaul/internal/monitor"
	"longhaul/internal/relay"
	"longhaul/internal/tcpinfo"
)

var sameAddress = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func TestToSample(t *testing.T) {
	a, b, c := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2"), netip.MustParseAddrPort("192.0.2.3:3")
	at := time.Unix(1e9, 0)
	f := relay.FlowSample{
		ID: 7, Tunnel: "t", State: "open", Client: a, Listen: b, Target: c, Hop: "far:3", Start: at, BytesUp: 1, BytesDown: 2, Skipped: true,
		ClientLeg: relay.LegSample{Side: "lan", CongestionControl: "cubic", Known: true, Info: tcpinfo.Info{BytesSent: 5}, SendBuffer: 10, SendQueued: 4},
		TargetLeg: relay.LegSample{Info: tcpinfo.Info{BytesSent: 99}, SendBuffer: -1, SendQueued: -1}, // of another flow: it is not known
	}
	var s monitor.FlowSample
	toSample(&f, &s)
	if s.ID != 7 || s.Tunnel != "t" || s.State != "open" || s.Client != a || s.Listen != b || s.Target != c || s.Hop != "far:3" || !s.Start.Equal(at) ||
		s.BytesUp != 1 || s.BytesDown != 2 || !s.Skipped || s.Unchanged {
		t.Errorf("a flow of the relay becomes another sample: %+v", s)
	}
	if leg := s.ClientLeg; leg.Side != "lan" || leg.CongestionControl != "cubic" || leg.Info == nil || leg.Info.BytesSent != 5 || leg.SendBuffer != 10 || leg.SendQueued != 4 {
		t.Errorf("client leg %+v", leg)
	}
	if leg := s.TargetLeg; leg.Info != nil || leg.SendBuffer != -1 {
		t.Errorf("target leg %+v", leg)
	}
}

func TestToRecord(t *testing.T) {
	f := relay.FlowRecord{
		ID: 7, Tunnel: "t", Elapsed: time.Second, BytesUp: 1, BytesDown: 2, End: relay.EndTargetReset, Err: syscall.ECONNRESET,
		ClientLeg: relay.LegStats{Side: "lan", Known: true, CongestionControl: "cubic", RTT: time.Millisecond, MinRTT: time.Microsecond, Retransmits: 3, BytesSent: 100, BytesRetrans: 10},
	}
	var got monitor.Record
	toRecord(&f, &got)
	want := monitor.Record{
		Flow: 7, Tunnel: "t", Elapsed: time.Second, BytesUp: 1, BytesDown: 2, Reason: "target-reset", EndedBy: "target", Error: "connection reset by peer",
		ClientLeg: monitor.LegRecord{Side: "lan", CongestionControl: "cubic", RTT: time.Millisecond, MinRTT: time.Microsecond, BytesSent: 100, BytesRetransmitted: 10, Retransmits: 3},
		TargetLeg: monitor.LegRecord{BytesSent: -1, BytesRetransmitted: -1, Retransmits: -1},
	}
	if d := cmp.Diff(want, got, sameAddress); d != "" {
		t.Errorf("what the monitor gets differs (-want +got):\n%s", d)
	}
}

// TestLegsOfShortFlows: where the log does not want them, the legs of short flows
// are read for so many only; those of others always.
func TestLegsOfShortFlows(t *testing.T) {
	for _, tt := range []struct {
		level slog.Level
		want  int
	}{{slog.LevelInfo, 1000}, {slog.LevelWarn, maxGlances}} {
		d := &daemon{flows: newFlowLog(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: tt.level})))}
		defer d.flows.close()
		for range 2 {
			d.glances.Store(maxGlances) // as each sample does
			read := 0
			for range 1000 {
				if d.legsWanted(time.Millisecond) {
					read++
				}
			}
			if read != tt.want {
				t.Errorf("at %v the legs of %d of 1000 short flows are read, want %d", tt.level, read, tt.want)
			}
			if !d.legsWanted(briefly) {
				t.Errorf("at %v those of a flow that has lasted are not", tt.level)
			}
		}
	}
}

func TestToCheck(t *testing.T) {
	rtt, goodput, lost, segments := 80.0, 1e6, int64(1), int64(1000)
	whole := check.Chain{State: check.Whole, Hops: []check.Hop{{Host: "b"}}}
	broken := check.Chain{State: check.Broken, Hops: []check.Hop{
		{Host: "c", State: check.Lossy, RTTMs: &rtt, Up: &check.Direction{GoodputBps: &goodput, Segments: &segments, LostSegments: &lost}},
		{Address: netip.MustParseAddrPort("192.0.2.9:80"), State: check.Broken},
	}}
	r := check.Report{At: time.Unix(1e9, 0), State: check.Broken, Summary: "no way is whole", Chains: []check.Chain{whole, broken}}
	want := &monitor.Check{At: r.At, Verdict: "no way is whole", Hops: []monitor.CheckHop{
		{From: "this relay", To: "c", State: "lossy", RTT: 80 * time.Millisecond, LossShare: 0.001, UpBps: 1e6},
		{From: "c", To: "192.0.2.9:80", State: "broken", LossShare: -1},
	}}
	if d := cmp.Diff(want, toCheck(&r)); d != "" {
		t.Errorf("what the monitor gets differs (-want +got):\n%s", d)
	}
	if got := toCheck(&check.Report{State: check.Lossy}); !got.OK || got.Hops == nil {
		t.Errorf("a chain that loses segments is not OK, or has no list of hops: %+v", got)
	}
}
