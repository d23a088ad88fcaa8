package kernel_test

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/test/nettest"
)

// inNewNamespace runs f on a thread of a new network namespace, which ends with it.
func inNewNamespace(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// TestNamespacesAreTold makes namespaces one after another, whose inodes the kernel
// reuses. The numbers differ, with the cookie and without.
func TestNamespacesAreTold(t *testing.T) {
	nettest.RequireSandbox(t)
	for _, by := range []struct {
		name string
		id   func() (uint64, error)
	}{{"whatever this kernel has", kernel.NetNSID}, {"the loopback device", kernel.LoopbackID}} {
		t.Run(by.name, func(t *testing.T) {
			seen := map[uint64]bool{}
			remember := func() error {
				id, err := by.id()
				again, againErr := by.id()
				if err := errors.Join(err, againErr); err != nil {
					return err
				}
				if id != again || id == 0 || seen[id] {
					t.Errorf("a namespace is %d, then %d; before it were %v", id, again, seen)
				}
				seen[id] = true
				return nil
			}
			nettest.Must(t, remember())
			for range 20 {
				nettest.Must(t, inNewNamespace(remember))
			}
		})
	}
}
