// Package cc loads longhaul's congestion control algorithms into a stock kernel as BPF
// programs: without a kernel module or reboot, for any TCP program. The kernel has one
// table of algorithms for the whole machine, so a loaded algorithm is in every network
// namespace.
//
// A loaded algorithm outlives the process that loaded it. Pins on the BPF filesystem
// hold it, all in one directory:
//
//	/sys/fs/bpf/longhaul/cc/haul/     exists for every loaded algorithm
//	    build       the loaded object, and the time
//	    ...         maps shared with user space, links of further programs
//	    link        made last and removed first: the registration itself
//	    ops         in place of link before Linux 6.4: see [Host.registerOps]
//
// So a crash at any point leaves either a registered algorithm with its pins, or a
// directory without a registration. [Host.List] shows the latter as incomplete, and
// the next load or unload clears it. Every change holds a lock that the kernel
// releases with its holder. The owners of algorithms are in the [ledger].
package cc

//go:generate ../../../bpf/build

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"longhaul/internal/sys/bpffs"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/ccnames"
	"longhaul/internal/words/remedy"
)

// DefaultBPFFS is the usual mount point.
const DefaultBPFFS = bpffs.DefaultRoot

// Host is the machine whose kernel gets the algorithms. Its methods may be
// called from several processes at once.
type Host struct {
	BPFFS   string // mount point of the BPF filesystem
	Ledger  string // directory of the ledger
	By      ledger.By
	DryRun  bool  // only say what would change
	Objects fs.FS // compiled algorithms, NAME_bpfel.o and NAME_bpfeb.o

	// unregisterPatience bounds the wait for the kernel's unregistration after the
	// removal of a pin, which takes a grace period. abandonedPatience bounds the
	// wait for an algorithm without a pin, most likely of another owner.
	unregisterPatience, abandonedPatience time.Duration

	// For tests: unlinked registers without links where the kernel has them, and
	// betweenOps runs while a replacement has nothing registered.
	unlinked   bool
	betweenOps func()
}

// NewHost returns this machine, with the algorithms built into the program. by claims
// what is changed.
func NewHost(by ledger.By) *Host {
	return &Host{
		BPFFS: DefaultBPFFS, Ledger: ledger.DefaultDir, By: by, Objects: builtIn(),
		unregisterPatience: 5 * time.Second, abandonedPatience: 2 * time.Second,
	}
}

// Errors that callers distinguish. Each comes wrapped.
var (
	// ErrTaken: another owner has registered an algorithm of this name.
	ErrTaken = errors.New("the kernel has an algorithm of this name already")
	// ErrUnknown: no algorithm has this name.
	ErrUnknown = errors.New("no such congestion control")
)

// TakenError is [ErrTaken] for a load.
type TakenError struct {
	Name   string
	Second string // a name under which the algorithm can be loaded; may be empty
	by     string
}

func (e *TakenError) Error() string { return fmt.Sprintf("%s: %v: %s", e.Name, ErrTaken, e.by) }
func (e *TakenError) Unwrap() error { return ErrTaken }

// taken returns the error for loading an algorithm under a taken name.
func taken(algorithm, name, by string) error {
	e := &TakenError{Name: name, by: by}
	if second := ccnames.Second(algorithm); name == algorithm && !IsAvailable(second) {
		e.Second = second
	}
	return e
}

// UnknownError is [ErrUnknown] with the name.
type UnknownError struct {
	Name string
	own  []string // those of longhaul, if one of them is needed
}

func (e *UnknownError) Error() string {
	if len(e.own) == 0 {
		return fmt.Sprintf("%s: %v", e.Name, ErrUnknown)
	}
	return fmt.Sprintf("%s: %v among %s", e.Name, ErrUnknown, strings.Join(e.own, ", "))
}
func (e *UnknownError) Unwrap() error { return ErrUnknown }

// maxName is the maximum length of a name: the kernel's TCP_CA_NAME_MAX less the
// terminating zero.
const maxName = 15

// checkName refuses names that the kernel, or the BPF filesystem, would refuse.
func checkName(name string) error {
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_')
	}
	switch {
	case name == "":
		return errors.New("a congestion control needs a name")
	case len(name) > maxName:
		return fmt.Errorf("%s is too long for a congestion control: use at most %d characters", name, maxName)
	case strings.ContainsFunc(name, bad):
		return fmt.Errorf("invalid congestion control name %q: use letters, digits and _", name)
	}
	return nil
}

const sysctls = "/proc/sys/net/ipv4/"

func readNames(sysctl string) ([]string, error) {
	b, err := os.ReadFile(sysctls + sysctl)
	if err != nil {
		return nil, remedy.Proc(fmt.Errorf("read the sysctl net.ipv4.%s: %w", sysctl, err))
	}
	return strings.Fields(string(b)), nil
}

// Available returns the algorithms registered in the kernel, by any owner.
func Available() ([]string, error) { return readNames("tcp_available_congestion_control") }

// IsAvailable reports whether the kernel has an algorithm of this name, loaded or built
// in.
func IsAvailable(name string) bool {
	available, err := Available()
	return err == nil && slices.Contains(available, name)
}

// MayUse reports whether a program of this user may choose an algorithm.
func MayUse(name string) bool {
	if os.Geteuid() == 0 {
		return IsAvailable(name)
	}
	allowed, err := Allowed()
	return err == nil && slices.Contains(allowed, name)
}

// registered reports whether the kernel has an algorithm of this name.
func registered(name string) (bool, error) {
	names, err := Available()
	return slices.Contains(names, name), err
}

// loading names the feature in errors, with an algorithm behind it.
const loading = "loading congestion control "

// unsupported returns the error for a feature that this kernel or process lacks.
func unsupported(name, needs string) error {
	return &kernel.ErrUnsupported{Feature: loading + name, Needs: needs}
}
