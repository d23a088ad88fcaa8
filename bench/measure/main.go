// Command measure holds longhaul measure against iperf3 on the same paths, in
// turn: what goodput each finds, and what processor time it takes for it.
//
//	go run ./bench/measure --markdown
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/lab/sandbox"
)

func main() { kit.Command("measure", run) }

// bench is what is run.
type bench struct {
	repeat, seconds int
	dir             string
	tools           []tool
	progress        io.Writer
}

// tool is a program that measures.
type tool struct {
	name           string
	server, client func(seconds int) []string
}

const port = 5201

func tools(binary, iperf3 string) []tool {
	host := lab.HostB.String()
	return []tool{
		{"longhaul",
			func(int) []string { return []string{binary, "measure", "--serve", "--port", strconv.Itoa(port)} },
			func(seconds int) []string {
				return []string{binary, "measure", host, "--json", "--time", fmt.Sprintf("%ds", seconds)}
			}},
		{"iperf3",
			func(int) []string { return []string{iperf3, "-s", "-p", strconv.Itoa(port)} },
			func(seconds int) []string { return []string{iperf3, "-c", host, "-J", "-t", strconv.Itoa(seconds)} }},
	}
}

// path is what a test goes over.
type path struct {
	name     string
	topology lab.Topology
}

func paths() []path {
	wan := func(rateBps int64, rtt time.Duration) lab.Topology {
		return lab.TwoSites(lab.Conditions{RTT: rtt, RateBps: rateBps, QueueBDP: 1, MTUAB: 1500, MTUBA: 1500, LANMTU: 1500, Seed: 1})
	}
	end := func(host string, address netip.Addr) lab.Endpoint {
		return lab.Endpoint{Host: host, Device: "lan", Addresses: []netip.Prefix{netip.PrefixFrom(address, 8)}}
	}
	cable := lab.Topology{
		Hosts:  []lab.HostSpec{{Name: "host-a", Address: lab.HostA}, {Name: "host-b", Address: lab.HostB}},
		Cables: []lab.Cable{{A: end("host-a", lab.HostA), B: end("host-b", lab.HostB), MTU: 1500}},
	}
	for i := range cable.Hosts {
		cable.Hosts[i].TCP.CongestionControl = "cubic"
	}
	return []path{
		{"100 Mb/s, 20 ms", wan(100e6, 20*time.Millisecond)},
		{"1 Gb/s, 10 ms", wan(1e9, 10*time.Millisecond)},
		{"a cable", cable},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("measure", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON")
	asMarkdown := flags.Bool("markdown", false, "print a Markdown table")
	only := flags.String("paths", "", "comma-separated numbers of the paths to run, from 1 (default all)")
	var b bench
	flags.IntVar(&b.repeat, "repeat", 5, "runs of everything; the table shows the median, the least and the most")
	flags.IntVar(&b.seconds, "time", 10, "`SECONDS` of one run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unknown argument %q; see --help", flags.Arg(0))
	case b.repeat < 1 || b.seconds < 1:
		return errors.New("--repeat and --time take 1 or more")
	}
	numbered := map[string]path{}
	var numbers []string
	for i, p := range paths() {
		numbers = append(numbers, strconv.Itoa(i+1))
		numbered[numbers[i]] = p
	}
	chosen, err := flagvalue.Choose("path", numbers, flagvalue.Names(*only), func(n string) string { return n })
	if err != nil {
		return err
	}
	if !sandbox.Inside() {
		if err := peers.Fetch(ctx); err != nil {
			return err
		}
		return kit.InSandbox(args, stdout, stderr)
	}
	iperf3, err := exec.LookPath("iperf3")
	if err != nil {
		return fmt.Errorf("iperf3 is not installed (Debian package iperf3)")
	}
	if b.dir, err = os.MkdirTemp("", "longhaul-measure-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	binary := filepath.Join(b.dir, "longhaul")
	if err := kit.Build(ctx, binary); err != nil {
		return err
	}
	b.tools, b.progress = tools(binary, iperf3), stderr
	r := result{Kernel: peers.KernelVersion(), CPUs: runtime.NumCPU(), Repeat: b.repeat, Seconds: b.seconds}
	for _, number := range chosen {
		rows, err := b.path(ctx, numbered[number])
		if err != nil {
			return fmt.Errorf("%s: %w", numbered[number].name, err)
		}
		r.Rows = append(r.Rows, rows...)
	}
	switch {
	case *asJSON:
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	case *asMarkdown:
		return r.write(stdout, "| ", " | ", " |", "|---|---|---|---|---|\n")
	}
	return r.write(tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0), "", "\t", "", "")
}

// path runs every tool on a path, in turn, as often as is asked for.
func (b *bench) path(ctx context.Context, p path) ([]row, error) {
	l, err := lab.Build(p.topology)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	rows := make([]row, len(b.tools))
	for round := range b.repeat {
		for i, t := range b.tools {
			one, err := b.once(ctx, l, t)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.name, err)
			}
			fmt.Fprintf(b.progress, "%s, %s %d/%d: %.1f Mb/s\n", p.name, t.name, round+1, b.repeat, one.goodputBps/1e6)
			rows[i].Path, rows[i].Tool = p.name, t.name
			rows[i].GoodputMbps = append(rows[i].GoodputMbps, one.goodputBps/1e6)
			rows[i].ClientCPU = append(rows[i].ClientCPU, one.clientCPU.Seconds()/one.gigabytes)
			rows[i].ServerCPU = append(rows[i].ServerCPU, one.serverCPU.Seconds()/one.gigabytes)
		}
	}
	return rows, nil
}

// outcome is that of one run. The processor time is the whole life of the
// processes, with their start.
type outcome struct {
	goodputBps, gigabytes float64
	clientCPU, serverCPU  time.Duration
}

func (b *bench) once(ctx context.Context, l *lab.Lab, t tool) (o outcome, err error) {
	// What is started is killed at the end of its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	argv := t.server(b.seconds)
	server := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := l.Host("host-b").Start(server); err != nil {
		return o, err
	}
	if err := listens(ctx, l.Host("host-b")); err != nil {
		_ = server.Process.Kill()
		_ = server.Wait()
		return o, fmt.Errorf("%w\n%s", err, &said)
	}
	argv = t.client(b.seconds)
	client := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out bytes.Buffer
	client.Stdout, client.Stderr = &out, &said
	err = l.Host("host-a").Start(client)
	if err == nil {
		err = client.Wait()
	}
	_ = server.Process.Signal(os.Interrupt)
	_ = server.Wait() // iperf3 has its own view of an interrupt's status
	if err != nil {
		return o, fmt.Errorf("%w\n%s%s", err, &said, &out)
	}
	var told struct {
		End struct {
			Sum struct {
				Bytes         float64
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &told); err != nil {
		return o, err
	}
	if told.End.Sum.Bytes == 0 {
		return o, fmt.Errorf("nothing arrived\n%s", &out)
	}
	used := func(c *exec.Cmd) time.Duration { return c.ProcessState.UserTime() + c.ProcessState.SystemTime() }
	return outcome{told.End.Sum.BitsPerSecond, told.End.Sum.Bytes / 1e9, used(client), used(server)}, nil
}

// listens waits until somebody listens on the port: a trial connection would be
// taken for a client.
func listens(ctx context.Context, h *hosts.Host) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(10 * time.Second)
	want := fmt.Sprintf(":%04X", port)
	for {
		up := false
		err := h.Do(func() error {
			for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
				text, err := os.ReadFile(table)
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
				for line := range strings.Lines(string(text)) {
					const listening = "0A"
					f := strings.Fields(line)
					up = up || len(f) > 3 && strings.HasSuffix(f[1], want) && f[3] == listening
				}
			}
			return nil
		})
		if err != nil || up {
			return err
		}
		select {
		case <-poll.C:
		case <-deadline:
			return errors.New("the server does not listen")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// result is what the program prints as JSON.
type result struct {
	Kernel  string `json:"kernel"`
	CPUs    int    `json:"cpus"`
	Repeat  int    `json:"repeat"`
	Seconds int    `json:"seconds"`
	Rows    []row  `json:"rows"`
}

// row holds the values of a tool on a path, one of each run.
type row struct {
	Path        string    `json:"path"`
	Tool        string    `json:"tool"`
	GoodputMbps []float64 `json:"goodput_mbps"`
	ClientCPU   []float64 `json:"client_cpu_seconds_per_gb"`
	ServerCPU   []float64 `json:"server_cpu_seconds_per_gb"`
}

func (r result) write(w io.Writer, begin, between, end, rule string) error {
	line := func(cells ...string) { fmt.Fprintln(w, begin+strings.Join(cells, between)+end) }
	line("path", "tool", "goodput, Mb/s", "client, CPU s/GB", "server, CPU s/GB")
	fmt.Fprint(w, rule)
	for _, one := range r.Rows {
		line(one.Path, one.Tool, spread(one.GoodputMbps, "%.1f"), spread(one.ClientCPU, "%.3f"), spread(one.ServerCPU, "%.3f"))
	}
	if t, ok := w.(*tabwriter.Writer); ok {
		return t.Flush()
	}
	return nil
}

// spread is the median, the least and the most.
func spread(values []float64, format string) string {
	sorted := slices.Sorted(slices.Values(values))
	return fmt.Sprintf(format+" ("+format+"–"+format+")", stats.At(sorted, 0.5), sorted[0], sorted[len(sorted)-1])
}
