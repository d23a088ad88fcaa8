package kernel

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
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
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// "pid (name) state parent ...", where the name may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	return strconv.Atoi(string(fields[1]))
}
