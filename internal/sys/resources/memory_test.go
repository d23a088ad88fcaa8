package resources

import (
	"path/filepath"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	type dir map[string]string
	for _, tt := range []struct {
		name              string
		groups            func(dirs []string) cgroups
		root, slice, unit dir
		want              Amount
	}{
		{"version 2, no limit", groupsV2, dir{}, dir{"memory.max": "max\n", "memory.high": "max\n"}, dir{"memory.max": "max\n"}, Unknown},
		{"version 2, the unit's", groupsV2, dir{}, dir{"memory.max": "max\n"}, dir{"memory.max": "1000\n"}, 1000},
		{"version 2, an ancestor's is less", groupsV2, dir{}, dir{"memory.max": "900\n"}, dir{"memory.max": "1000\n"}, 900},
		{"version 2, slowed down before the limit", groupsV2, dir{}, dir{"memory.max": "900\n", "memory.high": "max\n"}, dir{"memory.max": "max\n", "memory.high": "800\n"}, 800},
		{"version 2, the root of a container", groupsV2, dir{"memory.max": "700\n"}, dir{"memory.max": "max\n"}, dir{"memory.max": "max\n"}, 700},
		{"version 2, zero", groupsV2, dir{}, dir{"memory.max": "0\n"}, dir{"memory.high": "0\n"}, Unknown},
		{"version 2, not a number", groupsV2, dir{}, dir{"memory.max": "much\n"}, dir{"memory.max": "\n"}, Unknown},
		{
			"version 1, no limit", groupsV1, dir{"memory.limit_in_bytes": "9223372036854771712\n"},
			dir{"memory.limit_in_bytes": "9223372036854771712\n", "memory.stat": "cache 5\nhierarchical_memory_limit 9223372036854771712\n"},
			dir{"memory.limit_in_bytes": "9223372036854771712\n"}, Unknown,
		},
		{
			"version 1, an ancestor's is less", groupsV1, dir{"memory.limit_in_bytes": "9223372036854771712\n"},
			dir{"memory.limit_in_bytes": "600\n"}, dir{"memory.limit_in_bytes": "1000\n", "memory.stat": "hierarchical_memory_limit 600\n"}, 600,
		},
		{
			"version 1, a hidden ancestor's is less", groupsV1, dir{},
			dir{}, dir{"memory.limit_in_bytes": "1000\n", "memory.stat": "hierarchical_memory_limit 500\n"}, 500,
		},
	} {
		root := t.TempDir()
		write(t, root, tt.root)
		write(t, filepath.Join(root, "slice"), tt.slice)
		write(t, filepath.Join(root, "slice", "unit"), tt.unit)
		groups := tt.groups(cgroupMount{"/", root}.upFrom("/slice/unit"))
		if got := groups.memoryLimit(&files{}); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if got := (cgroups{}).memoryLimit(&files{}); got != Unknown {
		t.Errorf("without groups: %v", got)
	}
}

func TestLeast(t *testing.T) {
	for _, tt := range []struct{ a, b, want Amount }{
		{Unknown, Unknown, Unknown}, {Unknown, 5, 5}, {5, Unknown, 5}, {5, 4, 4}, {0, 5, 5}, {5, 0, 5}, {0, Unknown, Unknown},
	} {
		if got := least(tt.a, tt.b); got != tt.want {
			t.Errorf("least(%v, %v) = %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}

// The memory of this process is not more than the host has, and its own group allows it.
func TestMemoryCapacity(t *testing.T) {
	f := &files{}
	host, limit, got := parseMemTotal(f.read("/proc/meminfo")), findCgroups().memoryLimit(f), MemoryCapacity()
	t.Logf("host %v, groups %v, capacity %v", host, limit, got)
	if !got.Known() || got > host || limit.Known() && got > limit {
		t.Errorf("%v bytes, but the host has %v and its groups allow %v", got, host, limit)
	}
}

func BenchmarkMemoryCapacity(b *testing.B) {
	for b.Loop() {
		MemoryCapacity()
	}
}
