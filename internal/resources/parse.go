package resources

import (
	"bytes"
	"strconv"
	"strings"
)

// parseResident reads the second and third number of /proc/self/statm: pages
// that are in memory, and those of them that belong to files.
func parseResident(statm []byte) (resident, files int64, ok bool) {
	fields := bytes.Fields(statm)
	if len(fields) < 3 {
		return 0, 0, false
	}
	resident, ok = parseCount(fields[1])
	files, more := parseCount(fields[2])
	return resident, files, ok && more
}

// sockstat is what /proc/net/sockstat says of TCP.
type sockstat struct {
	sockets, orphans Amount
	pages            Amount // of memory, over the whole machine
}

func parseSockstat(data []byte) sockstat {
	s := sockstat{Unknown, Unknown, Unknown}
	for line := range bytes.Lines(data) {
		fields := bytes.Fields(line)
		if len(fields) == 0 || string(fields[0]) != "TCP:" {
			continue
		}
		for i := 1; i+1 < len(fields); i += 2 {
			v, ok := parseCount(fields[i+1])
			if !ok {
				continue
			}
			switch string(fields[i]) {
			case "inuse":
				s.sockets = Amount(v)
			case "orphan":
				s.orphans = Amount(v)
			case "mem":
				s.pages = Amount(v)
			}
		}
	}
	return s
}

// parseTCPMem reads the third number of /proc/sys/net/ipv4/tcp_mem: the pages
// that TCP may have.
func parseTCPMem(data []byte) Amount {
	fields := bytes.Fields(data)
	if len(fields) != 3 {
		return Unknown
	}
	return amountOf(fields[2])
}

// parseNetstat reads counters of the group TcpExt of /proc/net/netstat, which
// has one line of names and one of values.
func parseNetstat(data []byte, names ...string) []Amount {
	values := make([]Amount, len(names))
	for i := range values {
		values[i] = Unknown
	}
	var header []byte
	for line := range bytes.Lines(data) {
		if !bytes.HasPrefix(line, []byte("TcpExt:")) {
			continue
		}
		if header == nil {
			header = line
			continue
		}
		keys, counts := bytes.Fields(header), bytes.Fields(line)
		for i := range min(len(keys), len(counts)) {
			for j, name := range names {
				if string(keys[i]) == name {
					values[j] = amountOf(counts[i])
				}
			}
		}
		break
	}
	return values
}

// parseKeyed finds a value in a file of lines "key value", such as memory.stat.
func parseKeyed(data []byte, key string) Amount {
	for line := range bytes.Lines(data) {
		if fields := bytes.Fields(line); len(fields) == 2 && string(fields[0]) == key {
			return amountOf(fields[1])
		}
	}
	return Unknown
}

// noLimit is what version 1 of control groups writes for memory without a
// limit: the greatest number of whole pages, of whatever size.
const noLimit = 1 << 62

// parseMemoryMax reads memory.max or memory.limit_in_bytes; unknown is no limit.
func parseMemoryMax(data []byte) Amount {
	data = bytes.TrimSpace(data)
	if a := amountOf(data); a < noLimit {
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

// parseCgroups reads /proc/self/cgroup: the process's group in the hierarchy
// of version 2, and in that of version 1 with the memory controller. Empty
// where there is none.
func parseCgroups(data []byte) (unified, memory string) {
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		if parts[0] == "0" && parts[1] == "" {
			unified = parts[2]
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			if controller == "memory" {
				memory = parts[2]
			}
		}
	}
	return unified, memory
}

// cgroupMount is where a hierarchy of control groups is mounted, and which
// group of it is at that place.
type cgroupMount struct{ root, point string }

// parseCgroupMounts reads /proc/self/mountinfo.
func parseCgroupMounts(data []byte) (unified, memory cgroupMount) {
	for line := range strings.Lines(string(data)) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(types) < 3 {
			continue
		}
		m := cgroupMount{unescape(fields[3]), unescape(fields[4])}
		switch types[0] {
		case "cgroup2":
			unified = m
		case "cgroup":
			for option := range strings.SplitSeq(types[2], ",") {
				if option == "memory" {
					memory = m
				}
			}
		}
	}
	return unified, memory
}

// unescape undoes the \ooo of blanks and the like in mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func amountOf(text []byte) Amount {
	if v, ok := parseCount(text); ok {
		return Amount(v)
	}
	return Unknown
}

// parseCount reads a number that is not negative.
func parseCount(text []byte) (int64, bool) {
	v, err := strconv.ParseInt(string(text), 10, 64)
	return v, err == nil && v >= 0
}
