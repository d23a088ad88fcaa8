package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/config"
	"longhaul/internal/measure"
)

// measureFlags are what the client was asked to do.
type measureFlags struct {
	options                   measure.Options
	receive, both, json       bool
	amount, window, write     string
	pacing                    string
	serve                     bool
	port                      uint16
	listen                    string
	duration, omit, reporting time.Duration
}

func newMeasure(env *env) *cobra.Command {
	var f measureFlags
	cmd := &cobra.Command{
		Use:   "measure HOST[:PORT] | --serve",
		Short: "Measure TCP throughput to a host, memory to memory",
		Long: `measure sends data to a server, or has it send some, and tells what arrived. It
speaks iperf3's protocol: the server may be longhaul measure --serve or an
ordinary iperf3 -s, and an ordinary iperf3 -c measures to --serve.`,
		Example: `  longhaul measure --serve
  longhaul measure far.example.net
  longhaul measure far.example.net --receive --streams 4 --time 30s
  longhaul measure far.example.net --congestion-control haul --json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.serve == (len(args) > 0) {
				return usageError(&hintError{errors.New("longhaul measure wants a host, or --serve"), "see longhaul measure --help"})
			}
			if f.serve {
				return f.runServer(cmd, env)
			}
			if len(args) > 1 {
				return exactArgs(1, "one host")(cmd, args)
			}
			return f.runClient(cmd, env, args[0])
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.serve, "serve", false, "be the server, one test at a time")
	flags.StringVar(&f.listen, "listen", "", "with --serve: `ADDRESS` to listen on (all)")
	flags.Uint16Var(&f.port, "port", measure.DefaultPort, "the server's port")
	flags.BoolVar(&f.receive, "receive", false, "have the server send")
	flags.BoolVar(&f.both, "both", false, "send both ways at once")
	flags.IntVar(&f.options.Streams, "streams", 1, "connections, each way")
	flags.DurationVar(&f.duration, "time", 10*time.Second, "how long, in whole seconds")
	flags.StringVar(&f.amount, "bytes", "", "how much to send instead, a `SIZE` like 1GiB")
	flags.DurationVar(&f.omit, "omit", 0, "start that does not count, whole seconds")
	flags.DurationVar(&f.reporting, "interval", time.Second, "time between two lines")
	flags.StringVar(&f.window, "window", "", "socket buffers of both sides, a `SIZE`")
	flags.StringVar(&f.write, "write", "128KiB", "`SIZE` of each write")
	flags.IntVar(&f.options.MSS, "mss", 0, "largest segment, `BYTES`")
	flags.StringVar(&f.pacing, "pacing-rate", "", "`RATE` that each stream keeps below")
	flags.StringVar(&f.options.CongestionControl, "congestion-control", "", "a `NAME` of longhaul cc list")
	flags.BoolVar(&f.options.NoDelay, "no-delay", false, "send small writes at once")
	flags.BoolVar(&f.json, "json", false, "print one JSON object, under iperf3's names")
	return cmd
}

// complete reads the flags that are text.
func (f *measureFlags) complete(cmd *cobra.Command) error {
	size := func(text, flag string, into *int64) error {
		if text == "" {
			return nil
		}
		n, err := config.ParseSize(text)
		if err != nil {
			return &hintError{fmt.Errorf("--%s: %w", flag, err), "write it like 1GiB"}
		}
		*into = int64(n)
		return nil
	}
	var window, write int64
	err := errors.Join(size(f.amount, "bytes", &f.options.Bytes), size(f.window, "window", &window), size(f.write, "write", &write))
	if err != nil {
		return err
	}
	f.options.WindowBytes, f.options.WriteBytes = int(window), int(write)
	if f.pacing != "" {
		rate, err := config.ParseRate(f.pacing)
		if err != nil {
			return &hintError{fmt.Errorf("--pacing-rate: %w", err), "write it like 200Mbit"}
		}
		f.options.PacingBps = int64(rate)
	}
	f.options.Duration, f.options.Omit, f.options.Interval = f.duration, f.omit, f.reporting
	switch {
	case f.options.Bytes > 0 && cmd.Flags().Changed("time"):
		return &hintError{errors.New("a test ends after --time or --bytes, not both"), "leave one of them out"}
	case f.options.Bytes > 0:
		f.options.Duration = 0
	case f.options.Duration == 0:
		return errors.New("--time 0s measures nothing")
	}
	switch {
	case f.receive && f.both:
		return &hintError{errors.New("--receive is one way, and --both is two"), "leave one of them out"}
	case f.receive:
		f.options.Direction = measure.Receive
	case f.both:
		f.options.Direction = measure.Both
	}
	if f.reporting < 100*time.Millisecond {
		return fmt.Errorf("--interval %v is too short: use 100ms or more", f.reporting)
	}
	return f.options.Check()
}

// address adds the port to a host that has none.
func (f *measureFlags) address(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(int(f.port)))
}

func (f *measureFlags) runClient(cmd *cobra.Command, env *env, host string) error {
	if err := f.complete(cmd); err != nil {
		return usageError(err)
	}
	if name := f.options.CongestionControl; name != "" && f.options.Direction != measure.Receive && !isAvailable(name) {
		return &hintError{fmt.Errorf("this kernel has no congestion control %s", name), "longhaul cc load brings haul, hybla, illinois and brutal; see longhaul cc list"}
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	address := f.address(host)
	var intervals []measure.Interval
	f.options.Version = "longhaul " + version()
	f.options.Report = func(i measure.Interval) {
		if f.json {
			intervals = append(intervals, i)
			return
		}
		if i.End-i.Start > f.reporting/10 { // else it is what was left at the end
			writeInterval(env.stdout, i)
		}
	}
	summary, err := measure.Run(ctx, address, f.options)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted before the end: nothing was counted")
	case errors.Is(err, measure.ErrBusy):
		return &hintError{fmt.Errorf("%s: %w", address, err), "try again when it has ended"}
	case err != nil:
		return &hintError{measure.Explain(address, err), "is longhaul measure --serve, or iperf3 -s, running there, and the port open?"}
	}
	if f.json {
		encoder := json.NewEncoder(env.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(measureJSON(summary, intervals, version()))
	}
	writeSummary(env.stdout, summary)
	return nil
}

// writeInterval prints a line for each direction of an interval.
func writeInterval(w io.Writer, i measure.Interval) {
	for _, sends := range []bool{true, false} {
		var bytes, retransmits, cwnd int64
		var rtt time.Duration
		streams := 0
		for _, s := range i.Streams {
			if s.Sends != sends {
				continue
			}
			streams++
			bytes += s.Bytes
			retransmits += max(s.Retransmits, 0)
			cwnd += max(s.Sample.CwndBytes, 0)
			rtt = max(rtt, s.Sample.RTT)
		}
		if streams == 0 {
			continue
		}
		way := "received"
		if sends {
			way = "sent"
		}
		fmt.Fprintf(w, "%6.1f-%-6.1f s  %-8s  %10s", i.Start.Seconds(), i.End.Seconds(), way,
			bitsPerSecond(float64(bytes)*8/(i.End-i.Start).Seconds()))
		if sends {
			fmt.Fprintf(w, "  %5d again  window %-7s  RTT %.1f ms", retransmits, quantity(cwnd), milliseconds(rtt))
		}
		if i.Omitted {
			fmt.Fprint(w, "  (start)")
		}
		fmt.Fprintln(w)
	}
}

// writeSummary prints what counts.
func writeSummary(w io.Writer, s measure.Summary) {
	fmt.Fprintln(w)
	for _, sends := range []bool{true, false} {
		var sent, arrived, again int64
		streams := 0
		var sample measure.Sample
		for _, st := range s.Streams {
			if st.Sends == sends {
				streams++
				sent, arrived, again = sent+st.SentBytes, arrived+st.ReceivedBytes, again+max(st.Retransmits, 0)
				sample = st.Sample
			}
		}
		if streams == 0 {
			continue
		}
		way, bps := "received", s.RecvBps
		if sends {
			way, bps = "sent", s.SentBps
		}
		fmt.Fprintf(w, "%s %s in %.1f s over %s: %s\n", way, quantity(arrived)+"B", s.Elapsed.Seconds(), plural(streams, "stream"), bitsPerSecond(bps))
		fmt.Fprintf(w, "  %d segments again", again)
		if sends && sample.MinRTT > 0 {
			fmt.Fprintf(w, ", RTT %.1f ms (least %.1f), MSS %d, path MTU %d, %s", milliseconds(sample.RTT), milliseconds(sample.MinRTT), sample.MSS, sample.PMTU, sample.CongestionControl)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "CPU: %.0f %% here, %.0f %% there\n", s.LocalCPU, s.RemoteCPU)
}

func (f *measureFlags) runServer(cmd *cobra.Command, env *env) error {
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(f.listen, strconv.Itoa(int(f.port))))
	if err != nil {
		return &hintError{fmt.Errorf("cannot listen: %w", err), "choose another port with --port; an iperf3 -s may have this one"}
	}
	fmt.Fprintf(env.stderr, "serving tests on %s\n", l.Addr())
	server := &measure.Server{
		Version: "longhaul " + version(),
		Started: func(client net.Addr, p measure.Parameters) {
			fmt.Fprintf(env.stderr, "test from %s: %s, %d s\n", client, plural(p.Parallel, "stream"), p.Time)
		},
		Ended: func(client net.Addr, _ measure.Parameters, err error) {
			if err != nil {
				fmt.Fprintf(env.stderr, "longhaul: the test from %s failed: %v\n", client, err)
			}
		},
	}
	return server.Serve(ctx, l)
}
