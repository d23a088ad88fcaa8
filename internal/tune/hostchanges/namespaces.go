package hostchanges

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
)

// namespace is a network namespace of this host.
type namespace struct {
	id   uint64   // ledger.Key.NetNS
	name string   // of ip netns, or else of a process in it
	file *os.File // keeps it
}

// namespaces finds network namespaces by their numbers. complete reports whether a
// missing one is deleted: no process, mount or descriptor has it. The caller closes the
// files.
func namespaces(wanted []uint64) (found map[uint64]namespace, complete bool) {
	found, complete = map[uint64]namespace{}, os.Geteuid() == 0 && kernel.InitialUserNamespace()
	seen := map[uint64]bool{}
	var refused []candidate
	look := func(path, name string) {
		var s syscall.Stat_t
		if err := syscall.Stat(path, &s); err != nil {
			if !isGone(err) && !isHidden(path, err) {
				refused = append(refused, candidate{path, name})
			}
			return
		}
		if seen[s.Ino] {
			return
		}
		seen[s.Ino] = true
		file, err := os.Open(path)
		var id uint64
		if err == nil {
			err = inNamespace(file, func() (err error) { id, err = kernel.NetNSID(); return err })
		}
		if err != nil {
			file.Close()
			if !isGone(err) {
				refused = append(refused, candidate{path, name})
			}
			delete(seen, s.Ino)
			return
		}
		if _, again := found[id]; again || !slices.Contains(wanted, id) {
			file.Close()
			return
		}
		found[id] = namespace{id, name, file}
	}
	haveAll := func() bool {
		return !slices.ContainsFunc(wanted, func(id uint64) bool { _, ok := found[id]; return !ok })
	}
	named, _ := filepath.Glob("/run/netns/*")
	for _, path := range named {
		look(path, filepath.Base(path))
	}
	if haveAll() {
		return found, complete && len(refused) == 0
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("nsfs"))
	complete = complete && err == nil
	for _, m := range mounts {
		if strings.HasPrefix(m.Root, "net:") {
			look(m.Mountpoint, m.Mountpoint)
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	complete = complete && err == nil
	for _, dir := range processes {
		threads, _ := filepath.Glob(dir + "/task/*/ns/net")
		for _, path := range threads {
			look(path, "of process "+filepath.Base(dir))
		}
	}
	for _, dir := range processes {
		if haveAll() {
			break
		}
		descriptors, _ := filepath.Glob(dir + "/fd/*")
		for _, path := range descriptors {
			if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, "net:[") {
				look(path, "of process "+filepath.Base(dir))
			}
		}
	}
	// A process that begins or ends refuses to be looked at for a moment.
	again := refused
	refused = nil
	for _, c := range again {
		look(c.path, c.name)
	}
	return found, complete && len(refused) == 0
}

// candidate is a path of a network namespace, and what it is shown as.
type candidate struct{ path, name string }

// isGone reports whether a process ended while it was looked at.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// isHidden reports whether a path belongs to process 1 of a container that hides it. The
// other processes there began in its network namespace, as did this one.
func isHidden(path string, err error) bool {
	return errors.Is(err, fs.ErrPermission) && strings.HasPrefix(path, "/proc/1/")
}

// inNamespace runs f on a thread in a network namespace. The thread ends with f.
func inNamespace(file *os.File, f func() error) error {
	done := make(chan error)
	go onOwnThread(func() {
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	})
	return <-done
}

// onOwnThread runs f on a thread that ends with the goroutine. The process's first thread
// never ends, and would keep the namespace of f: then f runs on another thread.
func onOwnThread(f func()) {
	runtime.LockOSThread() // never unlocked, so that the thread ends
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}
