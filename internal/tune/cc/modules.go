package cc

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"longhaul/internal/sys/kernel"
)

// kernelAlgorithms are those of Linux, in net/ipv4. A kernel may be built without
// some, or load them as modules.
var kernelAlgorithms = []string{"bbr", "bic", "cdg", "cubic", "dctcp", "highspeed", "htcp", "hybla", "illinois",
	"lp", "nv", "reno", "scalable", "vegas", "veno", "westwood", "yeah"}

// Known lists the names of congestion controls that can be meant on this host: those
// that the kernel has, those of Linux, those of this host's kernel modules, and
// longhaul's first and second names. Some of them may fail to load.
func (h *Host) Known() []string {
	available, _ := Available() // without TCP no name is refused by this list alone
	own, _ := h.AllNames()
	all := slices.Concat(available, own, kernelAlgorithms, moduleNames("/lib/modules"))
	slices.Sort(all)
	return slices.Compact(all)
}

var moduleFile = regexp.MustCompile(`(?m)/tcp_([a-z0-9_]+)\.ko`)

// moduleNames lists the names of the modules tcp_NAME of the running kernel.
func moduleNames(modules string) (names []string) {
	dir := filepath.Join(modules, kernel.Release())
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		text, err := os.ReadFile(filepath.Join(dir, list))
		if err != nil {
			continue
		}
		for _, match := range moduleFile.FindAllSubmatch(text, -1) {
			if name := string(match[1]); name != "diag" { // no algorithm
				names = append(names, name)
			}
		}
	}
	return names
}
