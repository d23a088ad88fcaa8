package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/peers"
)

// bench is one run of the program.
type bench struct {
	measures  []measure
	repeat    int
	time      time.Duration
	threads   int
	idleFlows int
	tunnels   int
	dir       string
	progress  io.Writer
	begun     int // measurements
}

// contender is a relay with what bounds the flows it can hold here.
type contender struct {
	peers.Relay
	descriptors int  // it needs for each flow
	processes   bool // it has one for each flow
}

// direct is no relay: the clients connect to the target. It shows what the
// load itself takes.
var direct = peers.Relay{Name: "direct", Note: "no relay", Prepare: func(context.Context, string) (peers.Program, error) {
	return peers.Program{}, nil
}}

// forkedFlows is how many flows are asked of a relay that has a process for
// each.
const forkedFlows = 500

// flows is how many flows a contender can hold under this process's limit of
// open files.
func (c contender) flows(asked int) int {
	if c.processes {
		return min(asked, forkedFlows)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		const others = 300                                                   // listeners, logs, pipes
		asked = min(asked, int(limit.Max*9/10-others)/max(1, c.descriptors)) // longhaul sheds from nine tenths on
	}
	return asked
}

// measure is one kind of load and what is read off it.
type measure struct {
	name    string
	title   string
	threads int // 0: as the command line says
	idle    bool
	echo    bool     // latencies are those of one more flow, of 64 bytes there and back
	many    *many    // nil: it is a load
	starts  bool     // what a relay takes until it listens, without a load
	command []string // or one of longhaul's commands, to its end
	place   placement
	load    load
	metrics []metric
}

// metric is a figure of a measure.
type metric struct {
	Name   string  `json:"name"`
	Title  string  `json:"title"`
	Format string  `json:"-"`
	Scale  float64 `json:"-"` // of what is printed to the value
	mean   bool    // of a whole measurement, not its tail
	read   func(s sample) float64
}

// sample is what was observed in one measurement.
type sample struct {
	counted
	elapsed time.Duration
	cpu     time.Duration // of the relay
	flows   int
	before  peers.Usage
	after   peers.Usage
	kernel  int64 // bytes of sockets that came into being: of the relay, the clients and the target
}

var (
	goodput  = metric{"goodput_Bps", "GB/s", "%.2f", 1e-9, true, func(s sample) float64 { return float64(s.bytes) / s.elapsed.Seconds() }}
	cpuPerGB = metric{"cpu_s_per_GB", "CPU s/GB", "%.3f", 1, true, func(s sample) float64 { return s.cpu.Seconds() / float64(s.bytes) * 1e9 }}
	cpuShare = metric{"cpu_s_per_s", "CPU ms/s", "%.1f", 1e3, true, func(s sample) float64 { return s.cpu.Seconds() / s.elapsed.Seconds() }}
	rate     = metric{"per_s", "per second", "%.0f", 1, true, func(s sample) float64 { return float64(s.requests) / s.elapsed.Seconds() }}
	cpuEach  = metric{"cpu_s_each", "CPU µs each", "%.1f", 1e6, true, func(s sample) float64 { return s.cpu.Seconds() / float64(s.requests) }}
	p50      = metric{"p50_s", "p50 µs", "%.1f", 1e6, false, func(s sample) float64 { return s.latency.quantile(0.50).Seconds() }}
	p99      = metric{"p99_s", "p99 µs", "%.1f", 1e6, false, func(s sample) float64 { return s.latency.quantile(0.99).Seconds() }}
	cpuAlone = metric{"cpu_s", "CPU ms", "%.1f", 1e3, true, func(s sample) float64 { return s.cpu.Seconds() }}
	memory   = metric{"memory_B", "MB resident", "%.1f", 1e-6, false, func(s sample) float64 { return float64(s.after.Memory) }}
)

// measures are what is compared at a given number of threads.
var measures = []measure{
	{
		name: "bulk", title: "One flow, as fast as it goes",
		load:    load{clients: 1, reply: endless},
		metrics: []metric{goodput, cpuPerGB},
	},
	{
		name: "bulk16", title: "16 flows, as fast as they go",
		load:    load{clients: 16, reply: endless},
		metrics: []metric{goodput, cpuPerGB},
	},
	{
		name: "connections", title: "New connections, 64 at a time: connect, 64 bytes there and back, the target ends",
		load:    load{clients: 64, reply: requestSize, renew: true},
		metrics: []metric{rate, cpuEach, p50, p99},
	},
	{
		name: "pingpong", title: "64 bytes there and back, one flow, all on one CPU",
		place:   together,
		load:    load{clients: 1, reply: requestSize},
		metrics: []metric{p50, p99, cpuEach},
	},
	{
		name: "pingpong-apart", title: "64 bytes there and back, one flow, the relay on a CPU of its own",
		place:   apart,
		load:    load{clients: 1, reply: requestSize},
		metrics: []metric{p50, p99, cpuEach},
	},
	{
		name: "pingpong100", title: "64 bytes there and back, 100 flows at a time",
		load:    load{clients: 100, reply: requestSize},
		metrics: []metric{rate, p50, p99, cpuEach},
	},
	{
		name: "echo-beside-1000", title: "64 bytes there and back, one flow beside 1000 that get 2000 replies of 64 KiB in a second",
		echo:    true,
		load:    load{clients: 1000, reply: growthReply, rate: 2000},
		metrics: []metric{p50, p99, goodput},
	},
	{
		name: "start", title: "A relay's start, until it listens",
		starts:  true,
		metrics: []metric{cpuAlone},
	},
	{
		name: "status", title: "longhaul status, of a relay that runs",
		command: []string{"status", "--control-socket", controlSocket},
		metrics: []metric{cpuAlone},
	},
	{
		name: "help", title: "longhaul --help",
		command: []string{"--help"},
		metrics: []metric{cpuAlone},
	},
	{
		name: "idle", title: "Idle flows, after 64 bytes there and back",
		idle: true,
		load: load{reply: requestSize, once: true},
		metrics: []metric{
			{"flows", "flows", "%.0f", 1, false, func(s sample) float64 { return float64(s.flows) }},
			memory,
			{"memory_B_per_flow", "kB a flow", "%.2f", 1e-3, false, func(s sample) float64 {
				return float64(s.after.Memory-s.before.Memory) / float64(s.flows)
			}},
			{"kernel_B_per_flow", "kernel's kB a flow", "%.2f", 1e-3, false, func(s sample) float64 {
				return float64(s.kernel) / 2 / float64(s.flows) // clients and target have as many sockets as the relay
			}},
			{"descriptors_per_flow", "descriptors a flow", "%.2f", 1, false, func(s sample) float64 {
				return float64(s.after.Descriptors-s.before.Descriptors) / float64(s.flows)
			}},
		},
	},
}

// run measures everything with every contender in turn, and that repeat
// times, so that a slow minute of the machine falls on all of them.
func (b *bench) run(ctx context.Context, contenders []contender) (*result, error) {
	res := newResult(b)
	var programs []peers.Program
	var installed []contender
	for _, c := range contenders {
		dir := filepath.Join(b.dir, c.Name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		p, err := c.Prepare(ctx, dir)
		if errors.Is(err, peers.ErrMissing) {
			fmt.Fprintf(b.progress, "cost: %s is skipped: %v\n", c.Name, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		installed, programs = append(installed, c), append(programs, p)
		res.addRelay(c.Relay, p)
	}
	runtime.LockOSThread() // which peers.Start asks for
	defer runtime.UnlockOSThread()
	for round := range b.repeat {
		for m, kind := range b.measures {
			for k := range installed {
				i := k
				if round%2 == 1 { // there and back: what comes first, and what it leaves behind, is not always the same
					i = len(installed) - 1 - k
				}
				c := installed[i]
				fmt.Fprintf(b.progress, "\r\x1b[Kround %d of %d: %s, %s", round+1, b.repeat, kind.name, c.Name)
				s, err := b.measure(ctx, c, programs[i], kind)
				if err != nil {
					fmt.Fprintln(b.progress)
					return nil, fmt.Errorf("%s, %s: %w", c.Name, kind.name, err)
				}
				res.add(m, i, kind, s)
			}
		}
	}
	fmt.Fprint(b.progress, "\r\x1b[K")
	return res, nil
}
