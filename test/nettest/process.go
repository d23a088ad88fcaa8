package nettest

import "github.com/prometheus/procfs"

// Stat reads /proc/PID/stat. It returns an error once the process has ended and
// its parent has waited for it.
func Stat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// Ended says whether a process has ended, be it that nobody has waited for it.
func Ended(pid int) bool {
	stat, err := Stat(pid)
	return err != nil || stat.State == "Z"
}
