package ccnames

import "strings"

// secondPrefix begins the second names of longhaul's congestion controls.
const secondPrefix = "lh_"

// Second returns the second name of one of longhaul's congestion controls: lh_hybla
// is longhaul's hybla, also where the kernel has another one of that name.
func Second(algorithm string) string { return secondPrefix + algorithm }

// First returns the algorithm that a congestion control's name means: the first
// name for a second one, and every other name itself.
func First(name string) string { return strings.TrimPrefix(name, secondPrefix) }
