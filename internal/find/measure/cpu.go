package measure

import (
	"syscall"
	"time"
)

// cpuTime is what this process had used at a moment.
type cpuTime struct {
	at           time.Time
	user, system time.Duration
	known        bool
}

func startCPU() cpuTime {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return cpuTime{at: time.Now()}
	}
	return cpuTime{time.Now(), time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano()), true}
}

// used is what was used since then.
func (c cpuTime) used() time.Duration {
	now := startCPU()
	return now.user - c.user + now.system - c.system
}

// percent is what was used since then, in percent of one CPU.
func (c cpuTime) percent() (total, user, system float64) {
	now := startCPU()
	passed := now.at.Sub(c.at).Seconds()
	if passed <= 0 {
		return 0, 0, 0
	}
	user, system = 100*(now.user-c.user).Seconds()/passed, 100*(now.system-c.system).Seconds()/passed
	return user + system, user, system
}
