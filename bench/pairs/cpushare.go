package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuPeriod is that in which a bounded process gets its share, in µs: the kernel's default.
const cpuPeriod = 100_000

// cpuShares are control groups that bound the CPU of processes, of either version of the
// kernel's interface.
type cpuShares struct {
	dir     string
	unified bool
	made    []string
}

// mountCPUShares mounts the control groups of CPU below a directory, which disappears with the
// sandbox.
func mountCPUShares(dir string) (*cpuShares, error) {
	c := &cpuShares{dir: filepath.Join(dir, "cpu"), unified: true}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	err := unix.Mount("cgroup2", c.dir, "cgroup2", 0, "")
	if err == nil {
		if c.unified, err = c.bounds(); err == nil && !c.unified { // CPU is with the older interface
			if err = unix.Unmount(c.dir, 0); err == nil {
				err = unix.Mount("cgroup", c.dir, "cgroup", 0, "cpu")
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("no control group bounds the CPU of processes here: %w", err)
	}
	return c, nil
}

// bounds reports whether the unified hierarchy has the CPU controller, and enables it.
func (c *cpuShares) bounds() (bool, error) {
	b, err := os.ReadFile(filepath.Join(c.dir, "cgroup.controllers"))
	if err != nil || !slices.Contains(strings.Fields(string(b)), "cpu") {
		return false, err
	}
	return true, os.WriteFile(filepath.Join(c.dir, "cgroup.subtree_control"), []byte("+cpu"), 0o600)
}

// put moves a process into a group of its own. cores is its share; 0: unbounded.
func (c *cpuShares) put(pid int, name string, cores float64) error {
	group := filepath.Join(c.dir, fmt.Sprintf("longhaul-%s-%d", name, pid))
	if err := os.Mkdir(group, 0o700); err != nil {
		return err
	}
	c.made = append(c.made, group)
	if cores > 0 {
		quota := strconv.Itoa(int(cores * cpuPeriod))
		file, text := "cpu.cfs_quota_us", quota
		if c.unified {
			file, text = "cpu.max", quota+" "+strconv.Itoa(cpuPeriod)
		}
		if err := os.WriteFile(filepath.Join(group, file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
}

// remove removes the groups, whose processes have ended.
func (c *cpuShares) remove() error {
	var failed error
	for _, group := range c.made {
		if err := os.Remove(group); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return errors.Join(failed, unix.Unmount(c.dir, unix.MNT_DETACH))
}
