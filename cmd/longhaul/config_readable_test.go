//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/test/nettest"
)

// TestUnreadableIncluded: what root can read and the service cannot is a warning.
func TestUnreadableIncluded(t *testing.T) {
	for name, c := range map[string]struct {
		main, included os.FileMode
		elsewhere      bool
		want           string
	}{
		"all readable":        {0o644, 0o644, false, ""},
		"included one is not": {0o644, 0o600, false, "conf.d/a.yaml (mode 0600)"},
		"neither is":          {0o640, 0o640, false, ""}, // the service has another way to the files
		"elsewhere":           {0o644, 0o600, true, ""},
	} {
		dir := t.TempDir()
		main, included := filepath.Join(dir, "longhaul.yaml"), filepath.Join(dir, "conf.d", "a.yaml")
		nettest.Must(t, os.Mkdir(filepath.Dir(included), 0o755))
		for path, mode := range map[string]os.FileMode{main: c.main, included: c.included} {
			nettest.Must(t, os.WriteFile(path, nil, 0o600))
			nettest.Must(t, os.Chmod(path, mode))
		}
		folder := dir
		if c.elsewhere {
			folder = t.TempDir()
		}
		got := unreadableWarnings(folder, []string{main, included})
		if len(got) > 1 || (len(got) == 1) != (c.want != "") || len(got) == 1 && !strings.Contains(got[0].Error(), c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
