package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
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
}

var (
	goodput  = metric{"goodput_Bps", "GB/s", "%.2f", 1e-9, true, func(s sample) float64 { return float64(s.bytes) / s.elapsed.Seconds() }}
	cpuPerGB = metric{"cpu_s_per_GB", "CPU s/GB", "%.3f", 1, true, func(s sample) float64 { return s.cpu.Seconds() / float64(s.bytes) * 1e9 }}
	rate     = metric{"per_s", "per second", "%.0f", 1, true, func(s sample) float64 { return float64(s.requests) / s.elapsed.Seconds() }}
	cpuEach  = metric{"cpu_s_each", "CPU µs each", "%.1f", 1e6, true, func(s sample) float64 { return s.cpu.Seconds() / float64(s.requests) }}
	p50      = metric{"p50_s", "p50 µs", "%.1f", 1e6, false, func(s sample) float64 { return s.latency.quantile(0.50).Seconds() }}
	p99      = metric{"p99_s", "p99 µs", "%.1f", 1e6, false, func(s sample) float64 { return s.latency.quantile(0.99).Seconds() }}
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
		name: "idle", title: "Idle flows, after 64 bytes there and back",
		idle: true,
		load: load{reply: requestSize, once: true},
		metrics: []metric{
			{"flows", "flows", "%.0f", 1, false, func(s sample) float64 { return float64(s.flows) }},
			memory,
			{"memory_B_per_flow", "kB a flow", "%.2f", 1e-3, false, func(s sample) float64 {
				return float64(s.after.Memory-s.before.Memory) / float64(s.flows)
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

const (
	warmUp     = 500 * time.Millisecond // before the counting begins, at most the time of the measurement
	settle     = time.Second            // until an idle relay has tidied up
	answerTime = 30 * time.Second       // for all idle flows to get their reply
)

// measure starts a target and a relay and puts them under one kind of load.
func (b *bench) measure(ctx context.Context, c contender, p peers.Program, kind measure) (s sample, err error) {
	// Addresses of its own for each measurement: connections of the one before
	// linger in TIME_WAIT.
	b.begun++
	host := func(n int) string { return fmt.Sprintf("127.78.%d.%d", b.begun%256, n) }
	listen, target := peers.Address{Host: host(1), Port: 6000}, peers.Address{Host: host(2), Port: 6000}
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	unpin, err := kind.place.pinLoad()
	if err != nil {
		return s, err
	}
	defer unpin()
	server, err := startTarget(ctx, self, target)
	if err != nil {
		return s, err
	}
	defer server.stop()

	var relay *peers.Process
	usage := func() (u peers.Usage, err error) {
		if relay != nil {
			u, err = relay.Usage()
		}
		return u, err
	}
	to := target
	load := kind.load
	if kind.idle {
		load.clients = c.flows(b.idleFlows)
	} else {
		load.clients = c.flows(load.clients)
	}
	if p.Command != nil {
		setup := peers.Setup{Listen: listen, Target: target, Threads: b.threads, MaxFlows: load.clients + 16}
		if kind.threads > 0 {
			setup.Threads = kind.threads
		}
		argv, err := p.Command(filepath.Join(b.dir, c.Name), setup)
		if err != nil {
			return s, err
		}
		if err := kind.place.pinRelay(); err != nil {
			return s, err
		}
		if relay, err = peers.Start(ctx, argv, listen); err != nil {
			return s, err
		}
		if _, err := kind.place.pinLoad(); err != nil {
			return s, err
		}
		defer relay.Kill()
		to = listen
		if c.Watched {
			stop := watch(ctx, listen)
			defer func() {
				if failed := stop(); failed != nil && err == nil {
					err = fmt.Errorf("what it shows could not be had: %w", failed)
				}
			}()
		}
	}
	explain := func(err error) error {
		if err != nil && relay != nil && relay.Gone() {
			return fmt.Errorf("%w; the relay has ended: %v", err, relay)
		}
		return err
	}

	// One connection first, so that what a relay sets up once counts to none.
	first := load
	first.clients, first.once, first.renew, first.reply = 1, true, false, requestSize
	one, err := connect(first, to)
	if err != nil {
		return s, explain(err)
	}
	err = one.untilIdle(answerTime)
	one.close()
	if err != nil {
		return s, explain(err)
	}
	if s.before, err = usage(); err != nil {
		return s, err
	}
	all, err := connect(load, to)
	if err != nil {
		return s, explain(err)
	}
	defer all.close()
	if kind.idle {
		if err := all.untilIdle(answerTime); err != nil {
			return s, explain(err)
		}
		if err := wait(ctx, settle); err != nil {
			return s, err
		}
		s.after, err = usage()
		s.flows = load.clients
		return s, err
	}
	if err := all.run(min(warmUp, b.time)); err != nil {
		return s, explain(err)
	}
	var cpu time.Duration
	if relay != nil {
		if cpu, err = relay.CPU(); err != nil {
			return s, err
		}
	}
	all.counted = counted{}
	begun := time.Now()
	if err := all.run(b.time); err != nil {
		return s, explain(err)
	}
	// On a machine so busy that nothing came in that time, for longer.
	for all.bytes == 0 || load.reply != endless && all.requests == 0 {
		if time.Since(begun) > b.time+answerTime {
			return s, explain(fmt.Errorf("no reply in %v", time.Since(begun)))
		}
		if err := all.run(10 * time.Millisecond); err != nil {
			return s, explain(err)
		}
	}
	s.elapsed = time.Since(begun)
	s.counted = all.counted
	s.flows = load.clients
	if relay != nil {
		now, err := relay.CPU()
		if err != nil {
			return s, err
		}
		s.cpu = now - cpu
	}
	if s.after, err = usage(); err != nil {
		return s, err
	}
	return s, ctx.Err()
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// target is this program as a process that answers.
type target struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func startTarget(ctx context.Context, self string, addr peers.Address) (*target, error) {
	cmd := exec.Command(self, serveCommand, addr.String())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &target{cmd, stdin}
	if err := peers.WaitListening(ctx, addr, nil); err != nil {
		t.stop()
		return nil, fmt.Errorf("start the target: %w", err)
	}
	return t, nil
}

func (t *target) stop() {
	t.stdin.Close()
	t.cmd.Wait()
}
