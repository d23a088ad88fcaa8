package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/measure"
	"longhaul/internal/measure/report"
	"longhaul/internal/remedy"
	"longhaul/internal/units"
)

// measureFlags are the flags of measure.
type measureFlags struct {
	options                          measure.Options
	receive, both, inTurn, json, csv bool
	amount, window, write            string
	pacing, rate                     string
	rateBps                          float64 // of the link; 0 if unknown
	serve                            bool
	tokens, token                    string // files
	port                             uint16
	listen                           string
	duration, omit, reporting        time.Duration
	limits                           measure.Limits // of the server
	maxWindow                        string
}

func newMeasure(env *env) *cobra.Command {
	var f measureFlags
	cmd := &cobra.Command{
		Use:   "measure HOST[:PORT] | --serve",
		Short: "Measure TCP throughput to a host, memory to memory",
		Long: `measure sends data to a server or receives data from it, and prints the
throughput. It speaks iperf3's protocol. The server may be longhaul measure
--serve or iperf3 -s, and iperf3 -c can measure to --serve.`,
		Example: `  longhaul measure --serve
  longhaul measure far.example.net
  longhaul measure far.example.net --receive --streams 4 --time 30s
  longhaul measure far.example.net --congestion-control haul --json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.serve == (len(args) > 0) {
				return usageError(remedy.New(errors.New("longhaul measure needs a host, or --serve"),
					"see longhaul measure --help"))
			}
			if f.serve && f.token != "" {
				return usageError(remedy.New(errors.New("--token is for the client"), "the server takes --tokens"))
			}
			if !f.serve && f.tokens != "" {
				return usageError(remedy.New(errors.New("--tokens is for the server"), "the client takes --token"))
			}
			for _, name := range []string{"max-time", "max-streams", "max-window"} {
				if !f.serve && cmd.Flags().Changed(name) {
					return usageError(remedy.New(fmt.Errorf("--%s is for the server", name),
						"use it with --serve, or leave it out"))
				}
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
	flags.StringVar(&f.tokens, "tokens", "", "with --serve: `FILE` of names and secrets")
	flags.DurationVar(&f.limits.Duration, "max-time", 0, "with --serve: longest test (1m; a day with --tokens)")
	flags.IntVar(&f.limits.Streams, "max-streams", 0, "with --serve: most --streams (64; 128 with --tokens)")
	flags.StringVar(&f.maxWindow, "max-window", "", "with --serve: largest --window, a `SIZE`")
	flags.StringVar(&f.token, "token", "", "`FILE` with a name and secret, for --tokens")
	flags.Uint16Var(&f.port, "port", measure.DefaultPort, "port of the server")
	flags.BoolVar(&f.receive, "receive", false, "have the server send")
	flags.BoolVar(&f.both, "both", false, "send both ways at the same time")
	flags.BoolVar(&f.inTurn, "in-turn", false, "send, then have the server send")
	flags.IntVar(&f.options.Streams, "streams", 1, "connections, each way")
	flags.DurationVar(&f.duration, "time", 10*time.Second, "duration, in whole seconds")
	flags.StringVar(&f.amount, "bytes", "", "data to send instead, a `SIZE` like 1GiB")
	flags.DurationVar(&f.omit, "omit", 0, "start to leave out, in whole seconds")
	flags.DurationVar(&f.reporting, "interval", time.Second, "time between two lines")
	flags.DurationVar(&f.options.Patience, "timeout", 15*time.Second, "wait for the server's answer")
	flags.StringVar(&f.window, "window", "", "socket buffers of both sides, a `SIZE`")
	flags.StringVar(&f.write, "write", "128KiB", "`SIZE` of each write")
	flags.IntVar(&f.options.MSS, "mss", 0, "largest segment, `BYTES`")
	flags.StringVar(&f.pacing, "pacing-rate", "", "maximum `RATE` of each stream")
	flags.StringVar(&f.options.CongestionControl, "congestion-control", "", "a `NAME` of longhaul cc list")
	flags.BoolVar(&f.options.NoDelay, "no-delay", false, "send small writes at once")
	flags.StringVar(&f.rate, "rate", "", "the link's `RATE`, to print the share reached")
	flags.BoolVar(&f.json, "json", false, "print one JSON object, under iperf3's names")
	flags.BoolVar(&f.csv, "csv", false, "print a line of values per interval and stream")
	return cmd
}

// readSize parses a flag that is a size, unless it is empty.
func readSize(text, flag string, into *int64) error {
	if text == "" {
		return nil
	}
	n, err := units.ParseSize(text)
	if err != nil {
		return remedy.New(fmt.Errorf("--%s: %w", flag, err), "write it like 1GiB")
	}
	*into = int64(n)
	return nil
}

// complete parses the flags that are text.
func (f *measureFlags) complete(cmd *cobra.Command) error {
	var window, write int64
	err := errors.Join(readSize(f.amount, "bytes", &f.options.Bytes), readSize(f.window, "window", &window), readSize(f.write, "write", &write))
	if err != nil {
		return err
	}
	f.options.WindowBytes, f.options.WriteBytes = int(window), int(write)
	rate := func(text, flag string, into *units.Rate) error {
		if text == "" {
			return nil
		}
		var err error
		if *into, err = units.ParseRate(text); err != nil {
			return remedy.New(fmt.Errorf("--%s: %w", flag, err), "write it like 200Mbit")
		}
		return nil
	}
	var pacing, link units.Rate
	if err := errors.Join(rate(f.pacing, "pacing-rate", &pacing), rate(f.rate, "rate", &link)); err != nil {
		return err
	}
	f.options.PacingBps, f.rateBps = int64(pacing), float64(link)
	f.options.Duration, f.options.Omit, f.options.Interval = f.duration, f.omit, f.reporting
	switch {
	case f.options.Bytes > 0 && cmd.Flags().Changed("time"):
		return remedy.New(errors.New("a test ends after --time or --bytes, not both"), "leave one of them out")
	case f.options.Bytes > 0:
		f.options.Duration = 0
	case f.options.Duration == 0:
		return errors.New("--time 0s measures nothing")
	}
	switch {
	case f.receive && f.both:
		return remedy.New(errors.New("choose one of --receive and --both"), "leave one of them out")
	case f.inTurn && (f.receive || f.both):
		return remedy.New(errors.New("--in-turn already measures both ways"), "leave --receive and --both out")
	case f.receive:
		f.options.Direction = measure.Receive
	case f.both:
		f.options.Direction = measure.Both
	}
	if f.json && f.csv {
		return remedy.New(errors.New("choose one of --json and --csv"), "leave one of them out")
	}
	if f.reporting < 100*time.Millisecond {
		return fmt.Errorf("--interval %v is too short: use 100ms or more", f.reporting)
	}
	return f.options.Check()
}

// readToken reads a client's token; it returns none without a file.
func readToken(path string) (measure.Token, error) {
	if path == "" {
		return measure.Token{}, nil
	}
	tokens, err := measure.ReadTokenFile(path)
	if err != nil {
		return measure.Token{}, usageError(err)
	}
	if len(tokens) > 1 {
		return measure.Token{}, usageError(remedy.New(fmt.Errorf("%s has %d tokens, a client has one", path,
			len(tokens)),
			"keep one of them"))
	}
	return tokens[0], nil
}

// address adds the port to a host without one.
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
		return remedy.New(fmt.Errorf("this kernel has no congestion control %s", name),
			"longhaul cc load loads haul, hybla, illinois and brutal; see longhaul cc list")
	}
	var err error
	if f.options.Token, err = readToken(f.token); err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	address := f.address(host)
	out := f.writer(env.stdout)
	var terminal io.Writer = io.Discard // unless someone watches
	if display.IsTerminal(env.stderr) {
		terminal = display.Raw(env.stderr)
	}
	clearLine := func() { fmt.Fprint(terminal, "\r\x1b[K") }
	f.options.Version = version()
	directions := []measure.Direction{f.options.Direction}
	if f.inTurn {
		directions = []measure.Direction{measure.Send, measure.Receive}
	}
	for _, f.options.Direction = range directions {
		progress := report.NewProgress(f.options)
		f.options.Report = func(i measure.Interval) {
			share := progress.Share(i)
			clearLine()
			out.Interval(i, share)
			fmt.Fprintf(terminal, "\r%s %3.0f %%\x1b[K", display.Bar(share), 100*share)
		}
		summary, err := measure.Run(ctx, address, f.options)
		clearLine()
		if err != nil && ctx.Err() != nil {
			return errors.New("interrupted before the end: no result")
		}
		if err != nil {
			return explainMeasure(address, err)
		}
		if err := out.Summary(summary); err != nil {
			return err
		}
	}
	return nil
}

// writer returns the writer for the results' format.
func (f *measureFlags) writer(w io.Writer) report.Writer {
	switch {
	case f.json:
		return report.NewJSON(w, f.rateBps)
	case f.csv:
		return report.NewCSV(w)
	}
	return report.NewText(w, f.reporting, f.rateBps)
}

// explainMeasure adds the hint to a test's error.
func explainMeasure(address string, err error) error {
	explained := measure.Explain(address, err)
	if hint := measure.Hint(err); hint != "" {
		return remedy.New(explained, hint)
	}
	return explained
}
