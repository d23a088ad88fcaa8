// Package hostcheck finds out which parts of longhaul work on this host, what the others
// lack, and what each lack costs in goodput on a path. It tries the kernel out, and
// compares no version numbers.
//
// A try-out changes nothing: programs go through the verifier and are not registered,
// devices and routes belong to a network namespace that ends with the try-out. No module
// is loaded: where the kernel would load one by itself, the check reads only whether the
// module is there.
package hostcheck

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/remedy"
)

// State says whether a part works.
type State string

// The states.
const (
	Yes     State = "yes"
	Limited State = "limited" // it works with less
	No      State = "no"
	Unknown State = "unknown" // this user cannot try it out
)

// Part is a part of a feature, on this host.
type Part struct {
	Feature string `json:"feature"`
	Name    string `json:"part"`
	State   State  `json:"state"`
	Detail  string `json:"detail,omitempty"` // of a part that works
	Why     string `json:"why,omitempty"`    // what the part lacks, a clause
	Remedy  string `json:"remedy,omitempty"`
	Cost    *Cost  `json:"cost,omitempty"` // of the lack, if it is about goodput

	kernels bool // one of the kernel's own congestion controls
}

// Report is the outcome of a check.
type Report struct {
	Kernel string `json:"kernel"` // its release
	Path   Path   `json:"path"`
	Parts  []Part `json:"parts"`
}

// Find returns a part, and false if the report does not have it.
func (r Report) Find(feature, name string) (Part, bool) {
	i := slices.IndexFunc(r.Parts, func(p Part) bool { return p.Feature == feature && p.Name == name })
	if i < 0 {
		return Part{}, false
	}
	return r.Parts[i], true
}

// Count counts the parts in a state.
func (r Report) Count(s State) (n int) {
	for _, p := range r.Parts {
		if p.State == s {
			n++
		}
	}
	return n
}

// Options are what to check, and how.
type Options struct {
	Path     Path
	Features []string // of [Features]; empty: all
	// Algorithms are further congestion controls to look for, beside longhaul's and
	// bbr.
	Algorithms []string
	// CC is the machine's congestion controls.
	CC *cc.Host
	// Sandbox makes the lab's namespaces for a moment.
	Sandbox func() error

	// root is the directory below which files of the kernel are read; empty: /.
	root string
}

// features are the checks, in the order of the table.
var features = []struct {
	name  string
	check func(*checker)
}{
	{"relay", (*checker).relay},
	{"cc", (*checker).cc},
	{"mss", (*checker).mss},
	{"route", (*checker).route},
	{"doctor", (*checker).doctor},
	{"measure", (*checker).measure},
	{"lab", (*checker).lab},
	{"service", (*checker).service},
	{"sysctl", (*checker).sysctl},
}

// Features lists the names of the features.
func Features() (names []string) {
	for _, f := range features {
		names = append(names, f.name)
	}
	return names
}

// checker collects the parts.
type checker struct {
	Options
	feature string
	parts   []Part
}

// Check tries the features out, in the calling thread's network namespace.
func Check(o Options) (Report, error) {
	for _, name := range o.Features {
		if !slices.Contains(Features(), name) {
			return Report{}, fmt.Errorf("unknown feature %q", name)
		}
	}
	c := &checker{Options: o}
	for _, f := range features {
		if len(o.Features) == 0 || slices.Contains(o.Features, f.name) {
			c.feature = f.name
			f.check(c)
		}
	}
	c.addCosts()
	return Report{Kernel: kernel.Release(), Path: o.Path, Parts: c.parts}, nil
}

func (c *checker) add(p Part) {
	p.Feature = c.feature
	c.parts = append(c.parts, p)
}

// yes adds a part that works.
func (c *checker) yes(name, detail string) { c.add(Part{Name: name, State: Yes, Detail: detail}) }

// failed adds a part whose try-out failed, in the state that the part then has. The error's
// own remedy counts first, then fix; without both, a newer kernel is the one against what
// the kernel lacks.
func (c *checker) failed(name string, state State, err error, fix string) {
	p := Part{Name: name, State: state, Why: err.Error(), Remedy: cmp.Or(remedy.Of(err), fix)}
	if lack := (*kernel.ErrUnsupported)(nil); errors.As(err, &lack) {
		p.Why = "needs " + lack.Needs
		p.Remedy = cmp.Or(p.Remedy, c.kernelRemedy())
	}
	c.add(p)
}

// noBPF adds a part that this process or the settings of the host keep from loading BPF
// programs. It returns false if nothing does.
func (c *checker) noBPF(name string, capabilities ...kernel.Capability) bool {
	if c.unprivileged(name, capabilities...) {
		return true
	}
	err := kernel.CheckBPF(name, capabilities...)
	if err == nil {
		return false
	}
	why, remedy, _ := strings.Cut(err.Error(), ": ") // "haul needs the BPF compiler, which is off: sysctl ..."
	c.add(Part{Name: name, State: No, Why: strings.TrimPrefix(why, name+" "), Remedy: remedy})
	return true
}

// unprivileged adds an unknown part if this process lacks a capability, or has it in a
// user namespace only. what is how to try the part out.
func (c *checker) unprivileged(name string, capabilities ...kernel.Capability) bool {
	missing, err := kernel.Missing(capabilities...)
	switch {
	case err != nil:
		c.add(Part{Name: name, State: Unknown, Why: err.Error()})
	case len(missing) > 0:
		c.add(Part{Name: name, State: Unknown, Why: "trying it out needs " + kernel.List(missing), Remedy: "run the check as root"})
	case !kernel.InitialUserNamespace():
		c.add(Part{Name: name, State: Unknown, Why: "trying it out needs privilege over the machine, which this user namespace does not give",
			Remedy: "run the check as root, outside of it"})
	default:
		return false
	}
	return true
}

func (c *checker) module(name string) kernel.ModuleState {
	return kernel.Modules{Root: c.root}.State(name)
}
