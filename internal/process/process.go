// Package process tells which process has a socket, which sockets a process
// has, and how long its threads have been running, out of /proc (proc(5)).
//
// An ordinary user may look at the sockets of their own processes only.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of a process that cannot be looked at.
var (
	ErrNoProcess = errors.New("there is no such process")
	ErrForbidden = errors.New("the process belongs to another user")
)

const proc = "/proc"

// Process is one that runs.
type Process struct {
	PID     int
	Command string // the first 15 bytes of its name
}

// Command is the name of a process.
func Command(pid int) (string, error) {
	name, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return "", explain(pid, err)
	}
	return string(bytes.TrimSuffix(name, []byte("\n"))), nil
}

// Sockets are the inodes of the sockets that a process has open.
func Sockets(pid int) (map[uint32]bool, error) {
	inodes := map[uint32]bool{}
	err := eachSocket(pid, make([]byte, linkLen), func(inode uint32) { inodes[inode] = true })
	if err != nil {
		return nil, explain(pid, err)
	}
	return inodes, nil
}

// Threads tells for each thread of a process how long it has been running or
// waiting for a CPU, since it was started.
func Threads(pid int) (map[int]time.Duration, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid), "task")
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil, explain(pid, err)
	}
	times := make(map[int]time.Duration, len(tasks))
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, task.Name(), "schedstat"))
		switch {
		case err == nil:
			if times[tid], err = parseSchedstat(text); err != nil {
				return nil, fmt.Errorf("process %d: %w", pid, err)
			}
		case !isGone(err):
			return nil, explain(pid, err)
		}
	}
	if len(times) == 0 {
		return nil, explain(pid, whyNoTimes(pid))
	}
	return times, nil
}

// whyNoTimes tells a kernel without schedstat from a process that has ended.
func whyNoTimes(pid int) error {
	if _, err := os.Stat(filepath.Join(proc, strconv.Itoa(pid))); err != nil {
		return err
	}
	return errors.New("the kernel keeps no times of threads (CONFIG_SCHED_INFO)")
}

// Busiest is the most time that a thread was running or waiting for a CPU
// between two calls of Threads. One that is new counts from its start.
func Busiest(before, after map[int]time.Duration) time.Duration {
	var most time.Duration
	for tid, t := range after {
		most = max(most, t-before[tid])
	}
	return most
}

// parseSchedstat adds the time on a CPU and the time in a run queue, the first
// two of three figures, in nanoseconds.
func parseSchedstat(text []byte) (time.Duration, error) {
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, fmt.Errorf("cannot read schedstat %q", text)
	}
	running, err1 := strconv.ParseUint(string(fields[0]), 10, 63)
	waiting, err2 := strconv.ParseUint(string(fields[1]), 10, 63)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("cannot read schedstat %q", text)
	}
	return time.Duration(running) + time.Duration(waiting), nil
}

// isGone says whether an error means that the process or thread has ended.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// explain puts the reason of an error of /proc before its text.
func explain(pid int, err error) error {
	switch {
	case isGone(err):
		err = ErrNoProcess
	case errors.Is(err, fs.ErrPermission):
		err = ErrForbidden
	}
	return fmt.Errorf("process %d: %w", pid, err)
}

// A link of /proc/PID/fd reads like socket:[4026]. Longer ones are of files,
// and cut short.
const linkLen = 32

// eachSocket calls visit for the sockets that a process has open.
func eachSocket(pid int, link []byte, visit func(inode uint32)) error {
	dir, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "fd"))
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	fd := int(dir.Fd())
	for _, name := range names {
		n, err := unix.Readlinkat(fd, name, link)
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := parseSocketLink(link[:n]); ok {
			visit(inode)
		}
	}
	return nil
}

// parseSocketLink reads the inode out of socket:[4026].
func parseSocketLink(link []byte) (uint32, bool) {
	digits, isSocket := bytes.CutPrefix(link, []byte("socket:["))
	digits, whole := bytes.CutSuffix(digits, []byte("]"))
	if !isSocket || !whole {
		return 0, false
	}
	inode, err := strconv.ParseUint(string(digits), 10, 32)
	return uint32(inode), err == nil
}
