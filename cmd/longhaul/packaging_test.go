package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestUnitStartsTheRelay runs the unit's command line as far as reading the
// configuration, whose path is one that does not exist.
func TestUnitStartsTheRelay(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/longhaul.service")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/longhaul (.*)$`).FindSubmatch(unit)
	if match == nil {
		t.Fatal("the unit does not start /usr/bin/longhaul")
	}
	absent := filepath.Join(t.TempDir(), "absent.yaml")
	args := strings.Fields(strings.Replace(string(match[1]), "/etc/longhaul/longhaul.yaml", absent, 1))
	var out bytes.Buffer
	code := run(&env{ctx: t.Context(), args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: os.Getenv})
	if want := "longhaul: " + absent + ": cannot be read: no such file or directory\n"; code != exitUsage || !strings.HasPrefix(out.String(), want) {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}

// TestExamplesLoad checks every configuration of packaging/examples.
func TestExamplesLoad(t *testing.T) {
	files, err := filepath.Glob("../../packaging/examples/*/longhaul*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		var out bytes.Buffer
		if code := run(&env{ctx: t.Context(), args: []string{"config", "check", file}, stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: os.Getenv}); code != exitOK {
			t.Errorf("%s: exit code %d: %s", file, code, out.String())
		}
	}
}
