package main

import (
	"time"

	"github.com/prometheus/procfs"

	"longhaul/internal/sys/process"
)

// cpuTime is the CPU time of processes since their start.
func cpuTime(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		t, err := process.CPUTime(pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// usage is what a process holds.
type usage struct {
	descriptors int
	memoryBytes int64 // resident and of no file: heap, stacks
}

func usageOf(pid int) (u usage, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return u, err
	}
	if u.descriptors, err = p.FileDescriptorsLen(); err != nil {
		return u, err
	}
	status, err := p.NewStatus()
	u.memoryBytes = int64(status.RssAnon)
	return u, err
}
