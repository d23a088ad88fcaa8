package resources

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

func TestParseResident(t *testing.T) {
	for _, tt := range []struct {
		statm           string
		resident, files int64
		ok              bool
	}{
		{"765 438 410 5 0 123 0\n", 438, 410, true},
		{"", 0, 0, false},
		{"765 438", 0, 0, false},
		{"765 -1 410 5 0 123 0", 0, 0, false},
		{"765 x 410 5", 0, 0, false},
	} {
		resident, files, ok := parseResident([]byte(tt.statm))
		if ok != tt.ok || ok && (resident != tt.resident || files != tt.files) {
			t.Errorf("%q: %d, %d, %v", tt.statm, resident, files, ok)
		}
	}
}

func TestParseSockstat(t *testing.T) {
	const text = "sockets: used 13\nTCP: inuse 1 orphan 223 tw 0 alloc 419 mem 48857\nUDP: inuse 7 mem 9\nFRAG: inuse 0 memory 0\n"
	for _, tt := range []struct {
		name, data string
		want       sockstat
	}{
		{"whole", text, sockstat{1, 223, 48857}},
		{"empty", "", sockstat{Unknown, Unknown, Unknown}},
		{"without memory", "TCP: inuse 1 orphan 2 tw 0 alloc 3 mem\n", sockstat{1, 2, Unknown}},
		{"not a number", "TCP: inuse many orphan 2 mem -4\n", sockstat{Unknown, 2, Unknown}},
		{"of UDP alone", "UDP: inuse 7 mem 9\n", sockstat{Unknown, Unknown, Unknown}},
	} {
		if got := parseSockstat([]byte(tt.data)); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestParseNetstat(t *testing.T) {
	const names = "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPHPHits\n"
	for _, tt := range []struct {
		name, data string
		want       []Amount
	}{
		{"whole", names + "TcpExt: 1 40317 40318 9\nIpExt: InNoRoutes\nIpExt: 5\n", []Amount{40317, 40318}},
		{"after another group", "IpExt: ListenOverflows\nIpExt: 5\n" + names + "TcpExt: 1 2 3 4\n", []Amount{2, 3}},
		{"fewer values than names", names + "TcpExt: 1 2\n", []Amount{2, Unknown}},
		{"names alone", names, []Amount{Unknown, Unknown}},
		{"empty", "", []Amount{Unknown, Unknown}},
		{"negative", names + "TcpExt: 1 -2 3 4\n", []Amount{Unknown, 3}},
	} {
		if got := parseNetstat([]byte(tt.data), "ListenOverflows", "ListenDrops"); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestParseLimits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parse func([]byte) Amount
		data  string
		want  Amount
	}{
		{"tcp_mem", parseTCPMem, "287898\t383867\t575796\n", 575796},
		{"tcp_mem of two", parseTCPMem, "287898\t383867\n", Unknown},
		{"memory.max", parseMemoryMax, "536870912\n", 536870912},
		{"memory.max of none", parseMemoryMax, "max\n", Unknown},
		{"version 1 of none", parseMemoryMax, "9223372036854771712\n", Unknown},
		{"version 1 of none, pages of 64 KiB", parseMemoryMax, "9223372036854710272\n", Unknown},
		{"no file", parseMemoryMax, "", Unknown},
		{"cpu.max", parseCPUMax, "150000 100000\n", 1.5},
		{"cpu.max of none", parseCPUMax, "max 100000\n", Unknown},
		{"cpu.max without a period", parseCPUMax, "150000 0\n", Unknown},
		{"cpu.max without anything", parseCPUMax, "0 100000\n", Unknown},
	} {
		if got := tt.parse([]byte(tt.data)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	const stat = "anon 4096\ninactive_file 8192\ninactive_file_more 1\n"
	if got := parseKeyed([]byte(stat), "inactive_file"); got != 8192 {
		t.Errorf("inactive_file is %v", got)
	}
	if got := parseKeyed([]byte(stat), "total_inactive_file"); got != Unknown {
		t.Errorf("what is not there is %v", got)
	}
}

func TestParseCgroups(t *testing.T) {
	for _, tt := range []struct{ name, data, unified, memory string }{
		{"version 2", "0::/system.slice/longhaul.service\n", "/system.slice/longhaul.service", ""},
		{"version 1", "9:name=systemd:/x\n4:memory,misc:/a/b\n3:cpuset:/\n", "", "/a/b"},
		{"both", "4:memory:/a\n0::/\n", "/", "/a"},
		{"a colon in the path", "0::/a:b\n", "/a:b", ""},
		{"nonsense", "0:/\nmemory\n::\n", "", ""},
	} {
		unified, memory := parseCgroups([]byte(tt.data))
		if unified != tt.unified || memory != tt.memory {
			t.Errorf("%s: %q, %q", tt.name, unified, memory)
		}
	}
}

func TestParseCgroupMounts(t *testing.T) {
	const (
		two    = "41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		one    = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
		cpu    = "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
		blanks = `41 31 0:38 /a\040b /sys/fs/c\134g rw shared:1 - cgroup2 cgroup2 rw` + "\n"
	)
	for _, tt := range []struct {
		name, data      string
		unified, memory cgroupMount
	}{
		{"version 2", two, cgroupMount{"/", "/sys/fs/cgroup"}, cgroupMount{}},
		{"version 1", cpu + one, cgroupMount{}, cgroupMount{"/docker/abc", "/sys/fs/cgroup/memory"}},
		{"blanks", blanks, cgroupMount{"/a b", `/sys/fs/c\g`}, cgroupMount{}},
		{"nothing", "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n", cgroupMount{}, cgroupMount{}},
		{"nonsense", " - cgroup2\n1 2 3 - cgroup2 x y\n", cgroupMount{}, cgroupMount{}},
	} {
		unified, memory := parseCgroupMounts([]byte(tt.data))
		if unified != tt.unified || memory != tt.memory {
			t.Errorf("%s: %+v, %+v", tt.name, unified, memory)
		}
	}
}

func TestGroupsFromTheMountUp(t *testing.T) {
	for _, tt := range []struct {
		mount cgroupMount
		group string
		want  []string
	}{
		{cgroupMount{"/", "/c"}, "/", []string{"/c"}},
		{cgroupMount{"/", "/c"}, "/a/b", []string{"/c/a/b", "/c/a", "/c"}},
		{cgroupMount{"/docker/x", "/c"}, "/docker/x", []string{"/c"}},
		{cgroupMount{"/docker/x", "/c"}, "/docker/x/y", []string{"/c/y", "/c"}},
		{cgroupMount{"/docker/x", "/c"}, "/docker/xyz", []string{"/c"}},
		{cgroupMount{"/docker/x", "/c"}, "/elsewhere", []string{"/c"}},
		{cgroupMount{"/", "/c"}, "/../../a", []string{"/c"}},
	} {
		if got := tt.mount.upFrom(tt.group); !slices.Equal(got, tt.want) {
			t.Errorf("%s in %+v: %v, want %v", tt.group, tt.mount, got, tt.want)
		}
	}
}

func TestAmountsInJSON(t *testing.T) {
	for a, want := range map[Amount]string{Unknown: "null", 0: "0", 1.5: "1.5", 1 << 50: "1125899906842624"} {
		b, err := json.Marshal(a)
		if err != nil || string(b) != want {
			t.Errorf("%v becomes %s, %v", float64(a), b, err)
		}
		var back Amount
		if err := json.Unmarshal(b, &back); err != nil || back != a {
			t.Errorf("%s becomes %v, %v", b, float64(back), err)
		}
	}
}

// FuzzParse has every parser take what it is given without a panic, and give
// back nothing but amounts.
func FuzzParse(f *testing.F) {
	for _, file := range []string{"statm", "cgroup", "mountinfo", "net/sockstat", "net/netstat"} {
		if data, err := os.ReadFile("/proc/self/" + file); err == nil {
			f.Add(data)
		}
	}
	f.Add([]byte("287898\t383867\t575796\n"))
	f.Add([]byte("max 100000\n"))
	f.Add([]byte(`41 31 0:38 /a\040b\ /sys\7 rw - cgroup2 cgroup2 rw`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := parseSockstat(data)
		amounts := []Amount{
			s.sockets, s.orphans, s.pages, parseTCPMem(data), parseMemoryMax(data), parseCPUMax(data), parseKeyed(data, "inactive_file"),
		}
		amounts = append(amounts, parseNetstat(data, "ListenOverflows", "ListenDrops")...)
		for _, a := range amounts {
			if a != Unknown && !(a >= 0 && float64(a) < math.MaxInt64+1.0) {
				t.Errorf("%v is not an amount", float64(a))
			}
		}
		if resident, files, ok := parseResident(data); ok && (resident < 0 || files < 0) {
			t.Errorf("%d, %d pages", resident, files)
		}
		unified, memory := parseCgroupMounts(data)
		group, other := parseCgroups(data)
		for _, m := range []cgroupMount{unified, memory} {
			if m.point == "" {
				continue
			}
			for _, g := range []string{group, other} {
				if dirs := m.upFrom(g); len(dirs) == 0 {
					t.Errorf("no directory for %q in %+v", g, m)
				}
			}
		}
		if n := countRecords(data); n < 0 || n > len(data) {
			t.Errorf("%d records", n)
		}
	})
}
