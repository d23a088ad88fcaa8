package resources

import (
	"bytes"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
)

// parseKeyed reads a value from a file of lines "key value", such as memory.stat.
func parseKeyed(data []byte, key string) Amount {
	for line := range bytes.Lines(data) {
		if fields := bytes.Fields(line); len(fields) == 2 && string(fields[0]) == key {
			return amountOf(fields[1])
		}
	}
	return Unknown
}

// linesOf returns the first two lines that begin with a word.
func linesOf(data []byte, word string) (first, second []byte) {
	for line := range bytes.Lines(data) {
		switch {
		case !bytes.HasPrefix(line, []byte(word)):
		case first == nil:
			first = line
		default:
			return first, line
		}
	}
	return first, nil
}

// indexOf is the place of a word among those of a line; missing: far beyond.
func indexOf(line []byte, word string) int {
	i := 0
	for field := range bytes.FieldsSeq(line) {
		if string(field) == word {
			return i
		}
		i++
	}
	return math.MaxInt32
}

// nth is a number among the words of a line.
func nth(line []byte, n int) Amount {
	i := 0
	for field := range bytes.FieldsSeq(line) {
		if i == n {
			return amountOf(field)
		}
		i++
	}
	return Unknown
}

// parseMemTotal reads the host's memory in bytes from /proc/meminfo.
func parseMemTotal(data []byte) Amount {
	for line := range bytes.Lines(data) {
		fields := bytes.Fields(line)
		if len(fields) != 3 || string(fields[0]) != "MemTotal:" || string(fields[2]) != "kB" {
			continue
		}
		if kib := amountOf(fields[1]); kib < noLimit>>10 {
			return times(kib, 1<<10)
		}
	}
	return Unknown
}

// noLimit is the limit that version 1 of control groups writes for unlimited memory:
// the greatest number of whole pages of any size.
const noLimit = 1 << 62

// parseMemoryMax reads memory.max or memory.limit_in_bytes; unknown is no limit.
func parseMemoryMax(data []byte) Amount {
	data = bytes.TrimSpace(data)
	if a := amountOf(data); a < noLimit {
		return a
	}
	return Unknown
}

// parseInherited reads a limit from memory.stat; unknown is no limit.
func parseInherited(data []byte, key string) Amount {
	if a := parseKeyed(data, key); a < noLimit {
		return a
	}
	return Unknown
}

// parseCPUMax reads cpu.max, "quota period" in µs, as a number of CPUs;
// unknown is no limit.
func parseCPUMax(data []byte) Amount {
	fields := bytes.Fields(data)
	if len(fields) != 2 {
		return Unknown
	}
	quota, period := amountOf(fields[0]), amountOf(fields[1])
	if quota <= 0 || period <= 0 {
		return Unknown
	}
	return quota / period
}

// memoryGroups returns a process's group in the hierarchy of version 2, and in that of
// version 1 with the memory controller. A missing group is empty.
func memoryGroups(groups []procfs.Cgroup) (unified, memory string) {
	for _, g := range groups {
		if !strings.HasPrefix(g.Path, "/") {
			continue
		}
		if g.HierarchyID == 0 && len(g.Controllers) == 0 {
			unified = g.Path
		}
		if slices.Contains(g.Controllers, "memory") {
			memory = g.Path
		}
	}
	return unified, memory
}

// cgroupMount is a mount point of a hierarchy of control groups, and the group at that
// path.
type cgroupMount struct{ root, point string }

// parseCgroupMounts reads /proc/self/mountinfo. procfs would refuse the whole file if
// WSL mounts "path=C:\Program Files", and does not decode escapes.
func parseCgroupMounts(r io.Reader) (unified, memory cgroupMount) {
	mounts, err := mountinfo.GetMountsFromReader(r, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return cgroupMount{}, cgroupMount{}
	}
	for _, m := range mounts {
		at := cgroupMount{m.Root, m.Mountpoint}
		switch {
		case m.FSType == "cgroup2":
			unified = at
		case slices.Contains(strings.Split(m.VFSOptions, ","), "memory"):
			memory = at
		}
	}
	return unified, memory
}

func amountOf(text []byte) Amount {
	if v, ok := parseCount(text); ok {
		return Amount(v)
	}
	return Unknown
}

// parseCount parses a number of at least 0.
func parseCount(text []byte) (int64, bool) {
	v, err := strconv.ParseInt(string(text), 10, 64)
	return v, err == nil && v >= 0
}
