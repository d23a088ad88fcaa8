package kernel

import (
	"fmt"
	"os"

	"github.com/prometheus/procfs"
)

// PrivateMounts says whether what this process mounts may be gone before the
// machine ends: whether its mount namespace is another than that of its oldest
// ancestor, which is process 1 if that can be looked at. So it is under
// "ip netns exec" and in a service with a file system view of its own.
func PrivateMounts() bool {
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

// parent is the process that a process is a child of, 0 if there is none.
func parent(pid int) (int, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.PPID, err
}
