package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/find/measure"
	"longhaul/internal/find/measure/report"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// measureFlags are the flags of measure.
type measureFlags struct {
	options                          measure.Options
	client                           string // the server's host, as an iperf3 client names it
	receive, both, inTurn, json, csv bool
	amount, window, write            string
	pacing, rate                     string
	rateBps                          float64 // of the link; 0 if unknown
	serve                            bool
	tokens, token                    string // files
	port                             uint16
	listen                           string
	namespace                        string
	duration, omit, reporting        time.Duration
	limits                           measure.Limits // of the server
	maxWindow                        string
}

// serverFlags are those that a server takes alone, and commonFlags those that both take.
var (
	serverFlags = []string{"listen", "tokens", "max-time", "max-streams", "max-window"}
	commonFlags = []string{"serve", "port", "netns", "help"}
)

func newMeasure(env *env) *cobra.Command {
	var f measureFlags
	cmd := &cobra.Command{
		Use:   "measure HOST[:PORT] | --serve",
		Short: "Measure TCP throughput to a host, memory to memory",
		Long: `measure sends data to a server or receives data from it, and prints the
throughput. It speaks iperf3's protocol. The server may be longhaul measure
--serve or iperf3 -s, and iperf3 -c can measure to --serve. The flags with a
letter mean the same as iperf3's.

Ctrl-C ends a test and prints what was counted until then; the exit status is 1.
A SIZE is 128KiB, 128K (the same, as in iperf3) or 128kB (128000 bytes).`,
		Example: `  longhaul measure --serve
  longhaul measure far.example.net
  longhaul measure far.example.net --receive --streams 4 --time 30s
  longhaul measure -c far.example.net -R -P 4 -t 30 -w 256K -J`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.client != "" {
				args = append(args, f.client)
			}
			switch {
			case f.serve && len(args) > 0:
				return usageError(remedy.New(fmt.Errorf("choose one of a host to measure to, %s, and --serve", args[0]),
					"a server takes --listen ADDRESS[:PORT]"))
			case f.serve:
				if err := refuseFlags(cmd, "client", func(name string) bool {
					return slices.Contains(serverFlags, name) || slices.Contains(commonFlags, name)
				}); err != nil {
					return err
				}
				return f.runServer(cmd, env)
			case len(args) == 0:
				return usageError(remedy.New(errors.New("longhaul measure needs a host, or --serve"),
					"name the host where longhaul measure --serve or iperf3 -s runs"))
			case len(args) > 1:
				return usageError(remedy.New(fmt.Errorf("longhaul measure takes one host, got %s", strings.Join(args, " and ")),
					"measure to them one after the other"))
			}
			if err := refuseFlags(cmd, "server", func(name string) bool { return !slices.Contains(serverFlags, name) }); err != nil {
				return err
			}
			return f.runClient(cmd, env, args[0])
		},
	}
	flags := pflag.NewFlagSet("measure", pflag.ContinueOnError)
	flags.BoolVar(&f.serve, "serve", false, "be the server, one test at a time")
	flags.StringVar(&f.listen, "listen", "", "with --serve: `ADDRESS[:PORT]` to listen on (all)")
	flags.StringVar(&f.tokens, "tokens", "", "with --serve: `FILE` of names and secrets")
	flagvalue.AddDuration(flags, &f.limits.Duration, "max-time", "with --serve: longest test (1m; a day with --tokens)")
	flags.IntVar(&f.limits.Streams, "max-streams", 0, "with --serve: at most `N` streams each way (64; 128 with --tokens)")
	flags.StringVar(&f.maxWindow, "max-window", "", "with --serve: largest --window, a `SIZE`")
	flags.StringVar(&f.client, "client", "", "`HOST[:PORT]` to measure to, the same as the argument")
	flags.StringVar(&f.token, "token", "", "`FILE` with a name and secret, for --tokens")
	flags.Uint16Var(&f.port, "port", measure.DefaultPort, "TCP `PORT` of the server")
	flags.BoolVar(&f.receive, "receive", false, "have the server send")
	flags.BoolVar(&f.both, "both", false, "send both ways at the same time")
	flags.BoolVar(&f.inTurn, "in-turn", false, "send, then have the server send")
	flags.IntVar(&f.options.Streams, "streams", 1, "`N` connections, each way")
	f.duration, f.reporting, f.options.Patience = 10*time.Second, time.Second, 15*time.Second
	flagvalue.AddDuration(flags, &f.duration, "time", "how long to send, in whole seconds")
	flags.StringVar(&f.amount, "bytes", "", "data to send instead, a `SIZE` like 1GiB (none)")
	flagvalue.AddDuration(flags, &f.omit, "omit", "start to leave out, in whole seconds")
	flagvalue.AddDuration(flags, &f.reporting, "interval", "from one line to the next; 0 prints none")
	flagvalue.AddDuration(flags, &f.options.Patience, "timeout", "longest wait for the server's answer")
	flags.StringVar(&f.window, "window", "", "socket buffers of both sides, a `SIZE`")
	flags.StringVar(&f.write, "write", "128KiB", "`SIZE` of each write")
	flags.IntVar(&f.options.MSS, "mss", 0, "largest segment, `BYTES`")
	flags.StringVar(&f.pacing, "pacing-rate", "", "maximum `RATE` of each stream, like 200Mbit or 200M (no bound)")
	flags.StringVar(&f.options.CongestionControl, "cc", "", "congestion control, a `NAME` of longhaul cc list (the system's)")
	flags.BoolVar(&f.options.NoDelay, "no-delay", false, "send small writes at once")
	flags.StringVar(&f.rate, "rate", "", "the link's `RATE`, to print the share reached (unknown)")
	flags.BoolVar(&f.json, "json", false, "print one JSON object, under iperf3's names")
	flags.BoolVar(&f.csv, "csv", false, "print a line of values per interval and stream")
	namespaceFlag(flags, &f.namespace)
	addWithLetters(cmd, flags)
	cmd.SetFlagErrorFunc(explainFlag)
	return cmd
}

// refuseFlags refuses the flags that only the other side of a test takes.
func refuseFlags(cmd *cobra.Command, side string, fits func(name string) bool) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if err == nil && !fits(flag.Name) {
			fix := "use it with --serve, or leave it out"
			switch {
			case flag.Name == "token":
				fix = "the server takes --tokens"
			case flag.Name == "tokens":
				fix = "the client takes --token"
			case side == "client":
				fix = "leave it out: the client chooses the test"
			}
			err = usageError(remedy.New(fmt.Errorf("--%s is for the %s", flag.Name, side), fix))
		}
	})
	return err
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

// readRate parses a flag that is a rate, unless it is empty. Like iperf3 it takes the
// letter of a unit alone, and a bare number of bits per second.
func readRate(text, flag string, into *units.Rate) (err error) {
	if text == "" {
		return nil
	}
	full := text
	if strings.Trim(strings.TrimRight(text, "kmgtKMGT"), "0123456789.") == "" {
		full += "bit"
	}
	if *into, err = units.ParseRate(full); err != nil {
		if !errors.Is(err, units.ErrByteRate) {
			err = fmt.Errorf("invalid rate %q", text)
		}
		return remedy.New(fmt.Errorf("--%s: %w", flag, err), "write it like 200Mbit")
	}
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
	var pacing, link units.Rate
	if err := errors.Join(readRate(f.pacing, "pacing-rate", &pacing), readRate(f.rate, "rate", &link)); err != nil {
		return err
	}
	f.options.PacingBps, f.rateBps = int64(pacing), float64(link)
	f.options.Duration, f.options.Omit, f.options.Interval = f.duration, f.omit, f.reporting
	for name, zero := range map[string]bool{"streams": f.options.Streams == 0, "bytes": f.options.Bytes == 0, "write": write == 0, "mss": f.options.MSS == 0} {
		if zero && cmd.Flags().Changed(name) {
			return remedy.New(fmt.Errorf("--%s 0 measures nothing", name), "leave it out for the default")
		}
	}
	switch {
	case f.options.Bytes > 0 && cmd.Flags().Changed("time"):
		return remedy.New(errors.New("a test ends after --time or --bytes, not both"), "leave one of them out")
	case f.options.Bytes > 0:
		f.options.Duration = 0
	case f.options.Duration == 0:
		return remedy.New(errors.New("--time 0 measures nothing"), "give a long time, such as 1h: Ctrl-C ends the test and prints its figures")
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
	switch {
	case f.reporting == 0:
		f.options.Interval = time.Second // of the bar
	case f.reporting < 100*time.Millisecond:
		return remedy.New(fmt.Errorf("--interval %v is too short", f.reporting), "use 100ms or more, or 0 for no lines")
	}
	if err := f.options.Check(); err != nil {
		return remedy.New(err, "see longhaul measure --help")
	}
	return nil
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

// address returns HOST:PORT of an argument HOST[:PORT].
func (f *measureFlags) address(cmd *cobra.Command, argument string) (string, error) {
	host, port, err := net.SplitHostPort(argument)
	if err != nil { // no port
		host, port = argument, strconv.Itoa(int(f.port))
		if inner, ok := strings.CutPrefix(argument, "["); ok && strings.HasSuffix(inner, "]") {
			host = inner[:len(inner)-1]
		}
	} else if cmd.Flags().Changed("port") && port != strconv.Itoa(int(f.port)) {
		return "", remedy.New(fmt.Errorf("two ports: %s and --port %d", argument, f.port), "leave one of them out")
	}
	if host == "" || strings.ContainsAny(host, "[] /") {
		return "", remedy.New(fmt.Errorf("no host in %q", argument), "write it like far.example.net, 203.0.113.9:5201 or [2001:db8::9]:5201")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", remedy.New(fmt.Errorf("invalid port %q in %q", port, argument), "use 1 to 65535")
	}
	return net.JoinHostPort(host, port), nil
}

func (f *measureFlags) runClient(cmd *cobra.Command, env *env, host string) error {
	if err := f.complete(cmd); err != nil {
		return usageError(err)
	}
	address, err := f.address(cmd, host)
	if err != nil {
		return usageError(err)
	}
	if err := restartInNamespace(f.namespace); err != nil {
		return err
	}
	if name := f.options.CongestionControl; name != "" && f.options.Direction != measure.Receive && !isAvailable(name) {
		return remedy.New(fmt.Errorf("this kernel has no congestion control %s", name),
			"longhaul cc load loads haul, bbr3, hybla, illinois and brutal; see longhaul cc list")
	}
	if f.options.Token, err = readToken(f.token); err != nil {
		return err
	}
	interrupt, stop := untilSignal(cmd.Context())
	defer stop()
	context.AfterFunc(interrupt, stop) // a second signal ends the process
	out := f.writer(env.stdout)
	var terminal io.Writer = io.Discard // unless someone watches
	if display.IsTerminal(env.stderr) {
		terminal = display.Raw(env.stderr)
	}
	clearLine := func() { fmt.Fprint(terminal, "\r\x1b[K") }
	f.options.Version, f.options.Interrupt = version(), interrupt.Done()
	directions := []measure.Direction{f.options.Direction}
	if f.inTurn {
		directions = []measure.Direction{measure.Send, measure.Receive}
	}
	for _, f.options.Direction = range directions {
		progress := report.NewProgress(f.options)
		f.options.Report = func(i measure.Interval) {
			share := progress.Share(i)
			clearLine()
			if f.reporting > 0 {
				out.Interval(i, share)
			}
			fmt.Fprintf(terminal, "\r%s %3.0f %%\x1b[K", display.Bar(share), 100*share)
		}
		summary, err := measure.Run(cmd.Context(), address, f.options)
		clearLine()
		failure := f.explain(address, summary, err)
		if err := out.Summary(summary, failure); failure == nil && err != nil {
			return err
		}
		if failure != nil {
			return failure
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

// explain returns a test's error in words, with its hint.
func (f *measureFlags) explain(address string, summary measure.Summary, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, measure.ErrInterrupted) {
		switch {
		case len(summary.Streams) == 0:
			return errors.New("interrupted before anything was counted")
		case f.options.Bytes > 0:
			return fmt.Errorf("interrupted after %.1f s, before %s had moved", summary.Elapsed.Seconds(), units.Size(f.options.Bytes))
		}
		return fmt.Errorf("interrupted after %.1f s of %s", summary.Elapsed.Seconds(), units.FormatDuration(f.options.Duration))
	}
	explained := measure.Explain(address, err)
	if hint := measure.Hint(err); hint != "" {
		return remedy.New(explained, hint)
	}
	return explained
}
