package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// TestEveryCommandHelps holds that every command says what it does, with an
// example that names it, and that its help does not fail.
func TestEveryCommandHelps(t *testing.T) {
	var out bytes.Buffer
	e := &env{ctx: context.Background(), stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: func(string) string { return "" }}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Name() == "help" {
			return
		}
		if cmd.Short == "" || !strings.Contains(cmd.Example, "longhaul") {
			t.Errorf("%s has no summary or no example", path)
		}
		out.Reset()
		e.args = append(strings.Fields(path)[1:], "--help")
		if code := run(e); code != exitOK || !strings.Contains(out.String(), "Examples:") {
			t.Errorf("%s --help ends with %d: %s", path, code, out.String())
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s --help has a line of %d columns: %s", path, n, line)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(e))
}
