package peers

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Usage is what a relay uses, its children included.
type Usage struct {
	CPU         time.Duration // user and system time since its start, to 10 ms; children that have ended count
	Memory      int64         // bytes resident; what processes share counts once (proportional set size)
	Descriptors int
	Processes   int
}

// clockTick is the unit of times in /proc (USER_HZ, the same on every
// architecture that we build for).
const clockTick = 10 * time.Millisecond

// CPU returns the processor time that the relay has used since its start, its
// children's too.
func (p *Process) CPU() (time.Duration, error) {
	var sum time.Duration
	err := p.each(func(_ procfs.Proc, stat procfs.ProcStat) error {
		sum += time.Duration(int(stat.UTime+stat.STime)+stat.CUTime+stat.CSTime) * clockTick
		return nil
	})
	return sum, err
}

// Usage returns what the relay uses now. It takes a while where there are
// many processes or much memory.
func (p *Process) Usage() (Usage, error) {
	cpu, err := p.CPU()
	u := Usage{CPU: cpu}
	if err != nil {
		return u, err
	}
	err = p.each(func(member procfs.Proc, _ procfs.ProcStat) error {
		open, err := member.FileDescriptorsLen()
		if err != nil {
			return err
		}
		memory, err := member.ProcSMapsRollup()
		if err != nil {
			return err
		}
		u.Processes++
		u.Descriptors += open
		u.Memory += int64(memory.Pss)
		return nil
	})
	return u, err
}

// each calls do for every process of the relay's group.
func (p *Process) each(do func(procfs.Proc, procfs.ProcStat) error) error {
	all, err := procfs.AllProcs()
	if err != nil {
		return err
	}
	found := false
	for _, member := range all {
		stat, err := member.Stat()
		if err != nil || stat.PGRP != p.cmd.Process.Pid { // an error: it has ended
			continue
		}
		found = true
		if err := do(member, stat); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	if !found {
		return fmt.Errorf("the relay has ended: %v", p)
	}
	return nil
}
