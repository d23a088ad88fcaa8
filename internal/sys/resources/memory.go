package resources

// MemoryCapacity returns the bytes of memory that this process can use at most: those of the
// host, or of its control group or an ancestor if that has less. It is unknown if nothing can be
// read. A call reads a few small files, 0.2 ms in all; limits change while a process runs.
func MemoryCapacity() Amount {
	f := &files{}
	return least(parseMemTotal(f.read("/proc/meminfo")), findCgroups().memoryLimit(f))
}

// memoryLimit returns the least memory limit of the groups; unknown is no limit.
func (c cgroups) memoryLimit(f *files) Amount {
	limit := Unknown
	for _, dir := range c.dirs {
		limit = least(limit, parseMemoryMax(f.read(dir+"/"+c.most)))
		if c.throttle != "" {
			limit = least(limit, parseMemoryMax(f.read(dir+"/"+c.throttle)))
		}
		if c.inherited != "" {
			limit = least(limit, parseInherited(f.read(dir+"/"+c.stat), c.inherited))
		}
	}
	return limit
}

// least returns the lesser of two amounts. An unknown one does not count, nor does zero: a process
// that runs has some memory.
func least(a, b Amount) Amount {
	switch {
	case a <= 0 && b <= 0:
		return Unknown
	case a <= 0:
		return b
	case b <= 0:
		return a
	}
	return min(a, b)
}
