// Package kernel reports which features this kernel offers to this process, and
// the condition that a missing one needs. It tries features or reads the
// kernel's own description; it never compares version numbers.
package kernel

// ErrUnsupported reports that this kernel, or this process's privilege, does
// not allow a feature.
type ErrUnsupported struct {
	Feature string // "loading congestion control haul"
	Needs   string // the missing condition, for an operator
}

func (e *ErrUnsupported) Error() string { return e.Feature + " needs " + e.Needs }
