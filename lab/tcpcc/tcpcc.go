// Package tcpcc chooses the TCP congestion controls that experiments run.
package tcpcc

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"longhaul/internal/tune/cc"
	"longhaul/internal/words/ccnames"
)

// usualOrder is the order of the documents: those that keep a window, then those that keep a
// rate, and of each the kernel's before longhaul's. Other algorithms come after.
func usualOrder() []string {
	windows, rates := []string{"cubic", "reno"}, []string{"bbr"}
	for _, name := range ccnames.Own() {
		if ccnames.Paces(name) {
			rates = append(rates, name)
		} else {
			windows = append(windows, name)
		}
	}
	return append(windows, rates...)
}

// Available returns the kernel's congestion controls, in the order of the documents.
func Available() ([]string, error) {
	names, err := cc.Available()
	if err != nil {
		return nil, err
	}
	order := usualOrder()
	place := func(name string) int {
		if i := slices.Index(order, ccnames.First(name)); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(names, func(a, b string) int { return place(a) - place(b) })
	return names, nil
}

// Choose returns the named algorithms, or all of the kernel if none is named. It
// refuses those that a socket cannot use. It asks the kernel for a name that is not
// loaded: with privilege the kernel loads its module.
func Choose(names []string) ([]string, error) {
	if len(names) == 0 {
		return Available()
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("%s is named twice: name each algorithm once", name)
		}
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
			available, listErr := Available()
			if listErr != nil {
				return nil, listErr
			}
			return nil, fmt.Errorf("this kernel has no congestion control %q: it has %s", name, strings.Join(available, ", "))
		}
	}
	return names, nil
}

// IsAvailable reports whether the kernel has a congestion control now.
func IsAvailable(name string) bool {
	names, err := cc.Available()
	return err == nil && slices.Contains(names, name)
}

// Missing returns how to get a congestion control; empty if the kernel has it.
func Missing(name string) string {
	if IsAvailable(name) {
		return ""
	}
	return "needs congestion control " + name + ", which root can load"
}
