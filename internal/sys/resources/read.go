package resources

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Process is the process's own use. Unreadable figures are left out.
type Process struct {
	Goroutines    int     `json:"goroutines"`
	Threads       int     `json:"threads,omitempty"`
	Descriptors   int     `json:"descriptors,omitempty"`
	ResidentBytes int64   `json:"resident_bytes,omitempty"` // without the sockets' queues, which belong to the kernel
	CPUSeconds    float64 `json:"cpu_seconds,omitempty"`    // user and system, since its start
}

// Own returns the present use of this process.
func Own() Process {
	p := Process{Goroutines: runtime.NumGoroutine(), CPUSeconds: cpuTime().Seconds()}
	if n, err := countEntries("/proc/self/task"); err == nil {
		p.Threads = n
	}
	if n, err := openDescriptors(); err == nil {
		p.Descriptors = n
	}
	p.ResidentBytes = residentBytes()
	return p
}

// Used returns this process's resident memory in bytes, 0 if unknown, and its CPU
// time. Its cost does not grow with the number of descriptors.
func Used() (resident int64, cpu time.Duration) { return residentBytes(), cpuTime() }

// residentBytes returns this process's resident memory, 0 if unknown.
func residentBytes() int64 {
	self, err := procfs.Self()
	if err != nil {
		return 0
	}
	statm, err := self.Statm()
	if err != nil {
		return 0
	}
	return int64(statm.ResidentBytes())
}

// cpuWindow is the time over which the use of the CPUs is averaged.
const cpuWindow = 5 * time.Second

// recountAfter is the minimum time between two counts of the descriptors, in multiples
// of the duration of a count.
const recountAfter = 100

// reader takes samples of this process.
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
	r := &reader{groups: findCgroups()}
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
	known := r.files.counts("/proc")
	s := State{
		At:         now,
		TCPSockets: known.tcpSockets, TCPOrphans: known.tcpOrphans, OrphansMax: known.orphansMax,
		AcceptOverflows: known.acceptOverflows, ListenDrops: known.listenDrops,
		LoopDelay: Unknown,
	}
	var descriptors Usage
	descriptors, s.fresh = r.descriptors(now)
	memory := Usage{times(known.ownPages, page), Unknown}
	tcp := Usage{times(known.tcpPages, page), times(known.tcpPagesMax, page)}
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

// counts has the figures of /proc.
type counts struct {
	ownPages                     Amount // of this process's memory, without file pages
	tcpSockets, tcpOrphans       Amount // of the network namespace
	tcpPages, tcpPagesMax        Amount // of the machine; a network namespace other than its first has no maximum
	acceptOverflows, listenDrops Amount // of the network namespace, since its start
	orphansMax                   Amount // of the machine, as tcpPagesMax
}

var unknownCounts = counts{Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown}

// counts reads them from /proc, once a second. It makes no garbage: the heap of an idle relay would grow to its
// next collection by that alone, and a parser of all of netstat makes 250 kB.
func (f *files) counts(proc string) counts {
	c := unknownCounts
	if statm := f.read(proc + "/self/statm"); nth(statm, 2).Known() {
		// The kernel can reclaim the pages of files at any time.
		c.ownPages = max(0, nth(statm, 1)-nth(statm, 2))
	}
	header, values := linesOf(f.read(proc+"/self/net/netstat"), "TcpExt:")
	c.acceptOverflows, c.listenDrops = nth(values, indexOf(header, "ListenOverflows")), nth(values, indexOf(header, "ListenDrops"))
	sockets, _ := linesOf(f.read(proc+"/net/sockstat"), "TCP:")
	c.tcpSockets, c.tcpOrphans, c.tcpPages = nth(sockets, indexOf(sockets, "inuse")+1), nth(sockets, indexOf(sockets, "orphan")+1), nth(sockets, indexOf(sockets, "mem")+1)
	c.tcpPagesMax = nth(f.read(proc+"/sys/net/ipv4/tcp_mem"), 2)
	c.orphansMax = nth(f.read(proc+"/sys/net/ipv4/tcp_max_orphans"), 0)
	return c
}

func times(a, by Amount) Amount {
	if !a.Known() {
		return Unknown
	}
	return a * by
}

// descriptors counts the open descriptors, or returns the last count if counting each
// time would take too long.
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

// cpu returns the mean of the CPUs in use over the last cpuWindow.
func (r *reader) cpu(now time.Time, used time.Duration) Usage {
	r.cpuTimes = append(r.cpuTimes, cpuMoment{now, used})
	for len(r.cpuTimes) > 2 && now.Sub(r.cpuTimes[1].at) >= cpuWindow {
		r.cpuTimes = r.cpuTimes[1:]
	}
	first := r.cpuTimes[0]
	over := now.Sub(first.at)
	if over < cpuWindow/5 {
		return Usage{Unknown, r.cpus} // too short a time
	}
	return Usage{Amount((used - first.used).Seconds() / over.Seconds()), r.cpus}
}

// cpuTime returns the process's CPU time, user and system.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// openDescriptors counts the process's descriptors. Since Linux 6.2 the size
// of the directory is their number. Before that, count its entries.
func openDescriptors() (int, error) {
	const dir = "/proc/self/fd"
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err == nil && st.Size > 0 {
		return int(st.Size), nil
	}
	n, err := countEntries(dir)
	return max(0, n-1), err // one is the listing's own
}

// countEntries counts the entries of a directory, with few names in memory: a relay
// has up to millions of descriptors.
func countEntries(dir string) (n int, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		n += len(names)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// files reads small files one after the other into one buffer.
type files struct{ buf []byte }

// read returns the content of a file, valid until the next call; empty after an error.
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

// field reads a file of one word.
func (f *files) field(path string) []byte { return bytes.TrimSpace(f.read(path)) }
