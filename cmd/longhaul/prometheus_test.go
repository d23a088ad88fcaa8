//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/identity"
	"longhaul/test/nettest"
)

const promPatience = time.Minute

// promWorld has three relays with the same configuration but for their addresses, what they lead to, and a
// Prometheus that scrapes them.
type promWorld struct {
	t        *testing.T
	relays   [3]promRelay
	api      string       // of the Prometheus with native histograms
	hopLater net.Listener // of all relays
}

type promRelay struct {
	listen, paired, metrics string
	target                  net.Listener // the first hop of two-hops
}

// TestPrometheus has Debian's Prometheus scrape three relays whose tunnels have the same names. It asks everything
// that the dashboard asks, evaluates every rule, and kills hops of one relay until its alerts fire.
func TestPrometheus(t *testing.T) {
	prometheus := nettest.RequireProgram(t, "prometheus", "prometheus")
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	t.Parallel()
	w := &promWorld{t: t}
	w.startRelays()
	w.api = w.startPrometheus(prometheus, "--enable-feature=native-histograms,exemplar-storage")
	usual := w.startPrometheus(prometheus)
	w.keepBusy()
	instances := map[string]bool{}
	for _, r := range w.relays {
		instances[r.metrics] = true
	}

	t.Run("every query of the dashboard has data of each relay, or of all by its title", func(t *testing.T) {
		lacks := dashboardQueries(t)
		if len(lacks) < 70 {
			t.Fatalf("the dashboard has %d queries", len(lacks))
		}
		nettest.Eventually(t, promPatience, func() bool {
			maps.DeleteFunc(lacks, func(q dashboardQuery, _ string) bool {
				got := w.query(q.expr)
				if strings.HasSuffix(q.title, ", all relays") {
					return len(got) > 0
				}
				seen := map[string]bool{}
				for _, v := range got {
					if !instances[v.labels["instance"]] {
						t.Errorf("%s: %s has a value of no single relay: %v", q.title, q.expr, v.labels)
						return true
					}
					seen[v.labels["instance"]] = true
				}
				return len(seen) == len(instances)
			})
			return len(lacks) == 0
		}, func() string {
			var all []string
			for q, why := range lacks {
				all = append(all, fmt.Sprintf("%s: %s %s: %v", q.title, q.expr, why, w.query(q.expr)))
			}
			return "no data of each relay for\n" + strings.Join(all, "\n")
		})
	})

	t.Run("every rule is evaluated", func(t *testing.T) {
		var last string
		nettest.Eventually(t, promPatience, func() bool {
			last = getText("http://" + w.api + "/api/v1/rules")
			var answer struct {
				Data struct {
					Groups []struct {
						Rules []struct{ Name, Health, LastError string }
					}
				}
			}
			if err := json.Unmarshal([]byte(last), &answer); err != nil {
				return false
			}
			n := 0
			for _, g := range answer.Data.Groups {
				for _, r := range g.Rules {
					if n++; r.LastError != "" {
						t.Fatalf("%s: %s", r.Name, r.LastError)
					}
					if r.Health != "ok" {
						return false
					}
				}
			}
			return n > 25
		}, func() string { return last })
	})

	t.Run("exemplars name flows", func(t *testing.T) {
		var last string
		nettest.Eventually(t, promPatience, func() bool {
			at := time.Now()
			last = getText(fmt.Sprintf("http://%s/api/v1/query_exemplars?query=longhaul_flow_duration_seconds&start=%d&end=%d", w.api, at.Add(-time.Hour).Unix(), at.Add(time.Hour).Unix()))
			var answer struct {
				Data []struct {
					SeriesLabels map[string]string
					Exemplars    []struct{ Labels map[string]string }
				}
			}
			if err := json.Unmarshal([]byte(last), &answer); err != nil {
				return false
			}
			for _, s := range answer.Data {
				for _, e := range s.Exemplars {
					if _, err := flow.ParseName(e.Labels["flow"]); err != nil || !instances[s.SeriesLabels["instance"]] {
						t.Fatalf("%v has the exemplar %v: %v", s.SeriesLabels, e, err)
					}
				}
			}
			return len(answer.Data) > 0
		}, func() string { return "no exemplars: " + last })
	})

	t.Run("without native histograms it takes OpenMetrics", func(t *testing.T) {
		nettest.Eventually(t, promPatience, func() bool {
			n := 0
			for _, v := range queryAt(t, usual, `longhaul_flow_duration_seconds_count{tunnel="two-hops"} > 0`) {
				if instances[v.labels["instance"]] {
					n++
				}
			}
			return n == len(instances)
		}, func() string { return fmt.Sprint(queryAt(t, usual, "up")) })
	})

	t.Run("alerts fire when hops die", func(t *testing.T) {
		for _, name := range []string{"LonghaulHopDown", "LonghaulTunnelUnusable"} {
			if got := w.alerts(name); len(got) > 0 {
				t.Errorf("%s fires while all is well: %v", name, got)
			}
		}
		of := &w.relays[1]
		of.target.Close()
		nettest.Eventually(t, promPatience, func() bool {
			a := w.alerts("LonghaulHopDown")
			return len(a) == 1 && a[0]["instance"] == of.metrics && a[0]["hop"] == of.target.Addr().String() && a[0]["tunnel"] == "two-hops"
		}, func() string { return fmt.Sprintf("one hop has died: %v", w.alerts("LonghaulHopDown")) })
		if got := w.alerts("LonghaulTunnelUnusable"); len(got) > 0 {
			t.Errorf("a hop is left, and yet %v", got)
		}
		w.hopLater.Close()
		nettest.Eventually(t, promPatience, func() bool {
			a := w.alerts("LonghaulTunnelUnusable")
			return len(a) == 1 && a[0]["instance"] == of.metrics
		}, func() string {
			return fmt.Sprintf("both hops of a relay have died: %v", w.alerts("LonghaulTunnelUnusable"))
		})
	})
}

// startRelays starts the relays with a tunnel of two hops. Its limits are set so that each metric has a value. They
// lead to one far relay, at the end of a chain that is checked, and of a pair.
func (w *promWorld) startRelays() {
	t := w.t
	w.hopLater = listenEcho(t)
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := (&exec.Cmd{Path: self, Args: []string{"longhaul", "check", "--new-key", key}}).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	farKeys := filepath.Join(dir, "far")
	farKey, _, _, err := identity.New(farKeys).Key()
	nettest.Must(t, err)
	far, farOfPair, farTarget := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1"), listenEcho(t)
	var nearKeys [len(w.relays)]string
	for i := range w.relays {
		nearKeys[i] = filepath.Join(dir, fmt.Sprint("near", i))
		key, _, _, err := identity.New(nearKeys[i]).Key()
		nettest.Must(t, err)
		_, err = identity.New(farKeys).Pin(fmt.Sprintf("near/r%d", i), key)
		nettest.Must(t, err)
		_, err = identity.New(nearKeys[i]).Pin("far", farKey)
		nettest.Must(t, err)
	}
	w.startRelay(filepath.Join(dir, "far.yaml"), fmt.Sprintf(`
control_socket: off
log: {level: warn}
pair_keys: %s
tunnels:
  - {name: far, listen: %s, forward: %s, check: {key_file: %s, next: target}}
  - {name: paired, listen: %s, forward: %[3]s, pair_from: near}
`, farKeys, far, farTarget.Addr(), key, farOfPair))
	for i := range w.relays {
		r := &w.relays[i]
		r.target, r.listen, r.paired, r.metrics = listenEcho(t), nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
		state := filepath.Join(dir, fmt.Sprint("state", i))
		nettest.Must(t, os.Mkdir(state, 0o700))
		w.startRelay(filepath.Join(state, "longhaul.yaml"), fmt.Sprintf(`
control_socket: off
http_listen: %s
memory_limit: 1GiB
log: {level: warn}
pair_keys: %s
history: {ship: [{to: "https://127.0.0.1:1/"}]}
tunnels:
  - name: two-hops
    listen: %s
    forward: [%s, %s]
    max_flows: 100
    health: {check: connect, interval: 200ms, timeout: 10s}
    lan: {congestion_control: reno, pacing_rate: 20Mbit}
    wan: {congestion_control: reno, pacing_rate: 20Mbit}
  - name: chain
    listen: %s
    forward: %s
    check: {key_file: %s, next: relay, interval: 2s}
  - {name: paired, listen: %s, forward: %s, pair: far}
`, r.metrics, nearKeys[i], r.listen, r.target.Addr(), w.hopLater.Addr(), nettest.FreeAddress(t, "127.0.0.1"), far, key,
			r.paired, farOfPair), "STATE_DIRECTORY="+state)
		nettest.Eventually(t, promPatience, func() bool { return getText("http://"+r.metrics+"/metrics") != "" }, func() string { return "the relay has no metrics" })
	}
}

func (w *promWorld) startRelay(file, configuration string, environment ...string) {
	w.t.Helper()
	nettest.Must(w.t, os.WriteFile(file, []byte(configuration), 0o600))
	self, err := os.Executable()
	nettest.Must(w.t, err)
	w.run(&exec.Cmd{Path: self, Args: []string{"longhaul", "relay", "-c", file}, Env: append(os.Environ(), environment...)})
}

// run runs a program until the end of the test, and shows what it said if that
// has failed.
func (w *promWorld) run(cmd *exec.Cmd) { runProgram(w.t, cmd) }

// runProgram does that. It returns the file that has what the program says.
func runProgram(t testing.TB, cmd *exec.Cmd) (file string) {
	t.Helper()
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(said.Name())
			t.Logf("%s said:\n%s", filepath.Base(cmd.Path), text)
		}
		said.Close()
	})
	return said.Name()
}

// startPrometheus has it scrape the relays each second, and returns its address. The alerts are those of the
// package, with the times that they wait cut short.
func (w *promWorld) startPrometheus(prometheus string, flags ...string) (api string) {
	t := w.t
	dir := t.TempDir()
	rules, err := os.ReadFile("../../packaging/prometheus/longhaul.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	short := strings.NewReplacer("interval: 5m\n", "interval: 1s\n", "for: 1m\n", "for: 2s\n", "for: 15s\n", "for: 2s\n").Replace(string(rules))
	configuration := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\nscrape_configs:\n- job_name: longhaul\n  static_configs:\n"
	for i, r := range w.relays {
		configuration += fmt.Sprintf("  - {targets: [%q], labels: {site: site-%d}}\n", r.metrics, i/2)
	}
	for name, text := range map[string]string{"rules.yml": short, "prometheus.yml": configuration} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	api = nettest.FreeAddress(t, "127.0.0.1")
	w.run(exec.Command(prometheus, append(flags, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+api, "--log.level=warn")...))
	nettest.Eventually(t, promPatience, func() bool { return getText("http://"+api+"/-/ready") != "" }, func() string { return "Prometheus is not ready" })
	nettest.Eventually(t, promPatience, func() bool { return len(queryAt(t, api, `up{job="longhaul"} == 1`)) == len(w.relays) },
		func() string { return fmt.Sprintf("they are not scraped: %v", queryAt(t, api, "up")) })
	return api
}

// keepBusy moves bytes over flows of each relay: some that end at once, some that have moved 1 MiB, and one that
// lasts, until the end of the test. pacing_rate limits them, so that there is a cause to be found.
func (w *promWorld) keepBusy() {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	w.t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	// again has flows with so many bytes, one after the other.
	again := func(listen string, bytes int, pause time.Duration) {
		for ctx.Err() == nil {
			exchange(ctx, listen, bytes)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
	for i := range w.relays {
		listen := w.relays[i].listen
		all.Go(func() { again(listen, 5, 100*time.Millisecond) })
		all.Go(func() { again(listen, 1<<20, 100*time.Millisecond) })
		all.Go(func() { again(listen, 1<<30, 100*time.Millisecond) })
		paired := w.relays[i].paired
		all.Go(func() { again(paired, 1<<16, 100*time.Millisecond) })
	}
}

// exchange has an echo of so many bytes, until ctx ends or it fails.
func exchange(ctx context.Context, address string, bytes int) {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.CopyN(io.Discard, c, int64(bytes))
	}()
	piece := make([]byte, 64<<10)
	for left := bytes; left > 0; {
		n, err := c.Write(piece[:min(left, len(piece))])
		if err != nil {
			return
		}
		left -= n
	}
	<-read
}

type promValue struct {
	labels map[string]string
	value  string
}

// query asks the Prometheus with native histograms for what an expression is now.
func (w *promWorld) query(expr string) []promValue { return queryAt(w.t, w.api, expr) }

func queryAt(t *testing.T, api, expr string) (values []promValue) {
	t.Helper()
	text := getText("http://" + api + "/api/v1/query?query=" + url.QueryEscape(expr))
	var answer struct {
		Status string
		Error  string
		Data   struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v %s", expr, err, text)
	}
	for _, r := range answer.Data.Result {
		value, _ := r.Value[1].(string)
		values = append(values, promValue{r.Metric, value})
	}
	return values
}

// alerts are the labels of those of a name that fire.
func (w *promWorld) alerts(name string) (firing []map[string]string) {
	for _, v := range w.query(fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing"}`, name)) {
		firing = append(firing, v.labels)
	}
	return firing
}

// getText is what is answered with 200, empty for all else but a bad query.
func getText(at string) string {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(at)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusBadRequest {
		return ""
	}
	return string(body)
}

// dashboardQuery is one of a panel.
type dashboardQuery struct{ title, expr string }

// ownInterval is one that does not grow with the step of a graph.
var ownInterval = regexp.MustCompile(`\[[0-9]`)

// dashboardQueries are those of every panel and annotation, with Grafana's variables filled in; the values are empty.
func dashboardQueries(t *testing.T) map[dashboardQuery]string {
	t.Helper()
	text, err := os.ReadFile("../../packaging/grafana/longhaul.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			ID          int
			Title       string
			Type        string
			Description string
			FieldConfig struct{ Defaults struct{ Unit string } }
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := []string{"$__rate_interval", "10s"}
	for _, v := range dashboard.Templating.List {
		variables = append(variables, "$"+v.Name, ".*")
	}
	all, ids, cells := map[dashboardQuery]string{}, map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %q asks nothing", p.Title)
		}
		if p.Type != "row" && p.Description == "" {
			t.Errorf("panel %q has no description", p.Title)
		}
		if graph := p.Type == "stat" || p.Type == "timeseries"; graph && p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("panel %q has no unit", p.Title)
		}
		if ids[p.ID] {
			t.Errorf("panel %q has the ID of another one", p.Title)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if cells[at] != "" || at[0] >= 24 {
					t.Errorf("panel %q is where %q is", p.Title, cells[at])
				}
				cells[at] = p.Title
			}
		}
		for _, target := range p.Targets {
			e := target.Expr
			for _, filter := range []string{`job=~"$job"`, `site=~"$site"`, `instance=~"$instance"`} {
				if !strings.Contains(e, filter) {
					t.Errorf("panel %q: %s does not heed %s", p.Title, e, filter)
				}
			}
			if ownInterval.MatchString(e) {
				t.Errorf("panel %q: %s has an interval of its own", p.Title, e)
			}
			all[dashboardQuery{p.Title, strings.NewReplacer(variables...).Replace(e)}] = ""
		}
	}
	return all
}
