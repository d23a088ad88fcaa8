package kernel

import (
	"fmt"
	"os"

	"github.com/prometheus/procfs"
)

// PrivateMounts reports whether mounts of this process may end before the
// machine does. Then its mount namespace differs from that of its oldest
// visible ancestor, usually process 1. That is so under "ip netns exec", and in
// a service with a private file system view. A process 1 is a container's: its
// mounts end with it.
func PrivateMounts() bool {
	if os.Getpid() == 1 {
		return true
	}
	own, err := mountNS(os.Getpid())
	if err != nil {
		return false
	}
	oldest := own
	for pid := os.Getppid(); pid > 0; {
		if ns, err := mountNS(pid); err == nil {
			oldest = ns
		}
		if pid, err = parent(pid); err != nil {
			break
		}
	}
	return oldest != own
}

func mountNS(pid int) (string, error) { return os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)) }

// parent is the parent of a process; 0 if it has none.
func parent(pid int) (int, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.PPID, err
}
