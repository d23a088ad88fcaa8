package cc

import (
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"longhaul/internal/sys/kernel"
)

var moduleFile = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)/tcp_([a-z0-9_]+)\.ko`)
})

// moduleNames lists the names of the modules tcp_NAME of the running kernel.
func moduleNames(modules string) (names []string) {
	dir := filepath.Join(modules, kernel.Release())
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		text, err := os.ReadFile(filepath.Join(dir, list))
		if err != nil {
			continue
		}
		for _, match := range moduleFile().FindAllSubmatch(text, -1) {
			if name := string(match[1]); name != "diag" { // no algorithm
				names = append(names, name)
			}
		}
	}
	return names
}
