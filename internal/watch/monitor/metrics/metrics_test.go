package metrics

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/stats"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var update = flag.Bool("update", false, "write the tables of docs/metrics.md anew")

// everything is a snapshot with a value for each metric.
func everything() *monitor.Snapshot {
	at := time.Unix(1_800_000_000, 0)
	tunnel := monitor.Tunnel{
		Tunnel: flow.Tunnel{
			Name: "to-b", State: "listening", FlowsNow: 3, FlowsPeak: 9, FlowsLimit: 100, FlowsTotal: 1234, BytesUp: 5e9, BytesDown: 7e9,
			Intercepts: "lan0>10.20.20.0/24", Relayed: 2, Bypass: &flow.Bypass{Reason: flow.BypassPairDown, Total: 3},
			Service: &flow.Service{Name: "_x._tcp.b", State: flow.ServiceNoName, Answered: at},
			Denied:  4, Limited: 5, Shed: 6, ShedBy: map[string]int64{"descriptors": 6},
			Ended: []flow.Ended{{EndedBy: "both", Reason: "end", Flows: 1200}, {EndedBy: "client", Reason: "client-reset", Flows: 31}},
		},
		Causes: map[doctor.Cause]int{doctor.RandomLoss: 2},
		Hops: []monitor.Hop{
			{
				Hop: flow.Hop{Name: "b1.example:6000", State: "up", Usable: true, FlowsNow: 3, FlowsTotal: 1230,
					RTT: units.Seconds(80 * time.Millisecond)},
				BytesSent: 4e9, BytesRetransmitted: 3e6,
			},
			{Hop: flow.Hop{Name: "b2.example:6000", State: "down", Failed: 8}, BytesSent: -1, BytesRetransmitted: -1},
		},
		LastCheck: &monitor.Check{At: at, OK: true, Hops: []monitor.CheckHop{{LossShare: 0.001}, {LossShare: -1}}},
	}
	for i, leg := range []flow.Leg{flow.ClientLeg, flow.TargetLeg} {
		tunnel.Legs[i] = monitor.LegTotals{Leg: leg, BytesSent: 5e9, BytesRetransmitted: 3e6, MinRTT: units.Seconds(time.Millisecond), MedianRTT: units.Seconds(2 * time.Millisecond),
			P99RTT: units.Seconds(9 * time.Millisecond), LimitedSeconds: map[doctor.Cause]float64{doctor.Application: 12.5}}
	}
	tunnel.Duration, tunnel.Goodput, tunnel.Outage = distributionOf(0.2, 0.3, 7, 7, 7000), distributionOf(5e6), distributionOf()
	tunnel.Hops[0].Connect, tunnel.Hops[1].Connect = distributionOf(0.04, 0.041, 0), distributionOf(0.3)
	return &monitor.Snapshot{
		At: at, Interval: units.Seconds(time.Second), Sequence: 77, Took: units.Seconds(3 * time.Millisecond), FlowsNow: 3, Tunnels: []monitor.Tunnel{tunnel},
		Process: monitor.Process{
			Version: "1.2", StartedAt: at, MemoryUsed: 1 << 20, MemoryLimit: 1 << 30, LastReload: &monitor.Reload{At: at, OK: false},
			LogLinesDropped: 2, RecordsDropped: 3, AcceptErrors: map[string]int64{"EMFILE": 7}, Certificates: map[string]flow.Certificate{"dashboard": {From: at.Add(-24 * time.Hour), Until: at.Add(24 * time.Hour)}}, RollbackAt: at.Add(time.Minute), Restored: map[string]int64{"rules": 1}, Fights: 1,
			CongestionControl: map[string]bool{"haul": true, "bbr": false},
		},
		Pairs: &flow.Pairs{Certificate: &flow.Certificate{Name: "spiffe://corp/site-a", From: at.Add(-time.Hour), Until: at.Add(time.Hour)}, RetainedBytes: 1000, RetainedLimitBytes: 1 << 28, Strangers: map[flow.PairProblem]int64{flow.PairUnpaired: 5}},
		PairTotals: []monitor.Pair{
			{
				Session: flow.Session{Tunnel: "to-b", Peer: "site-b", End: flow.NearEnd, Up: true, Release: "1.2", RTT: units.Seconds(60 * time.Millisecond),
					LanesWarm: 4, LanesBusy: 2, FlowsMoving: 2, FlowsResuming: 1, RetainedBytes: 1000, Resumes: 3, Outage: units.Seconds(2 * time.Second),
					Paths: []flow.Path{{Path: "192.0.2.10", Up: true, Active: true, RTT: units.Seconds(60 * time.Millisecond), Lanes: 3, Sent: 1000, Received: 10}}},
				Problems: []flow.PairProblem{flow.PairPathDown}, // of another session
				Sent:     4000,
			},
			{Session: flow.Session{Tunnel: "to-c", Peer: "site-c", End: flow.NearEnd, Problem: flow.PairKeyUnknown}, Problems: []flow.PairProblem{flow.PairKeyUnknown}},
		},
	}
}

var name = flow.Name{0x5f, 0x3a}

// distributionOf is of values, the last of which is the exemplar.
func distributionOf(values ...float64) *monitor.Distribution {
	d := &monitor.Distribution{Histogram: &stats.Histogram{}}
	for _, v := range values {
		d.Observe(v)
		d.Exemplar = monitor.Exemplar{Flow: name, Value: v, At: time.UnixMilli(1_800_000_000_500)}
	}
	return d
}

func handlerOf(s *monitor.Snapshot) http.Handler {
	return Handler(Options{
		Snapshot: func() *monitor.Snapshot { return s },
		History: func() *History {
			return &History{Written: 10, Dropped: 1, Bytes: 1 << 20, Ship: []ship.State{
				{Sink: "pg", Shipped: 9, Lost: 1}, {Sink: "ipfix://c.example:4739", Problem: "no route", Waiting: 4, Lag: units.Seconds(90 * time.Second)},
			}}
		},
	})
}

func scrape(t testing.TB, h http.Handler, accept string) (body, contentType string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String(), w.Header().Get("Content-Type")
}

func TestMetrics(t *testing.T) {
	body, kind := scrape(t, handlerOf(everything()), "text/plain")
	if !strings.HasPrefix(kind, "text/plain") {
		t.Errorf("content type %q", kind)
	}
	for _, want := range []string{
		`longhaul_flows_active{tunnel="to-b"} 3`,
		`longhaul_flows_limit{tunnel="to-b"} 100`,
		`longhaul_flows_closed_total{reason="client-reset",tunnel="to-b",who="client"} 31`,
		`longhaul_bytes_total{direction="down",tunnel="to-b"} 7e+09`,
		`longhaul_hop_up{hop="b1.example:6000",tunnel="to-b"} 1`,
		`longhaul_hop_up{hop="b2.example:6000",tunnel="to-b"} 0`,
		`longhaul_service_state{service="_x._tcp.b",state="no-name",tunnel="to-b"} 1`,
		`longhaul_service_answered_timestamp_seconds{service="_x._tcp.b",tunnel="to-b"} 1.8e+09`,
		`longhaul_hop_state{hop="b2.example:6000",state="down",tunnel="to-b"} 1`,
		`longhaul_hop_state{hop="b2.example:6000",state="up",tunnel="to-b"} 0`,
		`longhaul_hop_rtt_seconds{hop="b1.example:6000",tunnel="to-b"} 0.08`,
		`longhaul_leg_rtt_seconds{leg="target",stat="p99",tunnel="to-b"} 0.009`,
		`longhaul_leg_retransmitted_bytes_total{leg="client",tunnel="to-b"} 3e+06`,
		`longhaul_leg_limited_seconds_total{cause="application",leg="client",tunnel="to-b"} 12.5`,
		`longhaul_accept_errors_total{errno="EMFILE"} 7`,
		`longhaul_accept_errors_total{errno="ENOBUFS"} 0`,
		`longhaul_shed_total{reason="descriptors",tunnel="to-b"} 6`,
		`longhaul_acl_denied_total{tunnel="to-b"} 4`,
		`longhaul_tunnel_bypassed{tunnel="to-b"} 1`,
		`longhaul_tunnel_bypasses_total{tunnel="to-b"} 3`,
		`longhaul_intercepted_twice_total{tunnel="to-b"} 2`,
		`longhaul_check_up{tunnel="to-b"} 1`,
		`longhaul_check_leg_loss_ratio{position="1",tunnel="to-b"} 0.001`,
		`longhaul_reload_success 0`,
		`longhaul_certificate_expiry_timestamp_seconds{use="dashboard"} 1.8000864e+09`,
		`longhaul_pair_up{peer="site-b",tunnel="to-b"} 1`,
		`longhaul_pair_info{end="near",peer="site-b",release="1.2",tunnel="to-b"} 1`,
		`longhaul_pair_retained_limit_bytes 2.68435456e+08`,
		`longhaul_pair_outage_seconds_total{peer="site-b",tunnel="to-b"} 2`,
		`longhaul_pair_problem{peer="site-b",problem="path-down",tunnel="to-b"} 0`,
		`longhaul_pair_problem{peer="site-c",problem="key-unknown",tunnel="to-c"} 1`,
		`longhaul_pair_rtt_seconds{peer="site-b",tunnel="to-b"} 0.06`,
		`longhaul_pair_lanes{peer="site-b",state="warm",tunnel="to-b"} 4`,
		`longhaul_pair_flows{peer="site-b",state="resuming",tunnel="to-b"} 1`,
		`longhaul_pair_sent_bytes_total{peer="site-b",tunnel="to-b"} 4000`,
		`longhaul_pair_resumes_total{peer="site-b",tunnel="to-b"} 3`,
		`longhaul_pair_strangers_total{problem="unpaired"} 5`,
		`longhaul_congestion_control_active{name="haul"} 1`,
		`longhaul_congestion_control_active{name="bbr"} 0`,
		`longhaul_history_records_dropped_total 1`,
		`longhaul_history_ship_up{sink="pg"} 1`,
		`longhaul_history_ship_up{sink="ipfix://c.example:4739"} 0`,
		`longhaul_history_ship_waiting_records{sink="ipfix://c.example:4739"} 4`,
		`longhaul_history_ship_lag_seconds{sink="pg"} 0`,
		`longhaul_history_ship_lag_seconds{sink="ipfix://c.example:4739"} 90`,
		`longhaul_history_ship_records_total{sink="pg"} 9`,
		`longhaul_history_ship_lost_total{sink="pg"} 1`,
		`longhaul_sample_timestamp_seconds 1.8e+09`,
		`longhaul_flow_duration_seconds_bucket{tunnel="to-b",le="+Inf"} 5`,
		`longhaul_flow_duration_seconds_count{tunnel="to-b"} 5`,
		`longhaul_flow_duration_seconds_sum{tunnel="to-b"} 7014.5`,
		`longhaul_flow_outage_seconds_count{tunnel="to-b"} 0`,
		`longhaul_connect_seconds_count{hop="b2.example:6000",tunnel="to-b"} 1`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
	for _, never := range []string{
		`longhaul_hop_rtt_seconds{hop="b2.example:6000"`, `longhaul_hop_sent_bytes_total{hop="b2.example:6000"`, `position="2"`, `longhaul_pair_rtt_seconds{peer="site-c"`, // not known
	} {
		if strings.Contains(body, never) {
			t.Errorf("%s is shown", never)
		}
	}
	for _, f := range families {
		if !strings.Contains(body, "\n"+prefix+f.name) {
			t.Errorf("%s%s is not in a snapshot that has everything", prefix, f.name)
		}
	}
	for _, f := range histogramFamilies {
		if !strings.Contains(body, "\n"+prefix+f.name+"_count{") {
			t.Errorf("%s%s is not in a snapshot that has everything", prefix, f.name)
		}
	}
	for _, others := range []string{"\ngo_goroutines ", "\nprocess_open_fds ", "\nprocess_resident_memory_bytes "} {
		if !strings.Contains(body, others) {
			t.Errorf("there is no %s", others)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}

// TestBeforeTheFirstSample: unknown values are omitted, not 0.
func TestBeforeTheFirstSample(t *testing.T) {
	m := monitor.New(monitor.Options{})
	body, _ := scrape(t, Handler(Options{Snapshot: m.Snapshot}), "")
	for _, never := range []string{"longhaul_start_time_seconds ", "longhaul_history_", "longhaul_memory_limit_bytes ", "longhaul_flows_active", "longhaul_sample_duration_seconds "} {
		if strings.Contains(body, "\n"+never) {
			t.Errorf("%s is shown", never)
		}
	}
	if !strings.Contains(body, "\nlonghaul_reload_success 1\n") {
		t.Error("a configuration that was never reloaded counts as failed")
	}
}

// TestCardinalityIsBounded: with any words, the number of time series is
// bounded, and no count is lost or jumps.
func TestCardinalityIsBounded(t *testing.T) {
	s := everything()
	h := handlerOf(s)
	total := func(name string) (series int, sum float64) {
		t.Helper()
		body, _ := scrape(t, h, "text/plain")
		for _, m := range regexp.MustCompile(`(?m)^`+prefix+name+`\{[^\n]*\} (\S+)$`).FindAllStringSubmatch(body, -1) {
			var v float64
			fmt.Sscan(m[1], &v)
			series++
			sum += v
		}
		return series, sum
	}
	for round := 1; round <= 2; round++ {
		t0 := &s.Tunnels[0]
		t0.Ended = nil
		s.Process.AcceptErrors, t0.ShedBy = map[string]int64{}, map[string]int64{}
		for i := range 1000 * round {
			t0.Ended = append(t0.Ended, flow.Ended{EndedBy: "relay", Reason: flow.EndReason(fmt.Sprintf("reason-%d", i)), Flows: 1})
			s.Process.AcceptErrors[fmt.Sprintf("E%d", i)] = 1
			t0.ShedBy[fmt.Sprintf("thing-%d", i)] = 1
		}
		limits := map[string]int{"flows_closed_total": maxReasons, "accept_errors_total": maxWords, "shed_total": maxWords}
		for name, limit := range limits {
			series, sum := total(name)
			if series != limit+1 || sum != float64(1000*round) {
				t.Errorf("%s: %d series with a sum of %v, want %d and %d", name, series, sum, limit+1, 1000*round)
			}
		}
	}
	// The first words keep their own series.
	body, _ := scrape(t, h, "text/plain")
	if !strings.Contains(body, `longhaul_accept_errors_total{errno="EMFILE"}`) || !strings.Contains(body, `longhaul_shed_total{reason="other",tunnel="to-b"}`) {
		t.Error("the first words gave way to later ones")
	}
}

// TestNamesThatAreNotText: a configuration may contain any bytes.
func TestNamesThatAreNotText(t *testing.T) {
	s := everything()
	s.Tunnels[0].Name = "a\xff\"\n{b}"
	body, _ := scrape(t, handlerOf(s), "text/plain")
	if !strings.Contains(body, `longhaul_flows_active{tunnel="a?\"\n{b}"} 3`) {
		t.Error("the tunnel's name is not shown")
	}
}

// TestCompressed: a client that takes gzip gets the same text.
func TestCompressed(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", "deflate, gzip")
	w := httptest.NewRecorder()
	handlerOf(everything()).ServeHTTP(w, r)
	z, err := gzip.NewReader(w.Body)
	if err != nil || w.Header().Get("Content-Encoding") != "gzip" {
		t.Fatalf("%v, headers %v", err, w.Header())
	}
	body, err := io.ReadAll(z)
	if err != nil || !bytes.Contains(body, []byte("\nlonghaul_samples_total 77\n")) {
		t.Errorf("%v: %s", err, body)
	}
}

// TestOtherMetrics: the names of the runtime's and the process's metrics, as dashboards know them.
func TestOtherMetrics(t *testing.T) {
	body, _ := scrape(t, handlerOf(everything()), "")
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE ((go|process)_.*)$`).FindAllStringSubmatch(body, -1) {
		got = append(got, m[1])
	}
	slices.Sort(got)
	want, err := os.ReadFile("testdata/others.txt")
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(got, "\n") + "\n"; text != string(want) {
		t.Errorf("metrics:\n%swant:\n%s", text, want)
	}
}

func TestPromtoolAgrees(t *testing.T) {
	promtool := nettest.RequireProgram(t, "promtool", "prometheus")
	body, _ := scrape(t, handlerOf(everything()), "text/plain")
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(body)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestScrapesAtTheSameTime(t *testing.T) {
	h := handlerOf(everything())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 20 {
				scrape(t, h, "text/plain")
			}
		})
	}
	all.Wait()
}

const page = "../../../../docs/metrics.md"

// histogramRows are the families of histograms, as the page lists them.
func histogramRows() (all []family) {
	for _, f := range histogramFamilies {
		all = append(all, family{name: f.name, help: f.help, kind: histogram, labels: f.labels})
	}
	return all
}

// table is the page's table of some families.
func table(of []family) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | what it is |\n|---|---|---|---|\n")
	for _, f := range of {
		labels := strings.Join(f.labels, ", ")
		if labels == "" {
			labels = "–"
		}
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s |\n", prefix, f.name, f.kind, labels, f.help)
	}
	return b.String()
}

// TestThePageListsEveryMetric compares docs/metrics.md with the program;
// -update rewrites the page's tables.
func TestThePageListsEveryMetric(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string][]family{
		"process": processFamilies, "tunnels": slices.Concat(tunnelFamilies, histogramRows()[:3]), "legs": legFamilies, "hops": slices.Concat(hopFamilies, histogramRows()[3:]), "checks": checkFamilies, "pairs": pairFamilies,
	} {
		begin, end := []byte("<!-- metrics: "+name+" -->\n"), []byte("<!-- end -->")
		_, rest, ok := bytes.Cut(text, begin)
		was, _, ok2 := bytes.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("the page has no table between %s and %s", begin, end)
		}
		want := "\n" + table(of) + "\n"
		if string(was) == want {
			continue
		}
		if !*update {
			t.Errorf("the table of %s differs; go test ./internal/watch/monitor/metrics -update writes it", name)
			continue
		}
		text = bytes.Replace(text, slices.Concat(begin, was, end), slices.Concat(begin, []byte(want), end), 1)
	}
	if *update {
		if err := os.WriteFile(page, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Every other metric on the pages must exist.
	alerts, err := os.ReadFile("../../../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, f := range slices.Concat(families, histogramRows()) {
		known[prefix+f.name] = true
	}
	for _, name := range regexp.MustCompile(`longhaul_[a-z_]+[a-z]`).FindAllString(string(text)+string(alerts), -1) {
		if !known[name] {
			t.Errorf("a page names %s, which there is not", name)
		}
	}
}

func BenchmarkScrape(b *testing.B) {
	for _, tunnels := range []int{1, 50} {
		for _, format := range []struct{ name, accept string }{{"text", ""}, {"OpenMetrics", acceptOpen}, {"protobuf", acceptNative}} {
			b.Run(fmt.Sprintf("%d tunnels, %s", tunnels, format.name), func(b *testing.B) {
				b.ReportAllocs()
				s := everything()
				for i := 1; i < tunnels; i++ {
					t := s.Tunnels[0]
					t.Name = fmt.Sprintf("tunnel-%d", i)
					s.Tunnels = append(s.Tunnels, t)
				}
				h := handlerOf(s)
				r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
				r.Header.Set("Accept", format.accept)
				for b.Loop() {
					h.ServeHTTP(discard{}, r)
				}
			})
		}
	}
}

// discard drops answers.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return io.Discard.Write(p) }
func (discard) WriteHeader(int)             {}
