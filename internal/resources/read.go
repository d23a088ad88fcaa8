package resources

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Process is what the process itself uses. What cannot be read is left out.
type Process struct {
	Goroutines    int     `json:"goroutines"`
	Threads       int     `json:"threads,omitempty"`
	Descriptors   int     `json:"descriptors,omitempty"`
	ResidentBytes int64   `json:"resident_bytes,omitempty"` // sockets' queues are the kernel's and not in it
	CPUSeconds    float64 `json:"cpu_seconds,omitempty"`    // user and system, since it began
}

// Own is this process, now.
func Own() Process {
	f := &files{}
	p := Process{Goroutines: runtime.NumGoroutine(), CPUSeconds: cpuTime().Seconds()}
	if n, err := countEntries("/proc/self/task"); err == nil {
		p.Threads = n
	}
	if n, err := openDescriptors(); err == nil {
		p.Descriptors = n
	}
	if pages, _, ok := parseResident(f.read("/proc/self/statm")); ok {
		p.ResidentBytes = pages * int64(os.Getpagesize())
	}
	return p
}

// Used is what this process has in memory, and for how long it has had a CPU. It
// costs little, however many descriptors there are. Resident is 0 if it is not
// known.
func Used() (residentBytes int64, cpu time.Duration) {
	if pages, _, ok := parseResident((&files{}).read("/proc/self/statm")); ok {
		residentBytes = pages * int64(os.Getpagesize())
	}
	return residentBytes, cpuTime()
}

// cpuWindow is over how long the use of the CPUs is averaged.
const cpuWindow = 5 * time.Second

// recountAfter is how many times what counting the descriptors took must pass
// until they are counted again.
const recountAfter = 100

// reader takes samples of one process: this one.
type reader struct {
	files   files
	groups  cgroups
	cpus    Amount
	counted struct { // descriptors
		n    Amount
		at   time.Time
		took time.Duration
	}
	cpuTimes []cpuMoment // of the last cpuWindow
}

type cpuMoment struct {
	at   time.Time
	used time.Duration
}

func newReader() *reader {
	r := &reader{}
	r.groups = findCgroups(&r.files)
	r.cpus = Amount(runtime.NumCPU())
	if quota := r.groups.cpus(&r.files); quota.Known() {
		r.cpus = min(r.cpus, quota)
	}
	r.counted.n = Unknown
	return r
}

// sample reads every figure, without limits.
func (r *reader) sample(now time.Time) State {
	page := Amount(os.Getpagesize())
	sockets := parseSockstat(r.files.read("/proc/net/sockstat"))
	drops := parseNetstat(r.files.read("/proc/net/netstat"), "ListenOverflows", "ListenDrops")
	s := State{
		At:         now,
		TCPSockets: sockets.sockets, TCPOrphans: sockets.orphans,
		AcceptOverflows: drops[0], ListenDrops: drops[1],
		LoopDelay: Unknown,
	}
	var descriptors, memory, tcp Usage
	descriptors, s.fresh = r.descriptors(now)
	memory = Usage{Unknown, Unknown}
	if pages, files, ok := parseResident(r.files.read("/proc/self/statm")); ok {
		// The kernel takes the pages of files back whenever it needs them.
		memory.Used = Amount(max(0, pages-files)) * page
	}
	// A network namespace other than the machine's first does not show tcp_mem.
	tcp = Usage{times(sockets.pages, page), times(parseTCPMem(r.files.read("/proc/sys/net/ipv4/tcp_mem")), page)}
	for _, f := range []struct {
		resource Resource
		usage    Usage
	}{
		{Descriptors, descriptors}, {Memory, memory}, {CgroupMemory, r.groups.memory(&r.files)}, {TCPMemory, tcp}, {CPU, r.cpu(now, cpuTime())},
	} {
		s.Figures = append(s.Figures, Figure{
			Resource: f.resource, Unit: units[f.resource],
			Used: f.usage.Used, Limit: Unknown, Capacity: f.usage.Capacity,
		})
	}
	return s
}

func times(a, by Amount) Amount {
	if !a.Known() {
		return Unknown
	}
	return a * by
}

// descriptors counts what is open, or returns the last count where counting
// takes too long to do it each time.
func (r *reader) descriptors(now time.Time) (u Usage, fresh bool) {
	u = Usage{Unknown, Unknown}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
		u.Capacity = Amount(limit.Cur)
	}
	c := &r.counted
	if now.Sub(c.at) >= recountAfter*c.took {
		begin := time.Now()
		n, err := openDescriptors()
		c.n, c.at, c.took = Amount(n), now, time.Since(begin)
		if err != nil {
			c.n = Unknown
		}
		fresh = true
	}
	u.Used = c.n
	return u, fresh
}

// cpu is the mean of the CPUs in use over the last cpuWindow.
func (r *reader) cpu(now time.Time, used time.Duration) Usage {
	r.cpuTimes = append(r.cpuTimes, cpuMoment{now, used})
	for len(r.cpuTimes) > 2 && now.Sub(r.cpuTimes[1].at) >= cpuWindow {
		r.cpuTimes = r.cpuTimes[1:]
	}
	first := r.cpuTimes[0]
	over := now.Sub(first.at)
	if over < cpuWindow/5 {
		return Usage{Unknown, r.cpus} // too short to say
	}
	return Usage{Amount((used - first.used).Seconds() / over.Seconds()), r.cpus}
}

// cpuTime is what the process has used, user and system.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// openDescriptors counts the process's descriptors. Since Linux 6.2 the size
// of the directory is their number; before, its entries have to be counted.
func openDescriptors() (int, error) {
	const dir = "/proc/self/fd"
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err == nil && st.Size > 0 {
		return int(st.Size), nil
	}
	n, err := countEntries(dir)
	return max(0, n-1), err // one was that of this very listing
}

// countEntries counts what is in a directory, without keeping any of it.
func countEntries(dir string) (n int, err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 32<<10)
	for {
		got, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			return n, err
		}
		n += countRecords(buf[:got])
	}
}

// Of struct linux_dirent64, in bytes.
const (
	direntLength = 16 // where its own length is
	direntName   = 19 // where the name begins
)

// countRecords counts what getdents64 returned, but for "." and "..".
func countRecords(records []byte) (n int) {
	for len(records) > direntName {
		length := int(binary.NativeEndian.Uint16(records[direntLength:]))
		if records[direntName] != '.' {
			n++
		}
		if length <= direntName || length > len(records) {
			break
		}
		records = records[length:]
	}
	return n
}

// files reads small files one after the other into one buffer.
type files struct{ buf []byte }

// read returns what is in a file until the next call, nothing where it cannot
// be read.
func (f *files) read(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if f.buf == nil {
		f.buf = make([]byte, 16<<10)
	}
	n := 0
	for n < len(f.buf) {
		got, err := unix.Read(fd, f.buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			break
		}
		n += got
	}
	return f.buf[:n]
}

// field is read for a file of one word.
func (f *files) field(path string) []byte { return bytes.TrimSpace(f.read(path)) }
