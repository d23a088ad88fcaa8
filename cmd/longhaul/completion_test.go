//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/pair/identity"
)

func TestCompleteWords(t *testing.T) {
	words := func() []string { return []string{"cubic", "bbr", "brutal"} }
	for _, c := range []struct {
		start  string
		isList bool
		want   []string
	}{
		{"", false, []string{"cubic", "bbr", "brutal"}},
		{"b", false, []string{"bbr", "brutal"}},
		{"bbr,", false, nil},
		{"bbr,", true, []string{"bbr,cubic", "bbr,brutal"}},
		{"cubic,bbr,b", true, []string{"cubic,bbr,brutal"}},
	} {
		got, directive := completeWords(words, c.isList)(nil, nil, c.start)
		if !slices.Equal(got, c.want) || directive != cobra.ShellCompDirectiveNoFileComp {
			t.Errorf("%q is completed to %q, %v; want %q", c.start, got, directive, c.want)
		}
	}
}

func TestNamesIn(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"blue", "red"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := namesIn(dir); !slices.Equal(got, []string{"blue", "red"}) {
		t.Errorf("names %q", got)
	}
	if got := namesIn(filepath.Join(dir, "none")); len(got) != 0 {
		t.Errorf("a missing directory has %q", got)
	}
}

func TestCompletePeers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pair")
	for _, name := range []string{"site-b", "site-c"} {
		key, _, _, err := identity.New(filepath.Join(t.TempDir(), "pair")).Key()
		if err == nil {
			_, err = identity.New(dir).Pin(name, key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"pair remove --dir " + dir + " ":                        "site-b\nsite-c\n:4\n",
		"pair remove --dir " + dir + " site-b ":                 ":4\n",
		"pair remove --dir " + filepath.Join(dir, "none") + " ": ":4\n",
	} {
		words := strings.Split(line, " ")
		_, out, _ := grammarRun(append([]string{"__complete"}, words...)...)
		if out != want {
			t.Errorf("%s is completed to %q, want %q", line, out, want)
		}
	}
}
