package packaging

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"longhaul/docs"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

type alert struct {
	Alert       string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	text, err := os.ReadFile("prometheus/longhaul.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				all = append(all, r)
			}
		}
	}
	if len(all) < 10 {
		t.Fatalf("%d alerts", len(all))
	}
	return all
}

// Each alert has a summary, a description, how bad it is, a section of docs/alerts.md that it
// points to, and a test.
func TestAlertsAreDocumentedAndTested(t *testing.T) {
	tests, err := os.ReadFile("prometheus/longhaul.rules.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := docs.Pages.ReadFile("alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" || a.Labels["severity"] != "warning" && a.Labels["severity"] != "critical" {
			t.Errorf("%s: labels %v, annotations %v", a.Alert, a.Labels, a.Annotations)
		}
		if want := "{{ with $externalLabels.runbook_base }}{{ . }}{{ else }}file:///usr/share/doc/longhaul/alerts.md{{ end }}#" + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %s", a.Alert, a.Annotations["runbook_url"], want)
		}
		if !bytes.Contains(page, []byte("\n## "+a.Alert+"\n")) {
			t.Errorf("docs/alerts.md has no section %s", a.Alert)
		}
		if !bytes.Contains(tests, []byte("alertname: "+a.Alert+"\n")) {
			t.Errorf("%s has no test", a.Alert)
		}
	}
}

func TestPromtool(t *testing.T) {
	promtool := nettest.RequireProgram(t, "promtool", "prometheus")
	for _, args := range [][]string{{"check", "rules", "prometheus/longhaul.rules.yml"}, {"test", "rules", "prometheus/longhaul.rules.test.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// The example for Alertmanager is valid, and names only alerts that there are.
func TestAlertmanager(t *testing.T) {
	const example = "prometheus/alertmanager.example.yml"
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	known := alerts(t)
	for _, name := range regexp.MustCompile(`Longhaul\w+`).FindAllString(string(text), -1) {
		if !slices.ContainsFunc(known, func(a alert) bool { return a.Alert == name }) {
			t.Errorf("%s names %s, which is no alert", example, name)
		}
	}
	amtool := nettest.RequireProgram(t, "amtool", "prometheus-alertmanager")
	if out, err := exec.Command(amtool, "check-config", example).CombinedOutput(); err != nil {
		t.Errorf("amtool check-config: %v\n%s", err, out)
	}
}

func TestSharedHasWhatTheDocsName(t *testing.T) {
	shared, err := Shared()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"doc/longhaul/metrics.md", "doc/longhaul/alerts.md", "doc/longhaul/prometheus/longhaul.rules.yml", "doc/longhaul/prometheus/alertmanager.example.yml", "doc/longhaul/grafana/longhaul.json"} {
		if len(shared[name]) == 0 {
			t.Errorf("there is no %s", name)
		}
	}
}
