//go:build linux

package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/find/doctor"
	"longhaul/internal/tune/hostchanges"
)

// TestWordsPage holds that docs/words.md explains each column that these commands print, and each
// state that the code has: the states are read from its text, so that a new one is missed.
func TestWordsPage(t *testing.T) {
	page := readSource(t, "../../docs/words.md")
	explained := map[string]bool{}
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(line, "|")
		for word := range strings.FieldsFuncSeq(strings.Join(cells[1:min(3, len(cells))], " "), func(r rune) bool { return strings.ContainsRune(" ,`", r) }) {
			explained[word] = true
		}
	}
	for _, word := range append(wordsOfStates(t), wordsOfColumns(t)...) {
		if !explained[word] && !strings.Contains(page, "`"+word+"`") {
			t.Errorf("docs/words.md does not explain %s", word)
		}
	}
}

// TestCausesHaveWords holds that doctor's page and the dashboard explain each cause.
func TestCausesHaveWords(t *testing.T) {
	page, dashboard := readSource(t, "../../docs/doctor.md"), readSource(t, "../../internal/watch/web/static/causewords.js")
	for _, cause := range doctor.Causes() {
		if !strings.Contains(page, "\n| `"+string(cause)+"` |") {
			t.Errorf("docs/doctor.md does not explain the cause %s", cause)
		}
		if !strings.Contains(dashboard, "'"+string(cause)+"': [") {
			t.Errorf("the dashboard has no words for the cause %s", cause)
		}
	}
}

// TestWordsPageNamesMetrics holds that the metrics of docs/words.md are those of docs/metrics.md, which
// another test holds against the program.
func TestWordsPageNamesMetrics(t *testing.T) {
	metrics := readSource(t, "../../docs/metrics.md")
	for _, name := range regexp.MustCompile("`(longhaul|process)_[a-z_]+`").FindAllString(readSource(t, "../../docs/words.md"), -1) {
		if !strings.Contains(metrics, name) {
			t.Errorf("docs/words.md names the metric %s, which docs/metrics.md lacks", name)
		}
	}
}

func readSource(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// wordsOfStates are the states of tunnels, flows, hops, sessions, paths and checks.
func wordsOfStates(t *testing.T) []string {
	var words []string
	for _, from := range []struct {
		file, begin, end, pattern string
		atLeast                   int
	}{
		{"carry/relay/snapshot.go", "t.State = \"listening\"", "tunnelSnapshot(", `State = "([a-z-]+)"`, 6},
		{"carry/relay/snapshot.go", "func (f *flow) state()", "\n}\n", `return "([a-z-]+)"`, 7},
		{"carry/flow/tunnel.go", "HopState = ", "\n)\n", `= "([a-z-]+)"`, 4},
		{"carry/flow/pair.go", "PairUnpaired ", "\n)\n", `= "([a-z-]+)"`, 10},
		{"carry/flow/pair.go", "func (s *Session) State()", "\n}\n", `return "([a-z-]+)"`, 4},
		{"carry/flow/carrier.go", "StateDialing ", "\n)\n", `= "([a-z-]+)"`, 5},
		{"carry/flow/pair.go", "func (p *Path) State()", "\n}\n", `return "([a-z-]+)"`, 4},
		{"carry/integrity/report.go", "Whole ", "\n)\n", `= "([a-z-]+)"`, 4},
	} {
		_, text, found := strings.Cut(readSource(t, "../../internal/"+from.file), from.begin)
		text, _, ended := strings.Cut(from.begin+text, from.end)
		all := regexp.MustCompile(from.pattern).FindAllStringSubmatch(text, -1)
		if !found || !ended || len(all) < from.atLeast {
			t.Errorf("%s has %d states behind %q, want at least %d", from.file, len(all), from.begin, from.atLeast)
		}
		for _, m := range all {
			words = append(words, m[1])
		}
	}
	for full, short := range flowStates {
		words = append(words, full, short)
	}
	return append(words, string(flow.NearEnd), string(flow.FarEnd))
}

// wordsOfColumns are the words of the lines in capitals that the commands print.
func wordsOfColumns(t *testing.T) (words []string) {
	t.Helper()
	var out bytes.Buffer
	out.WriteString(readSource(t, "testdata/status-busy.golden"))
	report := integrity.NewReport("t", time.Now(), []integrity.Chain{{State: integrity.Whole, Hops: []integrity.Hop{{Kind: integrity.KindTarget}}}})
	list := identity.List{Peers: []identity.ListedPeer{{Name: "site-b", Keys: make([]identity.PublicKey, 1)}}}
	for _, err := range []error{report.WriteText(&out), list.WriteText(&out, time.Now()),
		hostchanges.WriteList(&out, make([]hostchanges.Change, 1), time.Now())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	heads := regexp.MustCompile(`(?m)^ *[A-Z/]+( +[A-Z/]+)+ *$`).FindAllString(out.String(), -1)
	if len(heads) != 5 {
		t.Errorf("%d lines of columns, want 5: %q", len(heads), heads)
	}
	for _, head := range heads {
		words = append(words, strings.Fields(head)...)
	}
	return words
}
