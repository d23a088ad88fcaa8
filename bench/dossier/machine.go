package main

import (
	"bufio"
	"context"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit/congestion"
	"longhaul/internal/words/stats"
)

// machine watches how busy the machine is. The emulated links forward packets in threads
// of this process: if those run late, packets are late.
type machine struct {
	mu   sync.Mutex
	late []lateness // of the last lateMemory
}

// lateness is how long after its time a sleeping thread ran.
type lateness struct {
	at time.Time
	by time.Duration
}

// maxLateMs is the p99 of the lateness above which a run counts as disturbed.
const maxLateMs = 10

// isDisturbed reports whether the machine was too busy for the run: it does not count, and
// is made again.
func (r record) isDisturbed(maxLateMs congestion.Value) bool {
	return maxLateMs.Some() && (r.LateP99Ms.Some() && r.LateP99Ms > maxLateMs || r.Measured.LostByMachine > 0)
}

const (
	lateEvery  = 5 * time.Millisecond
	lateMemory = 5 * time.Minute
)

// watch measures until the context ends. It sleeps in the kernel, as the links do. The runtime's
// own timers are late by up to 10 ms while little goes on: it leaves those of a processor whose
// goroutine waits in a system call for that long.
func (m *machine) watch(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		due := time.Now().Add(lateEvery)
		sleep := unix.NsecToTimespec(int64(lateEvery))
		_ = unix.Nanosleep(&sleep, nil) // if a signal ends it, this measurement is early
		now := time.Now()
		m.mu.Lock()
		m.late = append(m.late, lateness{now, now.Sub(due)})
		if old := now.Add(-2 * lateMemory); m.late[0].at.Before(old) {
			keep := now.Add(-lateMemory)
			m.late = slices.DeleteFunc(m.late, func(l lateness) bool { return l.at.Before(keep) })
		}
		m.mu.Unlock()
	}
}

// lateP99Ms returns the 99th percentile of the lateness since a time.
func (m *machine) lateP99Ms(since time.Time) congestion.Value {
	m.mu.Lock()
	defer m.mu.Unlock()
	recent := slices.DeleteFunc(slices.Clone(m.late), func(l lateness) bool { return l.at.Before(since) })
	return figure(stats.Quantile(recent, 0.99, func(l lateness) float64 { return float64(l.by) / float64(time.Millisecond) }))
}

// cpuTimes are the counts of all CPUs since the machine's start.
type cpuTimes struct{ busy, all float64 }

// readCPU reads /proc/stat; zero if it cannot.
func readCPU() cpuTimes {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return cpuTimes{}
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	if !lines.Scan() {
		return cpuTimes{}
	}
	return parseCPU(lines.Text())
}

// parseCPU parses the line of all CPUs: user, nice, system, idle, iowait, irq, softirq,
// steal; guests are in user.
func parseCPU(line string) (c cpuTimes) {
	fields := strings.Fields(line)
	for i, field := range fields[min(1, len(fields)):min(9, len(fields))] {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return cpuTimes{}
		}
		c.all += v
		if i != 3 && i != 4 {
			c.busy += v
		}
	}
	return c
}

// busySince returns the busy share of the time between.
func (c cpuTimes) busySince(before cpuTimes) float64 {
	if c.all <= before.all {
		return 0
	}
	return (c.busy - before.busy) / (c.all - before.all)
}
