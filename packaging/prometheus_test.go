package packaging

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"longhaul/docs"
	"longhaul/internal/nettest"
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

// Each alert has a summary, how bad it is, a section of docs/metrics.md that it
// points to, and a test.
func TestAlertsAreDocumentedAndTested(t *testing.T) {
	tests, err := os.ReadFile("prometheus/longhaul.rules.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := docs.Pages.ReadFile("metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if a.Annotations["summary"] == "" || a.Labels["severity"] != "warning" && a.Labels["severity"] != "critical" {
			t.Errorf("%s: labels %v, annotations %v", a.Alert, a.Labels, a.Annotations)
		}
		if want := "file:///usr/share/doc/longhaul/metrics.md#" + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %s", a.Alert, a.Annotations["runbook_url"], want)
		}
		if !bytes.Contains(page, []byte("\n### "+a.Alert+"\n")) {
			t.Errorf("docs/metrics.md has no section %s", a.Alert)
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

func TestSharedHasWhatTheDocsName(t *testing.T) {
	shared, err := Shared()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"doc/longhaul/metrics.md", "doc/longhaul/prometheus/longhaul.rules.yml", "doc/longhaul/grafana/longhaul.json"} {
		if len(shared[name]) == 0 {
			t.Errorf("there is no %s", name)
		}
	}
}
