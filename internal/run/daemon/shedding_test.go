package daemon

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/resources"
	"longhaul/test/nettest"
)

// shedderOf returns a shedder of a running relay. The test makes its states.
func shedderOf(t *testing.T) (*shedder, *relay.Relay, *bytes.Buffer) {
	t.Helper()
	r, err := relay.Start(relay.Options{}, []relay.Tunnel{{
		Name: "t", Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}, Forward: []hops.Target{{Host: "127.0.0.1", Port: 9}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	var log bytes.Buffer
	return &shedder{log: slog.New(slog.NewTextHandler(&log, nil)), relay: r, maxFlows: -1,
		overflow: resources.Unknown}, r, &log
}

func TestWhatIsShedFor(t *testing.T) {
	nettest.CheckLeaks(t)
	s, r, _ := shedderOf(t)
	state := func(shedding ...resources.Resource) resources.State { return resources.State{Shedding: shedding} }
	for _, tt := range []struct {
		name     string
		state    resources.State
		maxFlows int64 // maximum of flows for the descriptors, from an earlier state
		want     string
	}{
		{"nothing", state(), -1, ""},
		{"room for flows", state(), 5, ""},
		{"no room for flows", state(resources.Descriptors), 0, "descriptors"},
		{"something else, too", state(resources.Descriptors, resources.Memory, resources.TCPMemory), 0, "memory, tcp_memory"},
		{"something else", state(resources.CPU), 5, "cpu"},
		{"nothing any more", state(), -1, ""},
	} {
		s.maxFlows = tt.maxFlows
		// The limit is known, and the descriptors are not counted again.
		tt.state.Figures = []resources.Figure{{Resource: resources.Descriptors, Used: 1, Limit: 2}}
		s.shed(tt.state)
		if got := r.Overview().Shedding; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	s.maxFlows = 0
	s.shed(resources.State{Figures: []resources.Figure{{Resource: resources.Descriptors, Used: 1, Limit: resources.Unknown}}})
	if got := r.Overview().Shedding; got != "" || s.maxFlows >= 0 {
		t.Errorf("without a limit: %q, at most %d flows", got, s.maxFlows)
	}
}

// A limit that is a number may be above what the process may open, or that may
// have no end: nobody is to be refused for it before the limit.
func TestReserve(t *testing.T) {
	for _, tt := range []struct {
		maxFlows        int64
		limit, capacity resources.Amount
		want            int64
	}{
		{200, 409.6, 512, 25},
		{80, 409.6, 512, 10},
		{2000, 5000, 4096, 0},
		{2000, 5000, resources.Unknown, 0},
	} {
		if got := reserveOf(tt.maxFlows, resources.Figure{Limit: tt.limit, Capacity: tt.capacity}); got != tt.want {
			t.Errorf("%d flows, %v of %v descriptors: %d in reserve, want %d", tt.maxFlows, tt.limit, tt.capacity,
				got, tt.want)
		}
	}
}

// Drops of another program's queue cause no warning.
func TestFullAcceptQueueOfOthers(t *testing.T) {
	nettest.CheckLeaks(t)
	s, _, log := shedderOf(t)
	for _, overflows := range []resources.Amount{5, 7, 7, 9} {
		s.watchQueues(resources.State{At: time.Now(), AcceptOverflows: overflows})
	}
	if log.Len() > 0 {
		t.Errorf("of another's queue: %s", log)
	}
}

func TestResourceLimits(t *testing.T) {
	got := resourceLimits(config.Limits{Descriptors: config.Limit{Share: 0.9}, Memory: config.Limit{Amount: 1 << 20}})
	for r, want := range map[resources.Resource]resources.Limit{
		resources.Descriptors: {Share: 0.9, Grain: 2}, resources.Memory: {Amount: 1 << 20}, resources.CgroupMemory: {}, resources.TCPMemory: {}, resources.CPU: {},
	} {
		if got[r] != want {
			t.Errorf("%s: %+v, want %+v", r, got[r], want)
		}
	}
}

func TestEveryResourceHasARemedy(t *testing.T) {
	for r := range resourceLimits(config.Limits{}) {
		if fix := r.Remedy(); fix == "" || strings.HasSuffix(fix, ".") {
			t.Errorf("%s: %q", r, fix)
		}
	}
}
