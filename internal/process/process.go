// Package process tells which process has a socket, which sockets a process
// has, and how long its threads have been running, out of /proc (proc(5)).
//
// An ordinary user may look at the sockets of their own processes only.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Errors of a process that cannot be looked at.
var (
	ErrNoProcess = errors.New("no such process")
	ErrForbidden = errors.New("the process belongs to another user")
)

// Process is one that runs.
type Process struct {
	PID     int
	Command string // the first 15 bytes of its name
}

// Command is the name of a process.
func Command(pid int) (string, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return "", explain(pid, err)
	}
	name, err := p.Comm()
	if err != nil {
		return "", explain(pid, err)
	}
	return name, nil
}

// Sockets are the inodes of the sockets that a process has open.
func Sockets(pid int) (map[uint32]bool, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return nil, explain(pid, err)
	}
	inodes := map[uint32]bool{}
	if err := eachSocket(p, func(inode uint32) { inodes[inode] = true }); err != nil {
		return nil, explain(pid, err)
	}
	return inodes, nil
}

// Threads tells for each thread of a process how long it has been running or
// waiting for a CPU, since it was started.
func Threads(pid int) (map[int]time.Duration, error) {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return nil, explain(pid, err)
	}
	times := make(map[int]time.Duration, len(threads))
	for _, thread := range threads {
		s, err := thread.Schedstat()
		switch {
		case err == nil:
			times[thread.PID] = time.Duration(s.RunningNanoseconds + s.WaitingNanoseconds)
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
	if _, err := procfs.NewProc(pid); err != nil {
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

// eachSocket calls visit for the sockets that a process has open. Of 1000 it costs
// 4.1 ms, and cost 3.0 ms with readlinkat into a buffer of our own.
func eachSocket(p procfs.Proc, visit func(inode uint32)) error {
	targets, err := p.FileDescriptorTargets()
	for _, target := range targets {
		if inode, ok := parseSocketLink(target); ok {
			visit(inode)
		}
	}
	return err
}

// parseSocketLink reads the inode out of socket:[4026].
func parseSocketLink(link string) (uint32, bool) {
	digits, isSocket := strings.CutPrefix(link, "socket:[")
	digits, whole := strings.CutSuffix(digits, "]")
	if !isSocket || !whole {
		return 0, false
	}
	inode, err := strconv.ParseUint(digits, 10, 32)
	return uint32(inode), err == nil
}
