package doctor

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// A report fits into 78 columns, except for commands, which users copy.
func TestReportText(t *testing.T) {
	records, err := filepath.Glob("testdata/*.json")
	if err != nil || len(records) == 0 {
		t.Fatalf("no records: %v", err)
	}
	for _, path := range records {
		r, err := Diagnose(readRecord(t, path))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		if len(r.Findings) > 0 && !strings.Contains(text, "\nEvidence:\n") || strings.Contains(text, "Remedies, most") != (len(r.Remedies) > 0) {
			t.Errorf("%s:\n%s", path, text)
		}
		for _, remedy := range r.Remedies {
			if remedy.Command != "" && !strings.Contains(text, ":\n       "+remedy.Command+"\n") {
				t.Errorf("%s lacks the command %s", path, remedy.Command)
			}
		}
		for line := range strings.Lines(text) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 78 && !strings.HasPrefix(line, "       ") {
				t.Errorf("%s: %d columns: %s", path, n, line)
			}
		}
	}
}
