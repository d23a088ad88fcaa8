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
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/test/nettest"
)

const promPatience = time.Minute

// promWorld is a relay, what it leads to, and a Prometheus that scrapes it.
type promWorld struct {
	t                *testing.T
	relay, api       string // addresses
	target, hopLater net.Listener
}

// TestPrometheus has Debian's Prometheus scrape a relay, asks it everything that
// the dashboard asks, and kills hops until the alerts fire.
func TestPrometheus(t *testing.T) {
	prometheus := nettest.RequireProgram(t, "prometheus", "prometheus")
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	t.Parallel()
	w := &promWorld{t: t}
	w.startRelay()
	w.startPrometheus(prometheus)
	w.keepBusy()

	t.Run("every query of the dashboard has data", func(t *testing.T) {
		exprs := dashboardQueries(t)
		if len(exprs) < 30 {
			t.Fatalf("the dashboard has %d queries", len(exprs))
		}
		lacks := map[string]bool{}
		history := len(w.query("longhaul_history_records_total")) > 0
		for _, e := range exprs {
			lacks[e] = history || !strings.Contains(e, "longhaul_history_")
		}
		maps.DeleteFunc(lacks, func(_ string, lacks bool) bool { return !lacks })
		nettest.Eventually(t, promPatience, func() bool {
			for e := range lacks {
				if len(w.query(e)) > 0 {
					delete(lacks, e)
				}
			}
			return len(lacks) == 0
		}, func() string {
			var all []string
			for e := range lacks {
				all = append(all, e)
			}
			return "no data for\n" + strings.Join(all, "\n")
		})
	})

	t.Run("alerts fire when hops die", func(t *testing.T) {
		for _, name := range []string{"LonghaulHopDown", "LonghaulTunnelUnusable"} {
			if got := w.alerts(name); len(got) > 0 {
				t.Errorf("%s fires while all is well: %v", name, got)
			}
		}
		w.target.Close()
		nettest.Eventually(t, promPatience, func() bool {
			a := w.alerts("LonghaulHopDown")
			return len(a) == 1 && a[0]["hop"] == w.target.Addr().String() && a[0]["tunnel"] == "two-hops"
		}, func() string { return fmt.Sprintf("one hop has died: %v", w.alerts("LonghaulHopDown")) })
		if got := w.alerts("LonghaulTunnelUnusable"); len(got) > 0 {
			t.Errorf("a hop is left, and yet %v", got)
		}
		w.hopLater.Close()
		nettest.Eventually(t, promPatience, func() bool { return len(w.alerts("LonghaulTunnelUnusable")) == 1 },
			func() string { return fmt.Sprintf("both hops have died: %v", w.alerts("LonghaulTunnelUnusable")) })
	})
}

// startRelay starts the relay with a tunnel of two hops. Its limits are set so
// that each metric has a value.
func (w *promWorld) startRelay() {
	t := w.t
	w.target, w.hopLater = listenEcho(t), listenEcho(t)
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := (&exec.Cmd{Path: self, Args: []string{"longhaul", "check", "--new-key", key}}).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nearKeys, farKeys := pairedHosts(t)
	// The relay at the far end of a chain that is checked, and of a pair.
	far, farFile := nettest.FreeAddress(t, "127.0.0.1"), filepath.Join(dir, "far.yaml")
	farOfPair := nettest.FreeAddress(t, "127.0.0.1")
	if err := os.WriteFile(farFile, fmt.Appendf(nil, `
control_socket: off
log: {level: warn}
pair_keys: %s
tunnels:
  - {name: far, listen: %s, forward: %s, check: {key_file: %s, next: target}}
  - {name: paired, listen: %s, forward: %[3]s, pair_from: near}
`, farKeys, far, w.hopLater.Addr(), key, farOfPair), 0o600); err != nil {
		t.Fatal(err)
	}
	w.run(&exec.Cmd{Path: self, Args: []string{"longhaul", "relay", "-c", farFile}})
	w.relay = nettest.FreeAddress(t, "127.0.0.1")
	http := nettest.FreeAddress(t, "127.0.0.1")
	w.api = http
	file := filepath.Join(dir, "longhaul.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
control_socket: off
http_listen: %s
memory_limit: 1GiB
log: {level: warn}
pair_keys: %s
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
`, http, nearKeys, w.relay, w.target.Addr(), w.hopLater.Addr(), nettest.FreeAddress(t, "127.0.0.1"), far, key,
		nettest.FreeAddress(t, "127.0.0.1"), farOfPair), 0o600); err != nil {
		t.Fatal(err)
	}
	w.run(&exec.Cmd{Path: self, Args: []string{"longhaul", "relay", "-c", file}, Env: append(os.Environ(), "STATE_DIRECTORY="+dir)})
	nettest.Eventually(t, promPatience, func() bool { return getText("http://"+http+"/metrics") != "" }, func() string { return "the relay has no metrics" })
}

// pairedHosts returns the directories with the keys of two hosts, near and far,
// that know each other.
func pairedHosts(t *testing.T) (near, far string) {
	t.Helper()
	near, far = filepath.Join(t.TempDir(), "near"), filepath.Join(t.TempDir(), "far")
	for _, one := range []struct{ dir, peer, name string }{{near, far, "far"}, {far, near, "near"}} {
		key, _, _, err := identity.New(one.peer).Key()
		nettest.Must(t, err)
		_, err = identity.New(one.dir).Pin(one.name, key)
		nettest.Must(t, err)
	}
	return near, far
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

// startPrometheus has it scrape the relay each second. The alerts are those of
// the package, with the times that they wait cut short.
func (w *promWorld) startPrometheus(prometheus string) {
	t := w.t
	dir := t.TempDir()
	rules, err := os.ReadFile("../../packaging/prometheus/longhaul.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	short := strings.NewReplacer("for: 1m\n", "for: 2s\n", "for: 15s\n", "for: 2s\n").Replace(string(rules))
	scraped := w.api
	w.api = nettest.FreeAddress(t, "127.0.0.1")
	for name, text := range map[string]string{
		"rules.yml": short,
		"prometheus.yml": fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
  - job_name: longhaul
    static_configs: [{targets: [%q]}]
`, scraped),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.run(exec.Command(prometheus, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+w.api, "--log.level=warn"))
	nettest.Eventually(t, promPatience, func() bool { return getText("http://"+w.api+"/-/ready") != "" }, func() string { return "Prometheus is not ready" })
	nettest.Eventually(t, promPatience, func() bool {
		up := w.query(`up{job="longhaul"}`)
		return len(up) == 1 && up[0].value == "1"
	}, func() string { return fmt.Sprintf("it is not scraped: %v", w.query("up")) })
}

// keepBusy moves bytes over flows that last, and has others end, until the end of
// the test. One is limited by pacing_rate, so that there is a cause to be found.
func (w *promWorld) keepBusy() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	var lasting net.Conn
	w.t.Cleanup(func() {
		cancel()
		<-done
		<-done
		if lasting != nil {
			lasting.Close()
		}
	})
	each := func(pause time.Duration, do func()) {
		for ctx.Err() == nil {
			do()
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
		done <- struct{}{}
	}
	dial := func() net.Conn {
		c, err := net.DialTimeout("tcp", w.relay, time.Second)
		if err != nil {
			return nil
		}
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		return c
	}
	go each(100*time.Millisecond, func() {
		if c := dial(); c != nil {
			_, _ = c.Write([]byte("hello"))
			_, _ = io.ReadFull(c, make([]byte, 5))
			c.Close()
		}
	})
	piece := make([]byte, 64<<10)
	go each(time.Millisecond, func() { // as fast as pacing_rate lets it, both ways
		if lasting == nil {
			if lasting = dial(); lasting == nil {
				return
			}
			go func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }(lasting)
		}
		if _, err := lasting.Write(piece); err != nil {
			lasting.Close()
			lasting = nil
		}
	})
}

type promValue struct {
	labels map[string]string
	value  string
}

// query asks Prometheus for what an expression is now.
func (w *promWorld) query(expr string) (values []promValue) {
	text := getText("http://" + w.api + "/api/v1/query?query=" + url.QueryEscape(expr))
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
		w.t.Fatalf("%s: %v %s", expr, err, text)
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

// dashboardQueries are the expressions of every panel, with Grafana's variables
// filled in.
func dashboardQueries(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../packaging/grafana/longhaul.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %q asks nothing", p.Title)
		}
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	for i, e := range all {
		all[i] = strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$tunnel", ".*").Replace(e)
	}
	return all
}
