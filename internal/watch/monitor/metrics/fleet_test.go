package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/stats"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

const (
	relays        = 50
	flowsOfRelay  = 400
	fleetPatience = time.Minute
)

// fleet has relays whose flows differ in goodput, each behind a path of its own, and the goodput of all transfers in
// bytes per second as their records have it.
func fleet(t *testing.T) (h http.Handler, truth []float64) {
	t.Helper()
	random := rand.New(rand.NewPCG(5, 4))
	mux := http.NewServeMux()
	for i := range relays {
		var records []monitor.Record
		m := monitor.New(monitor.Options{
			Sample: func(func([]flow.Sample)) (int, error) { return 0, nil },
			Overview: func() monitor.Overview {
				return monitor.Overview{Tunnels: []monitor.Tunnel{{Tunnel: flow.Tunnel{Name: "to-b"}}}}
			},
			OnRecords: func(all []monitor.Record) { records = append(records, all...) },
		})
		var ended []monitor.Record
		for range flowsOfRelay {
			bytes := int64(math.Exp(random.NormFloat64()*2 + 14)) // a third of them are too small
			bps := math.Exp(random.NormFloat64()*0.8 + 15 + float64(i%10)/4)
			ended = append(ended, monitor.Record{Record: flow.Record{Flow: flow.ID(len(ended) + 1), Name: flow.NewName(), Tunnel: "to-b", Start: time.Now(),
				BytesUp: bytes, Elapsed: units.Seconds(time.Duration(float64(bytes) / bps * 1e9)), ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}})
		}
		m.Ended(ended)
		m.Start()
		m.Close()
		for i := range records {
			if r := &records[i]; r.BytesUp >= monitor.MinTransfer {
				truth = append(truth, r.GoodputBps()/8)
			}
		}
		mux.Handle(fmt.Sprintf("/%d/metrics", i), Handler(Options{Snapshot: m.Snapshot}))
	}
	return mux, truth
}

// TestQuantilesOfAFleet has Prometheus merge the histograms of 50 relays: quantiles are within 5 % of those of the
// records of all.
func TestQuantilesOfAFleet(t *testing.T) {
	program := nettest.RequireProgram(t, "prometheus", "prometheus")
	h, truth := fleet(t)
	if len(truth) < relays*flowsOfRelay/4 {
		t.Fatalf("%d transfers", len(truth))
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	configuration := "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: longhaul\n  static_configs:\n"
	for i := range relays {
		configuration += fmt.Sprintf("  - {targets: [%q], labels: {__metrics_path__: /%d/metrics, instance: relay-%d}}\n", strings.TrimPrefix(server.URL, "http://"), i, i)
	}
	dir := t.TempDir()
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(configuration), 0o600))
	said, err := os.Create(filepath.Join(dir, "said"))
	nettest.Must(t, err)
	t.Cleanup(func() { said.Close() })
	api := nettest.FreeAddress(t, "127.0.0.1")
	p := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+api,
		"--enable-feature=native-histograms,exemplar-storage")
	p.Stdout, p.Stderr = said, said
	nettest.Must(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if text, _ := os.ReadFile(said.Name()); t.Failed() || strings.Contains(string(text), "out-of-order") {
			t.Errorf("Prometheus said:\n%s", text)
		}
	})
	ask := func(expr string) float64 {
		resp, err := http.Get("http://" + api + "/api/v1/query?query=" + url.QueryEscape(expr))
		if err != nil {
			return math.NaN()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		var answer struct {
			Data struct{ Result []struct{ Value [2]any } }
		}
		if json.Unmarshal(body, &answer) != nil || len(answer.Data.Result) != 1 {
			return math.NaN()
		}
		v, _ := strconv.ParseFloat(fmt.Sprint(answer.Data.Result[0].Value[1]), 64)
		return v
	}
	const goodput = "longhaul_flow_goodput_bytes_per_second"
	var count float64
	nettest.Eventually(t, fleetPatience, func() bool {
		count = ask("histogram_count(sum(" + goodput + "))")
		return count == float64(len(truth))
	}, func() string { return fmt.Sprintf("%v transfers of %d", count, len(truth)) })
	for _, q := range []float64{0.01, 0.1, 0.5, 0.9, 0.99} {
		want := stats.Quantile(truth, q, func(v float64) float64 { return v })
		got := ask(fmt.Sprintf("histogram_quantile(%v, sum(%s))", q, goodput))
		t.Logf("quantile %v: %.4g B/s, of the records %.4g, off by %.1f %%", q, got, want, 100*math.Abs(got-want)/want)
		if !(math.Abs(got-want) <= 0.05*want) {
			t.Errorf("quantile %v is %v, that of the records %v", q, got, want)
		}
	}
}
