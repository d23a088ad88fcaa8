package peers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
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
	err := p.each(func(_ string, stat []string) error {
		for _, field := range stat[statUTime : statCSTime+1] {
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return err
			}
			sum += time.Duration(ticks) * clockTick
		}
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
	err = p.each(func(dir string, _ []string) error {
		open, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			return err
		}
		memory, err := proportionalSetSize(filepath.Join(dir, "smaps_rollup"))
		u.Processes++
		u.Descriptors += len(open)
		u.Memory += memory
		return err
	})
	return u, err
}

// Fields of /proc/PID/stat, counted from the state, which follows the name.
const (
	statPGroup = 2
	statUTime  = 11
	statCSTime = 14
)

// each calls do for every process of the relay's group.
func (p *Process) each(do func(dir string, stat []string) error) error {
	group := strconv.Itoa(p.cmd.Process.Pid)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	found := false
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
		stat := strings.Fields(rest)
		if len(stat) <= statCSTime || stat[statPGroup] != group {
			continue
		}
		found = true
		if err := do(dir, stat); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	if !found {
		return fmt.Errorf("the relay has ended: %v", p)
	}
	return nil
}

func proportionalSetSize(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
			kB, err := strconv.ParseInt(f[1], 10, 64)
			return kB * 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no line Pss", path)
}
