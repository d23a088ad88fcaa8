package resources

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
)

func TestParseLimits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parse func([]byte) Amount
		data  string
		want  Amount
	}{
		{"memory.max", parseMemoryMax, "536870912\n", 536870912},
		{"memory.max of none", parseMemoryMax, "max\n", Unknown},
		{"version 1 of none", parseMemoryMax, "9223372036854771712\n", Unknown},
		{"version 1 of none, pages of 64 KiB", parseMemoryMax, "9223372036854710272\n", Unknown},
		{"no file", parseMemoryMax, "", Unknown},
		{"meminfo", parseMemTotal, "MemTotal:        8050704 kB\nMemFree:          120000 kB\n", 8050704 << 10},
		{"meminfo, not the first line", parseMemTotal, "MemFree: 1 kB\nMemTotal: 2 kB\n", 2 << 10},
		{"meminfo without a figure", parseMemTotal, "MemTotal:\n", Unknown},
		{"meminfo of words", parseMemTotal, "MemTotal: many kB\n", Unknown},
		{"meminfo in another unit", parseMemTotal, "MemTotal: 1 MB\n", Unknown},
		{"no meminfo", parseMemTotal, "", Unknown},
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

func TestMemoryGroups(t *testing.T) {
	for _, tt := range []struct {
		name            string
		groups          []procfs.Cgroup
		unified, memory string
	}{
		{"version 2", []procfs.Cgroup{{Path: "/system.slice/longhaul.service"}}, "/system.slice/longhaul.service", ""},
		{"version 1", []procfs.Cgroup{
			{HierarchyID: 9, Controllers: []string{"name=systemd"}, Path: "/x"},
			{HierarchyID: 4, Controllers: []string{"memory", "misc"}, Path: "/a/b"},
			{HierarchyID: 3, Controllers: []string{"cpuset"}, Path: "/"},
		}, "", "/a/b"},
		{"both", []procfs.Cgroup{{HierarchyID: 4, Controllers: []string{"memory"}, Path: "/a"}, {Path: "/"}}, "/", "/a"},
		{"no path", []procfs.Cgroup{{Path: ""}}, "", ""},
	} {
		unified, memory := memoryGroups(tt.groups)
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
		wsl    = `99 31 0:99 / /Docker/host rw,noatime - 9p drvfs rw,aname=drvfs;path=C:\Program Files\Docker;symlinkroot=/mnt/` + "\n"
	)
	for _, tt := range []struct {
		name, data      string
		unified, memory cgroupMount
	}{
		{"version 2", two, cgroupMount{"/", "/sys/fs/cgroup"}, cgroupMount{}},
		{"version 1", cpu + one, cgroupMount{}, cgroupMount{"/docker/abc", "/sys/fs/cgroup/memory"}},
		{"blanks", blanks, cgroupMount{"/a b", `/sys/fs/c\g`}, cgroupMount{}},
		{"an option with a blank before it", wsl + two, cgroupMount{"/", "/sys/fs/cgroup"}, cgroupMount{}},
		{"nothing", "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n", cgroupMount{}, cgroupMount{}},
		{"nonsense", " - cgroup2\n1 2 3 - cgroup2 x y\n", cgroupMount{}, cgroupMount{}},
	} {
		unified, memory := parseCgroupMounts(strings.NewReader(tt.data))
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
		{cgroupMount{"/", "/c/"}, "/a", []string{"/c/a", "/c"}},
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
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		f.Add(mounts, "/system.slice/longhaul.service")
	}
	f.Add([]byte("max 100000\n"), "/")
	f.Add([]byte("MemTotal: 9223372036854775807 kB\n"), "/")
	f.Add([]byte(`41 31 0:38 /a\040b\ /sys\7 rw - cgroup2 cgroup2 rw`), "/../a b")
	f.Fuzz(func(t *testing.T, data []byte, group string) {
		for _, a := range []Amount{parseMemoryMax(data), parseCPUMax(data), parseKeyed(data, "inactive_file"), parseMemTotal(data)} {
			if a != Unknown && !(a >= 0 && float64(a) < math.MaxInt64+1.0) {
				t.Errorf("%v is not an amount", float64(a))
			}
		}
		unified, memory := parseCgroupMounts(bytes.NewReader(data))
		for _, m := range []cgroupMount{unified, memory} {
			if m.point == "" || !strings.HasPrefix(group, "/") {
				continue
			}
			if dirs := m.upFrom(group); len(dirs) == 0 {
				t.Errorf("no directory for %q in %+v", group, m)
			}
		}
	})
}
