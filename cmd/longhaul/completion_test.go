//go:build linux

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"longhaul/internal/carry/pair/identity"
)

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
