// Package kernel tells what this kernel can do for this process, and what it
// would take where it cannot. It tries things out or reads what the kernel
// says about itself; it never compares version numbers.
package kernel

// ErrUnsupported says that this kernel, or this process's privilege, does not
// allow a feature.
type ErrUnsupported struct {
	Feature string // "loading congestion control haul"
	Needs   string // what it takes, as it is to be said to an operator
}

func (e *ErrUnsupported) Error() string { return e.Feature + " needs " + e.Needs }
