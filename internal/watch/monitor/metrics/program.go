package metrics

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// runtimeFamily is the sum of figures of package runtime/metrics.
type runtimeFamily struct {
	name, help string
	kind       kind
	of         []string
}

// The names are those of Prometheus' client for Go, which dashboards of Go programs know.
var runtimeFamilies = []runtimeFamily{
	{"go_goroutines", "Goroutines that exist.", gauge, []string{"/sched/goroutines:goroutines"}},
	{"go_sched_gomaxprocs_threads", "Threads that run Go code at the same time.", gauge, []string{"/sched/gomaxprocs:threads"}},
	{"go_gc_gogc_percent", "Growth of the heap between collections (GOGC).", gauge, []string{"/gc/gogc:percent"}},
	{"go_gc_gomemlimit_bytes", "Soft limit of Go's memory (GOMEMLIMIT).", gauge, []string{"/gc/gomemlimit:bytes"}},
	{"go_memstats_alloc_bytes", "Heap in use by objects.", gauge, []string{"/memory/classes/heap/objects:bytes"}},
	{"go_memstats_alloc_bytes_total", "Heap ever allocated.", counter, []string{"/gc/heap/allocs:bytes"}},
	{"go_memstats_mallocs_total", "Objects ever allocated.", counter, []string{"/gc/heap/allocs:objects", "/gc/heap/tiny/allocs:objects"}},
	{"go_memstats_frees_total", "Objects ever freed.", counter, []string{"/gc/heap/frees:objects", "/gc/heap/tiny/allocs:objects"}},
	{"go_memstats_heap_alloc_bytes", "Heap in use by objects.", gauge, []string{"/memory/classes/heap/objects:bytes"}},
	{"go_memstats_heap_idle_bytes", "Heap that waits to be used.", gauge, []string{"/memory/classes/heap/released:bytes", heapFree}},
	{"go_memstats_heap_inuse_bytes", "Heap in spans that are in use.", gauge, []string{"/memory/classes/heap/objects:bytes", heapUnused}},
	{"go_memstats_heap_objects", "Objects that exist.", gauge, []string{"/gc/heap/objects:objects"}},
	{"go_memstats_heap_released_bytes", "Heap returned to the system.", gauge, []string{"/memory/classes/heap/released:bytes"}},
	{"go_memstats_heap_sys_bytes", "Heap obtained from the system.", gauge,
		[]string{"/memory/classes/heap/objects:bytes", heapUnused, "/memory/classes/heap/released:bytes", heapFree}},
	{"go_memstats_next_gc_bytes", "Heap at which the next collection begins.", gauge, []string{"/gc/heap/goal:bytes"}},
	{"go_memstats_stack_inuse_bytes", "Stacks of goroutines.", gauge, []string{"/memory/classes/heap/stacks:bytes"}},
	{"go_memstats_stack_sys_bytes", "Stacks of goroutines and threads.", gauge, []string{"/memory/classes/heap/stacks:bytes", "/memory/classes/os-stacks:bytes"}},
	{"go_memstats_mspan_inuse_bytes", "Descriptions of spans in use.", gauge, []string{"/memory/classes/metadata/mspan/inuse:bytes"}},
	{"go_memstats_mspan_sys_bytes", "Descriptions of spans.", gauge, []string{"/memory/classes/metadata/mspan/inuse:bytes", "/memory/classes/metadata/mspan/free:bytes"}},
	{"go_memstats_mcache_inuse_bytes", "Caches of threads in use.", gauge, []string{"/memory/classes/metadata/mcache/inuse:bytes"}},
	{"go_memstats_mcache_sys_bytes", "Caches of threads.", gauge, []string{"/memory/classes/metadata/mcache/inuse:bytes", "/memory/classes/metadata/mcache/free:bytes"}},
	{"go_memstats_buck_hash_sys_bytes", "Tables of the profiler.", gauge, []string{"/memory/classes/profiling/buckets:bytes"}},
	{"go_memstats_gc_sys_bytes", "Data of the collector.", gauge, []string{"/memory/classes/metadata/other:bytes"}},
	{"go_memstats_other_sys_bytes", "Other memory of the runtime.", gauge, []string{"/memory/classes/other:bytes"}},
	{"go_memstats_sys_bytes", "Memory obtained from the system.", gauge, []string{"/memory/classes/total:bytes"}},
}

const (
	heapFree   = "/memory/classes/heap/free:bytes"
	heapUnused = "/memory/classes/heap/unused:bytes"
)

// writeRuntime writes the metrics of Go's runtime.
func writeRuntime(e exposition) {
	var samples []metrics.Sample
	for _, f := range runtimeFamilies {
		for _, name := range f.of {
			samples = append(samples, metrics.Sample{Name: name})
		}
	}
	metrics.Read(samples)
	for _, f := range runtimeFamilies {
		var sum uint64
		for range f.of {
			if samples[0].Value.Kind() == metrics.KindUint64 {
				sum += samples[0].Value.Uint64()
			}
			samples = samples[1:]
		}
		single(e, f.name, f.help, f.kind, float64(sum))
	}
	threads, _ := runtime.ThreadCreateProfile(nil)
	single(e, "go_threads", "Threads created.", gauge, float64(threads))
	e.begin("go_info", "Always 1; the label names the release of Go.", gauge)
	e.sample([]string{"version"}, []string{runtime.Version()}, 1)
	e.end()

	gc := debug.GCStats{PauseQuantiles: make([]time.Duration, 5)}
	debug.ReadGCStats(&gc)
	single(e, "go_memstats_last_gc_time_seconds", "When the heap was last collected, since 1970.", gauge, max(0, float64(gc.LastGC.UnixNano())/1e9))
	e.begin("go_gc_duration_seconds", "How long collections stopped the program.", summary)
	pauses := make([]float64, len(gc.PauseQuantiles))
	for i, pause := range gc.PauseQuantiles {
		pauses[i] = pause.Seconds()
	}
	e.quantiles([]float64{0, 0.25, 0.5, 0.75, 1}, pauses, gc.PauseTotal.Seconds(), uint64(gc.NumGC))
	e.end()
}

// processBegan is when the process began, since 1970; 0: the kernel does not tell. Its clock is read once, since
// that takes all of /proc/stat.
var processBegan = sync.OnceValue(func() float64 {
	p, err := procfs.Self()
	if err != nil {
		return 0
	}
	stat, err := p.Stat()
	if err != nil {
		return 0
	}
	began, _ := stat.StartTime()
	return began
})

// writeProcess writes what the kernel knows of the process. What it does not tell is omitted.
func writeProcess(e exposition) {
	p, err := procfs.Self()
	if err != nil {
		return
	}
	if stat, err := p.Stat(); err == nil {
		single(e, "process_cpu_seconds_total", "CPU time of the process.", counter, stat.CPUTime())
		single(e, "process_virtual_memory_bytes", "Virtual memory.", gauge, float64(stat.VirtualMemory()))
		single(e, "process_resident_memory_bytes", "Resident memory.", gauge, float64(stat.ResidentMemory()))
		if began := processBegan(); began > 0 {
			single(e, "process_start_time_seconds", "When the process began, since 1970.", gauge, began)
		}
	}
	if n, err := p.FileDescriptorsLen(); err == nil {
		single(e, "process_open_fds", "Open descriptors.", gauge, float64(n))
	}
	if limits, err := p.Limits(); err == nil {
		single(e, "process_max_fds", "Limit of open descriptors.", gauge, float64(limits.OpenFiles))
		single(e, "process_virtual_memory_max_bytes", "Limit of virtual memory.", gauge, float64(limits.AddressSpace))
	}
	if net, err := p.Netstat(); err == nil {
		for name, v := range map[string]*float64{"receive": net.InOctets, "transmit": net.OutOctets} {
			if v != nil {
				single(e, "process_network_"+name+"_bytes_total", "Bytes of IP in the process's network namespace.", counter, *v)
			}
		}
	}
}
