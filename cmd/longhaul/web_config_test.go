//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"longhaul/internal/sys/httpd"
	"longhaul/test/nettest"
	"longhaul/test/nettest/browser"
)

// readers reads a relay whose ports want client certificates.
type readers struct {
	t                             *testing.T
	dir                           string
	issuer, foreign               *nettest.Issuer
	metrics, health, page, socket string
	relay                         *running
}

// write writes the relay's configuration, with more keys.
func (r *readers) write(more string) {
	r.t.Helper()
	nettest.Must(r.t, os.WriteFile(filepath.Join(r.dir, "longhaul.yaml"), fmt.Appendf(nil, "control_socket: %q\nhttp_listen: %q\nhttp_web_config: %s/web.yaml\n"+
		"dashboard: {listen: %q, web_config: %[3]s/web.yaml}\n%[5]s", r.socket, r.metrics, r.dir, r.page, more), 0o600))
}

// newReaders starts such a relay.
func newReaders(t *testing.T) *readers {
	t.Helper()
	dir, err := os.MkdirTemp("", "lh")
	nettest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &readers{t: t, dir: dir, issuer: nettest.NewIssuer(t, dir, "ca"), foreign: nettest.NewIssuer(t, dir, "foreign"), socket: filepath.Join(dir, "s")}
	for _, at := range []*string{&r.metrics, &r.health, &r.page} {
		*at = nettest.FreeAddress(t, "127.0.0.1")
	}
	r.issuer.Issue(t, dir, "relay", "localhost", time.Hour)
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(`
tls_server_config:
  cert_file: relay.pem
  key_file: relay.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  client_allowed_sans: [prometheus.example.net]
`), 0o600))
	r.write(fmt.Sprintf("health_listen: %q\ntunnels: [{name: to-b, listen: %q, forward: %q}]\n", r.health, nettest.FreeAddress(t, "127.0.0.1"), echoTarget(t)))
	r.relay = startAs(t, "longhaul", nil, nil, "relay", "-c", filepath.Join(dir, "longhaul.yaml"))
	r.relay.waitLog(t, "relay started")
	return r
}

// longhaul runs a command to its end.
func (r *readers) longhaul(args ...string) (output string, code int) {
	r.t.Helper()
	self, err := os.Executable()
	nettest.Must(r.t, err)
	cmd := &exec.Cmd{Path: self, Args: append([]string{"longhaul"}, args...)}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// client is one with a certificate for a name; empty: without.
func (r *readers) client(name string) *http.Client {
	r.t.Helper()
	pool := x509.NewCertPool()
	text, err := os.ReadFile(r.issuer.File)
	nettest.Must(r.t, err)
	pool.AppendCertsFromPEM(text)
	config := &tls.Config{RootCAs: pool}
	if name != "" {
		pair, err := tls.LoadX509KeyPair(r.issuer.Issue(r.t, r.dir, "client", name, time.Hour))
		nettest.Must(r.t, err)
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

// expiry is the metric of a server's certificate, as it is scraped.
func (r *readers) expiry(c *http.Client, server string) string {
	answer, err := c.Get("https://" + r.metrics + "/metrics")
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	_, rest, _ := strings.Cut(string(body), fmt.Sprintf("longhaul_certificate_expiry_timestamp_seconds{use=%q} ", server))
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// promJob is a scrape of Debian's Prometheus.
type promJob struct{ name, target, access string }

// startPrometheusWith has it scrape over TLS, and returns its address.
func startPrometheusWith(t *testing.T, prometheus, ca string, jobs []promJob) (api string) {
	t.Helper()
	text := "global: {scrape_interval: 2s, scrape_timeout: 2s}\nscrape_configs:\n"
	for _, j := range jobs {
		text += fmt.Sprintf("- {job_name: %s, scheme: https, static_configs: [{targets: [%q]}], %s, ca_file: %s, server_name: localhost}}\n",
			j.name, j.target, j.access, ca)
	}
	dir := t.TempDir()
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(text), 0o600))
	api = nettest.FreeAddress(t, "127.0.0.1")
	runProgram(t, exec.Command(prometheus, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+api, "--log.level=warn"))
	nettest.Eventually(t, promPatience, func() bool { return getText("http://"+api+"/-/ready") != "" }, func() string { return "Prometheus is not ready" })
	return api
}

// targets are the errors of the last scrapes, by job; a job without a scrape is not there.
func targets(t *testing.T, api string) map[string]string {
	t.Helper()
	var answer struct {
		Data struct {
			ActiveTargets []struct {
				ScrapePool, Health, LastError string
			}
		}
	}
	_ = json.Unmarshal([]byte(getText("http://"+api+"/api/v1/targets")), &answer)
	errs := map[string]string{}
	for _, a := range answer.Data.ActiveTargets {
		if a.Health != "unknown" {
			errs[a.ScrapePool] = a.LastError
		}
	}
	return errs
}

// TestPrometheusOverTLS has Debian's Prometheus scrape with a client certificate, and others without a good one,
// while the server's certificate is renewed and the relay upgraded.
func TestPrometheusOverTLS(t *testing.T) {
	prometheus := nettest.RequireProgram(t, "prometheus", "prometheus")
	t.Parallel()
	r := newReaders(t)
	certified := func(of *nettest.Issuer, file, name string, until time.Duration) string {
		cert, key := of.Issue(t, r.dir, file, name, until)
		return fmt.Sprintf("tls_config: {cert_file: %s, key_file: %s", cert, key)
	}
	const name = "prometheus.example.net"
	api := startPrometheusWith(t, prometheus, r.issuer.File, []promJob{
		{"good", r.metrics, certified(r.issuer, "good", name, time.Hour)},
		{"good-http1", r.metrics, "enable_http2: false, " + certified(r.issuer, "good1", name, time.Hour)},
		{"none", r.metrics, "tls_config: {insecure_skip_verify: false"},
		{"foreign", r.metrics, certified(r.foreign, "other", name, time.Hour)},
		{"expired", r.metrics, certified(r.issuer, "past", name, -time.Minute)},
		{"name", r.metrics, certified(r.issuer, "name", "grafana.example.net", time.Hour)},
	})
	scraped := func(job, than string) func() bool {
		return func() bool {
			return len(queryAt(t, api, fmt.Sprintf("up{job=%q} == 1 and timestamp(up{job=%[1]q}) > %s", job, than))) > 0
		}
	}
	said := func() string { return fmt.Sprint(targets(t, api)) }
	for _, job := range []string{"good", "good-http1"} {
		nettest.Eventually(t, promPatience, scraped(job, "0"), said)
	}
	for _, job := range []string{"none", "foreign", "expired", "name"} {
		nettest.Eventually(t, promPatience, func() bool { return targets(t, api)[job] != "" }, said)
	}
	for _, v := range queryAt(t, api, `max_over_time(up{job!~"good.*"}[10m]) == 1`) {
		t.Errorf("scraped: %v", v)
	}
	if got := len(queryAt(t, api, `{__name__=~"longhaul_.*", job!~"good.*"}`)); got > 0 {
		t.Errorf("%d series of jobs that are not admitted", got)
	}

	// From here one scrapes without pause, and none of its scrapes fails.
	c := r.client(name)
	ctx, cancel := context.WithCancel(t.Context())
	var scraping sync.WaitGroup
	defer scraping.Wait()
	defer cancel()
	scraping.Go(func() {
		for ctx.Err() == nil {
			answer, err := c.Get("https://" + r.metrics + "/metrics")
			if err != nil || answer.StatusCode != http.StatusOK {
				t.Errorf("a scrape: %v, %v", answer, err)
				return
			}
			if _, err := io.Copy(io.Discard, answer.Body); err != nil {
				t.Errorf("a scrape: %v", err)
			}
			answer.Body.Close()
		}
	})

	// A renewed certificate is in force at once, in the dashboard also.
	// Beside a load the server's limit of 5 s for a request may end one: a text that is no time.
	var before string
	nettest.Eventually(t, patience, func() bool {
		before = r.expiry(c, "http")
		_, err := strconv.ParseFloat(before, 64)
		return err == nil
	}, func() string { return "no time at which the certificate ends: " + before })
	r.issuer.Issue(t, r.dir, "relay", "localhost", 2*time.Hour)
	nettest.Eventually(t, patience, func() bool { return r.expiry(c, "http") > before && r.expiry(c, "dashboard") > before },
		func() string { return "the certificate ends at " + r.expiry(c, "http") + ", before at " + before })
	now := fmt.Sprint(time.Now().Unix())
	nettest.Eventually(t, promPatience, scraped("good", now), said)

	// A mistake leaves the last one, and status says so.
	good, err := os.ReadFile(filepath.Join(r.dir, "relay.pem"))
	nettest.Must(t, err)
	nettest.Must(t, os.WriteFile(filepath.Join(r.dir, "relay.pem"), nil, 0o600))
	if got := r.expiry(c, "http"); got <= before {
		t.Errorf("with a broken renewal: %s", got)
	}
	const problem = "changed TLS files of http_listen are not in force: "
	if output, _ := r.longhaul("status", "--control-socket", r.socket); !strings.Contains(strings.Join(strings.Fields(output), " "), problem) {
		t.Errorf("status says\n%s", output)
	}
	nettest.Must(t, os.WriteFile(filepath.Join(r.dir, "relay.pem"), good, 0o600))
	if output, _ := r.longhaul("status", "--control-socket", r.socket); strings.Contains(strings.Join(strings.Fields(output), " "), problem) {
		t.Errorf("mended, status says\n%s", output)
	}

	// Another process takes all addresses over.
	u := upgradeAt(t, r.socket)
	now = fmt.Sprint(time.Now().Unix())
	nettest.Eventually(t, promPatience, scraped("good", now), said)
	if s := statusAt(t, r.socket); s.PID != u.NewPID {
		t.Errorf("process %d answers, want %d", s.PID, u.NewPID)
	}
	if output, code := r.longhaul("ready", "--http", r.health); code != exitOK {
		t.Errorf("ready at health_listen after the upgrade: %d, %s", code, output)
	}
	if answer, err := c.Get("https://" + r.page + "/api/v1/overview"); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("the dashboard after the upgrade: %v, %v", answer, err)
	} else {
		answer.Body.Close()
	}
}

// TestHealthListen: a kubelet's probe needs no certificate, and gets no metrics.
func TestHealthListen(t *testing.T) {
	t.Parallel()
	r := newReaders(t)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/readyz/to-b": 200, "/readyz/none": 404, "/metrics": 404, "/": 404, "/api/v1/overview": 404} {
		status, body, err := httpd.Get(t.Context(), r.health, path, 1000)
		if err != nil || status != want || strings.Contains(string(body), "longhaul_") {
			t.Errorf("%s: %d %s, %v", path, status, body, err)
		}
	}
	if output, code := r.longhaul("ready", "--http", r.metrics); code != exitFailure || !strings.Contains(output, "http_listen speaks TLS there") || !strings.Contains(output, "health_listen") {
		t.Errorf("ready at the port of TLS: %d, %s", code, output)
	}
	// With a certificate http_listen answers as well.
	c := r.client("prometheus.example.net")
	answer, err := c.Get("https://" + r.metrics + "/readyz")
	nettest.Must(t, err)
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Error(answer.Status)
	}
	// A reload moves it away, and ends TLS.
	r.write("tunnels: [{name: to-b, listen: \"" + nettest.FreeAddress(t, "127.0.0.1") + "\", forward: \"127.0.0.1:1\"}]\n")
	if output, code := r.longhaul("reload", "--control-socket", r.socket); code != exitOK || !strings.Contains(output, "health_listen") {
		t.Errorf("%d, %s", code, output)
	}
	if conn, err := net.Dial("tcp", r.health); err == nil {
		conn.Close()
		t.Error("health_listen is still served")
	}
	text, err := os.ReadFile(filepath.Join(r.dir, "longhaul.yaml"))
	nettest.Must(t, err)
	nettest.Must(t, os.WriteFile(filepath.Join(r.dir, "longhaul.yaml"), bytes.Replace(text, []byte("http_web_config"), []byte("# "), 1), 0o600))
	if output, code := r.longhaul("reload", "--control-socket", r.socket); code != exitOK || !strings.Contains(output, "http_web_config") {
		t.Errorf("%d, %s", code, output)
	}
	if status, _, err := httpd.Get(t.Context(), r.metrics, "/readyz", 1000); err != nil || status != http.StatusOK {
		t.Errorf("without TLS: %d, %v", status, err)
	}
	// A mistake in the web configuration changes nothing.
	r.write("tunnels: []\n")
	nettest.Must(t, os.WriteFile(filepath.Join(r.dir, "web.yaml"), []byte("tls_server_config: {cert: x}\n"), 0o600))
	if output, code := r.longhaul("config", "check", filepath.Join(r.dir, "longhaul.yaml")); code != exitUsage || !strings.Contains(output, r.dir+"/web.yaml:1:20: tls_server_config has no key_file") {
		t.Errorf("%d, %s", code, output)
	}
}

// TestDashboardWithCertificate: the dashboard admits who has the certificate, here Go, curl and fleet status.
func TestDashboardWithCertificate(t *testing.T) {
	curl := nettest.RequireProgram(t, "curl", "curl")
	t.Parallel()
	r := newReaders(t)
	cert, key := r.issuer.Issue(t, r.dir, "reader", "prometheus.example.net", time.Hour)
	out, err := exec.Command(curl, "-sS", "--cacert", r.issuer.File, "--cert", cert, "--key", key, "https://"+r.page+"/api/v1/overview").CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"tunnels"`) {
		t.Errorf("curl: %v, %.300s", err, out)
	}
	out, err = exec.Command(curl, "-s", "--cacert", r.issuer.File, "https://"+r.page+"/").Output()
	if err == nil || len(out) > 0 {
		t.Errorf("curl without a certificate: %v, %q", err, out)
	}
	if answer, err := r.client("").Get("https://" + r.page + "/"); err == nil {
		answer.Body.Close()
		t.Errorf("without a certificate: %s", answer.Status)
	}
	inventory := filepath.Join(r.dir, "relays.yaml")
	nettest.Must(t, os.WriteFile(inventory, fmt.Appendf(nil, "ca: ca.pem\ncert: reader.pem\nkey: reader.key\nrelays:\n  - {name: relay-a, url: \"https://%s\"}\n", r.page), 0o600))
	if output, code := r.longhaul("fleet", "status", inventory); code != exitOK || !strings.Contains(output, "relay-a") {
		t.Errorf("fleet status: %d, %s", code, output)
	}
	nettest.Must(t, os.WriteFile(inventory, fmt.Appendf(nil, "ca: ca.pem\nrelays:\n  - {name: relay-a, url: \"https://%s\"}\n", r.page), 0o600))
	if output, code := r.longhaul("fleet", "status", inventory); code != exitFailure || strings.Contains(output, "ok") {
		t.Errorf("fleet status without a certificate: %d, %s", code, output)
	}
	nettest.Must(t, os.WriteFile(inventory, []byte("cert: reader.pem\nrelays: [https://relay-a]\n"), 0o600))
	if output, code := r.longhaul("fleet", "status", inventory); code != exitUsage || !strings.Contains(output, "cert and key go together") {
		t.Errorf("half a pair: %d, %s", code, output)
	}
}

// TestPasswords: Debian's Prometheus scrapes with a password, and Chromium shows the dashboard with it.
func TestPasswords(t *testing.T) {
	browser.Require(t)
	prometheus := nettest.RequireProgram(t, "prometheus", "prometheus")
	t.Parallel()
	r := newReaders(t)
	const password = "correct-horse-battery"
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	nettest.Must(t, err)
	nettest.Must(t, os.WriteFile(filepath.Join(r.dir, "web.yaml"), fmt.Appendf(nil,
		"tls_server_config: {cert_file: relay.pem, key_file: relay.key}\nbasic_auth_users: {reader: '%s'}\n", hash), 0o600))
	nettest.Must(t, syscall.Kill(r.relay.Process.Pid, syscall.SIGHUP))
	r.relay.waitLog(t, "msg=reloaded")
	access := func(password string) string {
		return "basic_auth: {username: reader, password: " + password + "}, tls_config: {insecure_skip_verify: false"
	}
	api := startPrometheusWith(t, prometheus, r.issuer.File, []promJob{
		{"right", r.metrics, access(password)}, {"wrong", r.metrics, access("guessed")}, {"none", r.metrics, "tls_config: {insecure_skip_verify: false"},
	})
	said := func() string { return fmt.Sprint(targets(t, api)) }
	nettest.Eventually(t, promPatience, func() bool { return len(queryAt(t, api, `up{job="right"} == 1`)) > 0 }, said)
	nettest.Eventually(t, promPatience, func() bool {
		errs := targets(t, api)
		return strings.Contains(errs["wrong"], "401") && strings.Contains(errs["none"], "401")
	}, said)

	answer, err := r.client("").Get("https://" + r.page + "/")
	nettest.Must(t, err)
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusUnauthorized || strings.Contains(string(body), "<") {
		t.Errorf("the page without a password: %s %s, %v", answer.Status, body, err)
	}
	p := browser.Open(t, "https://reader:"+password+"@"+r.page)
	p.Go("/")
	browser.Eval[any](p, "location.href = 'https://"+r.page+"/flows'")
	p.Becomes("location.pathname === '/flows' && document.getElementById('live').textContent === 'live'")

	// Neither the password nor its hash is said anywhere.
	status, _ := r.longhaul("status", "--json", "--control-socket", r.socket)
	text := status + r.relay.stderr.String()
	if strings.Contains(text, password) || strings.Contains(text, string(hash)) {
		t.Errorf("a secret is in\n%s", text)
	}
}
