package resources

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// The figures of this very process, as far as another way to know them leads.
func TestSample(t *testing.T) {
	r := newReader()
	s := r.sample(time.Now())
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if used := s.Figure(Descriptors).Used; used != Amount(len(open)-1) {
		t.Errorf("%v descriptors, and the directory has %d", used, len(open)-1)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if got := s.Figure(Descriptors).Capacity; got != Amount(limit.Cur) {
		t.Errorf("%v descriptors are allowed, not %v", limit.Cur, got)
	}
	if used := s.Figure(Memory).Used; used < 1<<20 || used > 1<<40 {
		t.Errorf("%v bytes are resident", used)
	}
	if !s.Figure(TCPMemory).Used.Known() || !s.TCPSockets.Known() || !s.AcceptOverflows.Known() || !s.ListenDrops.Known() {
		t.Errorf("figures of the kernel are missing: %+v", s)
	}
	if cpu := s.Figure(CPU); cpu.Used.Known() || cpu.Capacity <= 0 || cpu.Capacity > Amount(runtime.NumCPU()) {
		t.Errorf("CPU after one sample: %+v", cpu)
	}
	own := Own()
	if own.Goroutines < 1 || own.Threads < 1 || own.Descriptors != len(open)-1 || own.ResidentBytes < 1<<20 || own.CPUSeconds <= 0 {
		t.Errorf("want the figures of this process, got %+v", own)
	}
}

// TestCounts reads copies of /proc, whole and with files that lack figures.
func TestCounts(t *testing.T) {
	whole := map[string]string{
		"42/statm":             "765 438 410 5 0 123 0\n",
		"42/net/netstat":       "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 40317 40318\n",
		"net/sockstat":         "sockets: used 13\nTCP: inuse 1 orphan 223 tw 0 alloc 419 mem 48857\nUDP: inuse 7 mem 9\n",
		"sys/net/ipv4/tcp_mem": "287898\t383867\t575796\n", "sys/net/ipv4/tcp_max_orphans": "65536\n",
	}
	for _, tt := range []struct {
		name    string
		replace map[string]string
		want    counts
	}{
		{"whole", nil, counts{28, 1, 223, 48857, 575796, 40317, 40318, 65536}},
		{"resident less than its files", map[string]string{"42/statm": "765 400 410 5 0 123 0\n"}, counts{0, 1, 223, 48857, 575796, 40317, 40318, 65536}},
		{"no counters", map[string]string{"42/net/netstat": "TcpExt: SyncookiesSent\nTcpExt: 1\n"}, counts{28, 1, 223, 48857, 575796, Unknown, Unknown, 65536}},
		{"no memory", map[string]string{"net/sockstat": "TCP: inuse 1\n"}, counts{28, 1, Unknown, Unknown, 575796, 40317, 40318, 65536}},
		{"not as expected", map[string]string{"42/statm": "x", "42/net/netstat": "x y\n", "net/sockstat": "TCP: inuse many\n", "sys/net/ipv4/tcp_mem": "1 2\n", "sys/net/ipv4/tcp_max_orphans": "x\n"}, unknownCounts},
	} {
		dir := t.TempDir()
		for name, text := range whole {
			if other, ok := tt.replace[name]; ok {
				text = other
			}
			write(t, filepath.Join(dir, filepath.Dir(name)), map[string]string{filepath.Base(name): text})
		}
		if err := os.Symlink("42", filepath.Join(dir, "self")); err != nil {
			t.Fatal(err)
		}
		if got := new(files).counts(dir); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if got := new(files).counts(t.TempDir()); got != unknownCounts {
		t.Errorf("an empty directory: %+v", got)
	}
}

// TestSampleMakesLittleGarbage holds the garbage of a sample, which an idle relay takes each second, to 20 kB.
func TestSampleMakesLittleGarbage(t *testing.T) {
	r, samples := newReader(), 20
	r.sample(time.Now())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range samples {
		r.sample(time.Now())
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(samples); each > 20_000 {
		t.Errorf("a sample makes %d bytes of garbage", each)
	}
}

func TestCountEntries(t *testing.T) {
	dir := t.TempDir()
	const files = 300 // more than one call returns, as their names are long
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%0200d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := countEntries(dir); n != files || err != nil {
		t.Errorf("%d entries, %v", n, err)
	}
	if _, err := countEntries(filepath.Join(dir, "absent")); err == nil {
		t.Error("a directory that is not there has entries")
	}
}

func TestCPUIsAMeanOverItsWindow(t *testing.T) {
	r := &reader{cpus: 4}
	begin := time.Now()
	at := func(seconds float64, used float64) Amount {
		return r.cpu(begin.Add(time.Duration(seconds*1e9)), time.Duration(used*1e9)).Used
	}
	if got := at(0, 10); got.Known() {
		t.Errorf("%v CPUs after one sample", got)
	}
	if got := at(0.1, 10.1); got.Known() {
		t.Errorf("%v CPUs after a tenth of a second", got)
	}
	if got := at(2, 12); got < 0.999 || got > 1.001 {
		t.Errorf("%v CPUs, want 1", got)
	}
	for s := 3.0; s <= 20; s++ {
		at(s, 12) // nothing more is used
	}
	if got := at(21, 12); got != 0 {
		t.Errorf("%v CPUs after a long rest", got)
	}
	if len(r.cpuTimes) > 8 {
		t.Errorf("%d samples are kept", len(r.cpuTimes))
	}
}

func TestDescriptorsAreNotCountedAllTheTime(t *testing.T) {
	r := newReader()
	now := time.Now()
	if _, fresh := r.descriptors(now); !fresh {
		t.Error("the first count is none")
	}
	r.counted.took = 20 * time.Millisecond // of very many descriptors
	if u, fresh := r.descriptors(now.Add(time.Second)); fresh || !u.Used.Known() {
		t.Error("counted again although that takes too long")
	}
	if _, fresh := r.descriptors(now.Add(2 * time.Second)); !fresh {
		t.Error("never counted again")
	}
}

// write makes the files of a control group.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCgroupMemory(t *testing.T) {
	root := t.TempDir()
	slice, unit := filepath.Join(root, "slice"), filepath.Join(root, "slice", "unit")
	write(t, root, map[string]string{"cgroup.procs": ""}) // the real root has no limit at all
	write(t, slice, map[string]string{"memory.current": "900\n", "memory.max": "1000\n", "memory.stat": "anon 5\ninactive_file 200\n", "cpu.max": "200000 100000\n"})
	write(t, unit, map[string]string{"memory.current": "300\n", "memory.max": "max\n", "cpu.max": "max 100000\n"})
	groups := groupsV2(cgroupMount{"/", root}.upFrom("/slice/unit"))
	f := &files{}
	if got, want := groups.memory(f), (Usage{700, 1000}); got != want {
		t.Errorf("the slice's limit: %+v, want %+v", got, want)
	}
	if got := groups.cpus(f); got != 2 {
		t.Errorf("%v CPUs", got)
	}
	// The unit comes nearer to a limit of its own.
	write(t, unit, map[string]string{"memory.max": "310\n", "memory.stat": "inactive_file 10\n"})
	if got, want := groups.memory(f), (Usage{290, 310}); got != want {
		t.Errorf("the unit's limit: %+v, want %+v", got, want)
	}
	if got := (cgroups{}).memory(f); got != (Usage{Unknown, Unknown}) {
		t.Errorf("without groups: %+v", got)
	}
}

// TestCgroupOfThisProcess finds the group that the kernel says this is in.
func TestCgroupOfThisProcess(t *testing.T) {
	groups := findCgroups()
	if len(groups.dirs) == 0 {
		t.Skip("no hierarchy of control groups is mounted here")
	}
	if _, err := os.Stat(groups.dirs[len(groups.dirs)-1]); err != nil {
		t.Error(err)
	}
	u := groups.memory(&files{})
	t.Logf("%v: %+v", groups.dirs, u)
	if u.Capacity.Known() && (u.Used <= 0 || u.Used > u.Capacity) {
		t.Errorf("%v of %v bytes", u.Used, u.Capacity)
	}
}

func BenchmarkSample(b *testing.B) {
	r := newReader()
	b.ReportAllocs()
	for b.Loop() {
		r.sample(time.Now())
	}
}

func TestManyOrphans(t *testing.T) {
	for _, tt := range []struct {
		now, most Amount
		want      bool
	}{{4, 8, false}, {5, 8, true}, {5, Unknown, false}, {Unknown, 8, false}} {
		if got := (State{TCPOrphans: tt.now, OrphansMax: tt.most}).ManyOrphans(); got != tt.want {
			t.Errorf("%v of %v: %t", tt.now, tt.most, got)
		}
	}
}
