// Package cc brings longhaul's congestion control algorithms to a stock kernel
// as BPF programs: no kernel module, no reboot, and any TCP program can use
// them. The kernel has one table of algorithms for the whole machine, so what
// is loaded here is there in every network namespace.
//
// A loaded algorithm outlives the process that loaded it. It is held by pins
// on the BPF filesystem, all of them in one directory:
//
//	/sys/fs/bpf/longhaul/cc/haul/     nothing is loaded without this directory
//	    build       which object was loaded, and when
//	    ...         maps that are shared with user space, links of further programs
//	    link        made last and removed first: the registration itself
//
// So a crash at any point leaves either a registered algorithm with its pins,
// or a directory without a registration, which [Host.List] shows as incomplete
// and which the next load or unload clears. Every change is made under a lock
// that the kernel releases with its holder.
package cc

//go:generate ../../bpf/build

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"longhaul/internal/bpffs"
	"longhaul/internal/kernel"
)

// Where things are on a usual host.
const (
	DefaultBPFFS = bpffs.DefaultRoot
	DefaultUndo  = "/run/longhaul-undo"
)

// Host is the machine whose kernel gets the algorithms. Its methods may be
// called from several processes at once.
type Host struct {
	BPFFS   string // where the BPF filesystem is, or is to be mounted
	Undo    string // the directory that remembers the settings to go back to
	Objects fs.FS  // compiled algorithms, NAME_bpfel.o and NAME_bpfeb.o

	// unregisterPatience bounds the wait for the kernel to notice that a pin is
	// gone, which it does after a grace period. abandonedPatience is the same for
	// what has no pin, and is most likely somebody else's.
	unregisterPatience, abandonedPatience time.Duration
}

// NewHost is this machine, with the algorithms that are built into the program.
func NewHost() *Host {
	return &Host{
		BPFFS: DefaultBPFFS, Undo: DefaultUndo, Objects: builtIn(),
		unregisterPatience: 5 * time.Second, abandonedPatience: 2 * time.Second,
	}
}

// Errors that callers tell apart. Each comes wrapped in a sentence.
var (
	// ErrTaken: an algorithm of this name is registered, and not by longhaul.
	ErrTaken = errors.New("the kernel has an algorithm of this name already")
	// ErrUnknown: there is no such algorithm.
	ErrUnknown = errors.New("no such congestion control")
)

// maxName is how long a name may be: the kernel's TCP_CA_NAME_MAX less the
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
		return nil, fmt.Errorf("read the sysctl net.ipv4.%s: %w", sysctl, err)
	}
	return strings.Fields(string(b)), nil
}

// Available are the algorithms that the kernel has registered, whoever
// registered them.
func Available() ([]string, error) { return readNames("tcp_available_congestion_control") }

// IsAvailable says whether the kernel has an algorithm of this name, loaded or
// built in.
func IsAvailable(name string) bool {
	available, err := Available()
	return err == nil && slices.Contains(available, name)
}

// MayUse says whether a program of this user may choose an algorithm.
func MayUse(name string) bool {
	if os.Geteuid() == 0 {
		return IsAvailable(name)
	}
	allowed, err := Allowed()
	return err == nil && slices.Contains(allowed, name)
}

// registered says whether the kernel has an algorithm of this name.
func registered(name string) (bool, error) {
	names, err := Available()
	return slices.Contains(names, name), err
}

// unsupported is what an algorithm needs and this kernel or process lacks.
func unsupported(name, needs string) error {
	return &kernel.ErrUnsupported{Feature: "loading congestion control " + name, Needs: needs}
}
