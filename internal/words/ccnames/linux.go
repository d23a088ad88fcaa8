package ccnames

import "slices"

// linux are the congestion controls of Linux, in net/ipv4. A kernel may be built without
// some, or load them as modules.
var linux = []string{"bbr", "bic", "cdg", "cubic", "dctcp", "highspeed", "htcp", "hybla", "illinois",
	"lp", "nv", "reno", "scalable", "vegas", "veno", "westwood", "yeah"}

// Linux returns the names of Linux's congestion controls, sorted.
func Linux() []string { return slices.Clone(linux) }

// InLinux reports whether Linux has a congestion control of this name: longhaul's of the same
// name goes by its second name beside it.
func InLinux(name string) bool { return slices.Contains(linux, name) }
