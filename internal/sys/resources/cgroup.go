package resources

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/procfs"
)

// cgroups are the control groups that bound the process's memory and CPU time: its
// own first, then its visible ancestors.
type cgroups struct {
	dirs []string
	// The files of a group with its use, its limit, and its reclaimable memory, in
	// this version of the hierarchy.
	current, most, stat, cache string
	throttle                   string // file with the use above which the kernel slows the group down; empty: none
	inherited                  string // key of stat with the least limit of all ancestors, hidden ones too; empty: none
}

// findCgroups finds the groups of the process. If both versions exist, it uses the one
// with the memory controller.
func findCgroups() cgroups {
	self, err := procfs.Self()
	if err != nil {
		return cgroups{}
	}
	groups, _ := self.Cgroups() // empty on errors: no group is found
	unified, memory := memoryGroups(groups)
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return cgroups{}
	}
	defer mounts.Close()
	unifiedMount, memoryMount := parseCgroupMounts(mounts)
	if memory != "" && memoryMount.point != "" {
		return groupsV1(memoryMount.upFrom(memory))
	}
	if unified != "" && unifiedMount.point != "" {
		return groupsV2(unifiedMount.upFrom(unified))
	}
	return cgroups{}
}

// groupsV1 returns groups of the hierarchy of version 1 with the memory controller.
func groupsV1(dirs []string) cgroups {
	return cgroups{
		dirs: dirs, current: "memory.usage_in_bytes", most: "memory.limit_in_bytes",
		stat: "memory.stat", cache: "total_inactive_file", inherited: "hierarchical_memory_limit",
	}
}

// groupsV2 returns groups of the hierarchy of version 2.
func groupsV2(dirs []string) cgroups {
	return cgroups{
		dirs: dirs, current: "memory.current", most: "memory.max",
		stat: "memory.stat", cache: "inactive_file", throttle: "memory.high",
	}
}

// upFrom lists the directories of a group and its ancestors.
func (m cgroupMount) upFrom(group string) []string {
	below, ok := strings.CutPrefix(group, m.root)
	if !ok || m.root != "/" && below != "" && below[0] != '/' {
		below = "" // a mount of another part of the tree: only that is visible
	}
	point := filepath.Clean(m.point)
	dir := filepath.Join(point, below)
	if dir != point && !strings.HasPrefix(dir, strings.TrimSuffix(point, "/")+"/") {
		dir = point // a path with ".." in it, of a group outside the namespace
	}
	dirs := []string{dir}
	for dir != point {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// cacheMatters is the minimum share of its limit at which a group's page cache is
// read: the kernel has to sum that over all CPUs.
const cacheMatters = 0.5

// memory returns the use of the group nearest to its limit. Cached files that the
// kernel would drop first do not count.
func (c cgroups) memory(f *files) Usage {
	found := Usage{Unknown, Unknown}
	for _, dir := range c.dirs {
		u := Usage{amountOf(f.field(dir + "/" + c.current)), parseMemoryMax(f.read(dir + "/" + c.most))}
		if !u.Used.Known() || u.Capacity <= 0 {
			continue
		}
		if u.Used > cacheMatters*u.Capacity {
			if cache := parseKeyed(f.read(dir+"/"+c.stat), c.cache); cache.Known() {
				u.Used = max(0, u.Used-cache)
			}
		}
		if !found.Capacity.Known() || u.Used/u.Capacity > found.Used/found.Capacity {
			found = u
		}
	}
	return found
}

// cpus returns the smallest CPU limit of the groups; unknown is no bound.
func (c cgroups) cpus(f *files) Amount {
	least := Unknown
	for _, dir := range c.dirs {
		if n := parseCPUMax(f.read(dir + "/cpu.max")); n.Known() && (!least.Known() || n < least) {
			least = n
		}
	}
	return least
}
