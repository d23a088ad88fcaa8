package main

import (
	"bytes"
	"flag"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/transport"
	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
	"longhaul/internal/sys/resources"
	"longhaul/internal/tune/mss"
	"longhaul/internal/tune/route"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/display"
	"longhaul/internal/words/units"
)

var update = flag.Bool("update", false, "write the golden files anew")

func flowOf(tunnel, client, target, state string, age float64, up, down int64) relay.FlowSnapshot {
	f := relay.FlowSnapshot{Tunnel: tunnel, Client: netip.MustParseAddrPort(client), State: state, AgeSeconds: age, BytesUp: up, BytesDown: down}
	if target != "" {
		f.Target = netip.MustParseAddrPort(target)
	}
	return f
}

func TestStatusTable(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	since := now.Add(-12 * time.Second)
	busy := daemon.Status{
		Resources: &resources.State{
			Shedding: []resources.Resource{resources.Descriptors},
			Figures: []resources.Figure{
				{Resource: resources.Descriptors, Used: 943_720, Limit: 943_718.4, Capacity: 1 << 20, SheddingSince: &since},
				{Resource: resources.Memory, Used: 540 << 20, Limit: 600 << 20, Capacity: resources.Unknown},
				{Resource: resources.CgroupMemory, Used: 3 << 30, Limit: 8 << 30, Capacity: 9 << 30},
				{Resource: resources.TCPMemory, Used: 1200 << 20, Limit: resources.Unknown, Capacity: resources.Unknown},
				{Resource: resources.CPU, Used: resources.Unknown, Limit: resources.Unknown, Capacity: 2},
			},
		},
		Host: daemon.HostChanges{
			CongestionControls: []string{"haul", "hybla"},
			Routes: []route.Setting{{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Metrics: map[route.Metric]*route.Done{
				route.CongestionControl: {Set: route.Value{Name: "haul", Locked: true}}, route.AdvMSS: {Set: route.Value{Number: 1460}},
			}}},
			MSS: []mss.Rule{{Device: "eth0", To: netip.MustParsePrefix("203.0.113.0/24"), Port: 5432, Action: mss.Raise, MSS: 1460}},
		},
		Version: "longhaul v1.0.0 go1.26 linux/amd64", PID: 4711, UptimeSeconds: 93784, ConfigFile: "/etc/longhaul/longhaul.yaml",
		LastReload: &daemon.Reload{At: now.Add(-5 * time.Minute), Error: "longhaul.yaml:3:5: unknown key forwart in a tunnel; did you mean forward?"},
		Lacks:      []transport.Lack{{What: "send buffer 24 MiB for 1 Gb/s at 63 ms", Remedy: "sysctl -w net.core.wmem_max=25165824"}},
		Snapshot: relay.Snapshot{
			Workers: 2,
			Memory:  &relay.MemorySnapshot{LimitBytes: 512 << 20, UsedBytes: 400 << 20, Short: true},
			Tunnels: []flow.Tunnel{
				{Name: "a-tunnel-with-a-long-name", State: "listening", FlowsNow: 1999, FlowsLimit: 2000, FlowsTotal: 123456789,
					BytesUp: 999_400_000_000, BytesDown: 1_000_000_000_000, Denied: 12345, Limited: 90000, Shed: 9999, Refused: 7, Errors: 5,
					Listen:  []netip.AddrPort{netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:60000"), netip.MustParseAddrPort("10.0.0.1:60000")},
					Forward: []string{"relay-b.some-long-site-name.example.net:60000", "relay-c.example.net:60000"},
					AcceptQueues: []flow.AcceptQueue{
						{Listen: netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:60000"), Waiting: 4097, Limit: 4096, Dropped: 123456},
						{Listen: netip.MustParseAddrPort("10.0.0.1:60000"), Waiting: 12, Limit: 4096},
					}},
				{Name: "quiet", State: "listening", Listen: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:1")}, Forward: []string{"h:1"}},
			},
			Flows: []relay.FlowSnapshot{
				flowOf("a-tunnel-with-a-long-name", "255.255.255.255:65535", "[2001:db8:1234:5678:9abc:def0:1234:5678]:60000", "target-ended", 99999, 5e12, 7),
				flowOf("quiet", "10.0.0.9:4000", "", "dialing", 0.0001, 0, 0),
			},
		},
	}
	busy.Pairs = &flow.Pairs{Sessions: []flow.Session{
		{Tunnel: "quiet", Peer: "site-b", End: flow.NearEnd, Encrypted: true, Resumable: true, Up: true, Since: now.Add(-time.Hour), RTT: units.Seconds(60 * time.Millisecond), Release: "longhaul v0.9.1 go1.26.8 linux/arm64", ReleaseHere: "longhaul v1.0.0 go1.26.8 linux/amd64", LanesWarm: 4, LanesBusy: 2,
			FlowsMoving: 2, FlowsParked: 1000, FlowsResuming: 1, RetainedBytes: 12 << 20, Resumes: 3, Outage: units.Seconds(21 * time.Second), Draining: true,
			Paths: []flow.Path{
				{Path: "192.0.2.10", Up: true, Active: true, Control: true, RTT: units.Seconds(20 * time.Millisecond), Busy: 2, Sent: 5 << 30, Received: 9000},
				{Path: "wan1 to [2001:db8::6]:6000", Error: "connect to [2001:db8::6]:6000: network is unreachable"},
				{Path: "198.51.100.20", Standby: true, Up: true, RTT: units.Seconds(80 * time.Millisecond)},
			}},
		{Tunnel: "quiet", Peer: "a-peer-with-a-very-long-name-that-nobody-types", End: flow.FarEnd, Encrypted: true, Resumable: true, Problem: flow.PairPathDown, FlowsParked: 2,
			Error: "connect to 10.0.0.2:6000: i/o timeout"},
		{Tunnel: "quiet", Peer: "site-c", End: flow.NearEnd, Problem: flow.PairUnpaired,
			Error: "the port answers, but no pair protocol: read tcp 10.0.0.1:40000->10.0.0.2:6000: read: connection reset by peer"},
		{Tunnel: "quiet", Peer: "site-e", End: flow.FarEnd, EndsInClear: true, HeadsUnchecked: true, Twin: true, Resumable: true, Up: true, Since: now.Add(-time.Hour), LanesWarm: 4},
		{Tunnel: "quiet", Peer: "site-d", End: flow.NearEnd, Encrypted: true, Resumable: true, Up: true, Since: now.Add(-time.Hour), LanesBusy: 28232, FlowsMoving: 28232, FlowsResuming: 7,
			LaneError: "connect to 10.0.0.2:6000: cannot assign requested address"},
	}}
	idle := daemon.Status{Version: "longhaul v1.0.0", PID: 1, Snapshot: relay.Snapshot{Workers: 1, Draining: true, AcceptPaused: true,
		Tunnels: []flow.Tunnel{{Name: "a", State: "draining", Forward: []string{"h:1"}}}}}
	broken := daemon.Status{Version: "longhaul v1.0.0", PID: 1, LastReload: busy.LastReload,
		History: &daemon.History{
			State: history.State{File: "/var/lib/longhaul/history.db", Problem: "database or disk is full (13)", Remedy: "make room on the disk, or lower max_size of history"},
			Ship: []ship.State{
				{Sink: "pg", Kind: archive.Postgres, Shipped: 7, LastSent: now.Add(-3 * time.Second)},
				{Sink: "https://ch.example.net:8443/?query=INSERT+INTO+flows+FORMAT+JSONEachRow", Kind: archive.JSONRows,
					Problem: "the server answers 403 Forbidden: longhaul: Not enough privileges. To execute this query, it's necessary to have the grant INSERT",
					Remedy:  "give the sink's user the right to insert", Waiting: 123456, Lag: units.Seconds(49 * time.Hour), Lost: 12},
				{Sink: "ipfix://10.0.0.9:4739", Kind: archive.IPFIX},
			}},
		Waiting: []flow.HostProblem{{Problem: "the dashboard waits for address 10.10.10.77:9465: this host does not have the address", Since: since,
			Fix: "give this host the address (ip addr shows what it has), or listen on another"}},
		Pairs: &flow.Pairs{KeysProblem: "/var/lib/longhaul/pair/peers: group or others may read it, so the keys from before are in use"},
		Snapshot: relay.Snapshot{Workers: 1, Tunnels: []flow.Tunnel{
			{Name: "files", State: "listening", Usability: flow.Usability{State: flow.Down, Since: since, Problems: []flow.Problem{
				{Reason: flow.ReasonShedding, Detail: "sheds new flows: descriptors, memory and tcp_memory are at their limits, as the lines above say"},
				{Reason: flow.ReasonPairDown, Detail: "has no session: the lines of the pair say it"}}},
				Hops: []flow.Hop{
					{Name: "relay-b.example.net:6000", State: flow.HopDown, Since: since, FlowsNow: 12345, FlowsTotal: 123456, Failed: 123456, LastError: "site-b cannot be reached"},
					{Name: "10.20.20.20:6000", State: flow.HopReturning, Since: now.Add(-59 * time.Minute), LastError: "connect to [2001:db8:1234:5678:9abc:def0:1234:5678]:60000: connection refused"}},
				Host: []flow.HostProblem{
					{Problem: "another program has removed the nftables table longhaul-site-a: new connections go directly, and flows of the relay break", Since: since,
						Fix: "have what removes them leave them alone: nft, as nftables.service or a script runs it"},
					{Problem: "waiting for address 10.10.10.77:7000: this host does not have the address", Since: since}}},
		}}}
	for name, s := range map[string]daemon.Status{"busy": busy, "idle": idle, "broken": broken} {
		var b bytes.Buffer
		writeStatus(&b, s, s.Flows[:min(1, len(s.Flows))], now)
		if name == "busy" {
			b.Reset()
			writeStatus(&b, s, s.Flows, now)
		}
		file := "testdata/status-" + name + ".golden"
		if *update {
			if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), b.String()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", file, diff)
		}
		for line := range strings.Lines(b.String()) {
			// Remedies are for copying and are never folded.
			free := strings.HasPrefix(line, "  remedy")
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 && !free {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
	}
}

func TestFlowOrders(t *testing.T) {
	flows := []relay.FlowSnapshot{
		flowOf("young", "10.0.0.1:1", "", "open", 1, 500, 0),
		flowOf("old", "10.0.0.1:1", "", "open", 1000, 1000, 0),
		flowOf("new", "10.0.0.1:1", "", "open", 0, 0, 0),
	}
	for order, want := range map[string]string{"goodput": "young old new", "bytes": "old young new", "age": "old young new"} {
		f := append([]relay.FlowSnapshot{}, flows...)
		flowOrders[order](f)
		if got := f[0].Tunnel + " " + f[1].Tunnel + " " + f[2].Tunnel; got != want {
			t.Errorf("by %s: %s, want %s", order, got, want)
		}
	}
}

func TestFiguresFitTheirColumns(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 7: "7", 999: "999", 1000: "1.0k", 9949: "9.9k", 9951: "10k", 999_499: "999k", 999_500: "1.0M", 12_345_678: "12M",
		1 << 40: "1.1T", 9_223_372_036_854_775_807: "9.2E",
	} {
		if got := display.Quantity(n); got != want {
			t.Errorf("quantity(%d) = %s, want %s", n, got, want)
		}
	}
	for s, want := range map[float64]string{0: "0s", 99.9: "99s", 100: "1m", 5999: "99m", 6000: "1h", 359999: "99h", 360000: "4d", 86400 * 999: "999d", 86400 * 1000: "2y"} {
		if got := display.Age(s); got != want {
			t.Errorf("age(%v) = %s, want %s", s, got, want)
		}
	}
}

// TestNothingForTheTerminal: what a relay, or whoever says to be one, calls its
// tunnels and writes as errors is not carried out by root's terminal. It failed
// at 1818be3.
func TestNothingForTheTerminal(t *testing.T) {
	const evil = "\x1b]0;owned\x07\u009b2J\r"
	path := filepath.Join(t.TempDir(), "control.sock")
	l, err := control.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	server := control.Serve(l, slog.New(slog.DiscardHandler), control.Handlers{Status: func() any {
		return daemon.Status{
			Version:    "longhaul " + evil,
			LastReload: &daemon.Reload{At: time.Now(), Error: evil},
			Snapshot:   relay.Snapshot{Tunnels: []flow.Tunnel{{Name: "to-b" + evil, State: "listening"}}},
		}
	}})
	defer server.Close()
	for _, args := range [][]string{
		{"status", "--control-socket", path},
		{"status", "--json", "--control-socket", path},
		{"status", "--control-socket", "/nonesuch/" + evil},
		{"check", "to" + evil},
	} {
		var out bytes.Buffer
		run(&env{ctx: t.Context(), args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: func(string) string { return "" }})
		if out.Len() == 0 || strings.ContainsAny(out.String(), "\x1b\x07\r\u009b") {
			t.Errorf("%q prints %q", args[0], out.String())
		}
	}
}

// Names and reasons are whole, however long, in lines of 80 columns.
func TestEventsTable(t *testing.T) {
	reason := "has no session: site-b cannot be reached (connect to [2001:db8:1234:5678:9abc:def0:1234:5678]:60000: connection refused)"
	var b bytes.Buffer
	writeEvents(&b, []flow.Event{{At: time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC), Kind: "interception", Tunnel: "a-tunnel-with-a-long-name",
		Subject: "relay-b.example.net:60000", From: "untried", To: "returning", Reason: reason}})
	said := strings.Join(strings.Fields(b.String()), " ")
	if !strings.Contains(said, reason) || !strings.Contains(said, "a-tunnel-with-a-long-name relay-b.example.net:60000: untried -> returning") {
		t.Errorf("the name or the reason is cut:\n%s", &b)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
