package daemon

import (
	"io"
	"log/slog"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

func TestToRecord(t *testing.T) {
	f := flow.Record{Flow: 7, Tunnel: "t", Elapsed: units.Seconds(time.Second), Reason: flow.EndTargetReset, Err: syscall.ECONNRESET}
	if got := monitor.NewRecord(&f); got.Flow != 7 || got.EndedBy != "target" || got.Error != "connection reset by peer" {
		t.Errorf("got %+v", got)
	}
	f.Reason, f.Err = flow.EndClean, nil
	f.Name, f.Peer = flow.Name{1}, "site-b/b1"
	if got := monitor.NewRecord(&f); got.EndedBy != "both" || got.Error != "" || got.Name != f.Name || got.Peer != f.Peer || got.Site != "site-b" {
		t.Errorf("got %+v", got)
	}
}

// Records have the name of the relay, also those of several relays of a host.
func TestRelayName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got := relayName(""); got != host {
		t.Errorf("the host's relay is %q, want %q", got, host)
	}
	if got, want := relayName("trial"), "trial@"+host; got != want {
		t.Errorf("the relay trial is %q, want %q", got, want)
	}
	var got []monitor.Record
	m := monitor.New(monitor.Options{
		Sample:    func(func([]flow.Sample)) (int, error) { return 0, nil },
		Overview:  func() monitor.Overview { return monitor.Overview{} },
		OnRecords: func(r []monitor.Record) { got = append(got, r...) },
	})
	e := &endedFlows{log: newFlowLog(slog.New(slog.DiscardHandler)), monitor: m, relay: "trial@host"}
	defer e.log.close()
	e.add([]flow.Record{{Flow: 1, Tunnel: "t"}, {Flow: 2, Tunnel: "t"}})
	m.Start()
	m.Close()
	if len(got) != 2 || got[0].Relay != "trial@host" || got[1].Relay != "trial@host" {
		t.Errorf("records %+v", got)
	}
}

// TestLegsOfShortFlows checks that the legs of at most maxBriefReads short flows are read
// if the log does not want them, and the legs of other flows always.
func TestLegsOfShortFlows(t *testing.T) {
	for _, tt := range []struct {
		level slog.Level
		want  int
	}{{slog.LevelInfo, 1000}, {slog.LevelWarn, maxBriefReads}} {
		e := &endedFlows{log: newFlowLog(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: tt.level})))}
		defer e.log.close()
		for range 2 {
			e.briefReads.Store(maxBriefReads) // like each sample
			read := 0
			for range 1000 {
				if e.legsWanted(time.Millisecond) {
					read++
				}
			}
			if read != tt.want {
				t.Errorf("at %v the legs of %d of 1000 short flows are read, want %d", tt.level, read, tt.want)
			}
			if !e.legsWanted(briefly) {
				t.Errorf("at %v those of a flow that has lasted are not", tt.level)
			}
		}
	}
}

func TestToCheck(t *testing.T) {
	rtt, goodput, lost, segments := units.Seconds(80*time.Millisecond), 1e6, int64(1), int64(1000)
	whole := integrity.Chain{State: integrity.Whole, Hops: []integrity.Hop{{Host: "b"}}}
	broken := integrity.Chain{State: integrity.Broken, Hops: []integrity.Hop{
		{Host: "c", State: integrity.Lossy, RTT: &rtt, Up: &integrity.Direction{GoodputBps: &goodput, Segments: &segments, LostSegments: &lost}},
		{Address: netip.MustParseAddrPort("192.0.2.9:80"), State: integrity.Broken},
	}}
	r := integrity.Report{At: time.Unix(1e9, 0), State: integrity.Broken, Summary: "no way is whole", Chains: []integrity.Chain{whole, broken}}
	want := &monitor.Check{At: r.At, Verdict: "no way is whole", Hops: []monitor.CheckHop{
		{From: "this relay", To: "c", State: "lossy", RTT: rtt, LossShare: 0.001, UpBps: 1e6},
		{From: "c", To: "192.0.2.9:80", State: "broken", LossShare: -1},
	}}
	if d := cmp.Diff(want, toCheck(&r)); d != "" {
		t.Errorf("what the monitor gets differs (-want +got):\n%s", d)
	}
	if got := toCheck(&integrity.Report{State: integrity.Lossy}); !got.OK || got.Hops == nil {
		t.Errorf("a chain that loses segments is not OK, or has no list of hops: %+v", got)
	}
}
