//go:build linux

package main

import (
	"bufio"
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

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/doctor/examine"
	"longhaul/internal/find/measure"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

// doctorFlags are the flags of doctor.
type doctorFlags struct {
	examine.Examiner
	local, remote string
	pid           int
	replay        string
	pcap          []string
	record        string
	tokenFile     string
	receive       bool
	apply, yes    bool
	dryRun        bool
	undo          bool
	json          bool
	namespace     string
	intercept     bool
	client        string
}

func newDoctor(env *env) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [HOST[:PORT]]",
		Short: "Find what limits a connection, and the remedy",
		Long: `doctor watches existing TCP connections, or opens one to a longhaul measure
--serve or iperf3 -s at the far end. It reports what limits them: the program, a
window or buffer, loss, segment sizes, the path, or nothing. It prints the
figures behind each finding, and the remedies with the gain of each.

With --remote, --local or --pid it only watches and does not change the
connections. It sends a few probe packets to find the packet sizes that the path
carries (--no-probe: none). With --test it sends data to find the throughput.
Where a policer limits each connection, HOST and --test tell how many lanes of a
pair help.

With --pcap it reads a capture of headers: pcap, pcapng or snoop, also with
gzip, zstd, xz or bzip2, and - for standard input. Several files, or directories
of them, are one capture, in the order of time. With --export it also saves the
headers of the selected connections for a bug report: payload is left out, and
addresses and times are replaced.

With --intercept, on the host of a relay that intercepts, it sends one probe
toward the targets that are given, or toward those of a flow of each tunnel, and
one toward a client. It names routes, filters and firewalls because of which
packets of one direction do not pass this host.

Exit codes: 0 a certain verdict, or done (--apply, --undo); 4 a likely verdict;
5 one that is not certain; 1 no verdict, or failed; 2 wrong command line.`,
		Example: `  longhaul doctor far.example.net
  longhaul doctor --remote 203.0.113.9:5432 --test
  longhaul doctor --pid 4711 --time 20s
  longhaul doctor --pcap sender.pcap
  longhaul doctor --pcap trace.pcap0 trace.pcap1
  ssh HOST tcpdump -i any -s 128 -c 100000 -w - tcp | longhaul doctor --pcap -
  longhaul doctor --intercept 10.20.20.5:22 --client 10.10.10.7`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := restartInNamespace(f.namespace); err != nil {
				return err
			}
			if f.undo {
				return undoRemedies(cmd, env, &f, args)
			}
			var err error
			if f.Token, err = readToken(f.tokenFile); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			if f.intercept || f.client != "" {
				return examineInterception(ctx, cmd, env, &f, args)
			}
			observation, err := f.observe(ctx, env, args)
			var none *examine.NoVerdictError
			switch {
			case err != nil && ctx.Err() != nil:
				return errors.New("interrupted before the verdict")
			case errors.As(err, &none):
				note(env, none.Reason)
				if err := f.print(env, none.Survey); err != nil {
					return err
				}
				return err
			case err != nil:
				return err
			}
			if f.record != "" {
				if err := examine.WriteRecord(f.record, observation); err != nil {
					return err
				}
			}
			report, err := doctor.Diagnose(observation)
			if err != nil {
				return remedy.New(err, f.moreData())
			}
			if err := f.print(env, report); err != nil {
				return err
			}
			if f.apply {
				return applyRemedies(env, report, &f)
			}
			return verdictStatus(report.Strength)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.remote, "remote", "", "watch connections to `HOST[:PORT]`, or to a port")
	flags.StringVar(&f.local, "local", "", "watch connections from `HOST[:PORT]`, or from a port")
	flags.IntVar(&f.pid, "pid", 0, "watch connections of process `PID`")
	f.During = 5 * time.Second
	flagvalue.AddDuration(flags, &f.During, "time", "how long to watch")
	flags.BoolVar(&f.intercept, "intercept", false, "find why intercepted connections fail")
	flags.StringVar(&f.client, "client", "", "with --intercept: `ADDRESS` of a client, for the probes")
	flags.BoolVar(&f.receive, "receive", false, "with HOST: have that host send")
	flags.BoolVar(&f.Test, "test", false, "also send data to a longhaul measure there")
	flags.Uint16Var(&f.TestPort, "test-port", measure.DefaultPort, "`PORT` of that longhaul measure")
	flags.StringVar(&f.tokenFile, "token", "", "`FILE` with the token for it")
	flags.BoolVar(&f.SkipProbe, "no-probe", false, "do not probe packet sizes")
	flags.StringArrayVar(&f.pcap, "pcap", nil, "read a capture in this `FILE`, taken elsewhere")
	flags.StringVar(&f.Export, "export", "", "with --pcap: save headers alone in this `FILE`, with other addresses")
	flags.StringVar(&f.record, "record", "", "save the observation in this `FILE`")
	flags.StringVar(&f.replay, "replay", "", "read an observation of --record from this `FILE`")
	flags.BoolVar(&f.apply, "apply", false, "perform the remedies for this host, after asking")
	flags.BoolVar(&f.yes, "yes", false, "with --apply: do not ask; with --undo: of all owners")
	flags.BoolVar(&f.undo, "undo", false, "take back what your --apply has done")
	flags.BoolVar(&f.dryRun, "dry-run", false, "with --apply or --undo: only say what would change")
	namespaceFlag(flags, &f.namespace)
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
	return cmd
}

// verdictStatus returns the end of the command with a verdict of some strength.
func verdictStatus(s doctor.Strength) error {
	if status := s.ExitStatus(); status != exitOK {
		return &exitError{status: status}
	}
	return nil
}

// print prints a report, or a survey.
func (f *doctorFlags) print(env *env, r interface{ WriteText(io.Writer) error }) error {
	if f.json {
		return display.WriteJSON(env.stdout, r)
	}
	return r.WriteText(env.stdout)
}

// note prints an error that does not end the command.
func note(env *env, err error) { fmt.Fprintf(env.stderr, "longhaul: %v\n", err) }

// observe watches, measures or reads what the flags name.
func (f *doctorFlags) observe(ctx context.Context, env *env, args []string) (doctor.Observation, error) {
	capture := len(f.pcap) > 0
	passive := !capture && (f.remote != "" || f.local != "" || f.pid != 0)
	var ways []string
	for _, way := range []struct {
		name   string
		chosen bool
	}{
		{"HOST", len(args) > 0 && !capture}, {"--remote, --local or --pid", passive}, {"--replay", f.replay != ""}, {"--pcap", capture},
	} {
		if way.chosen {
			ways = append(ways, way.name)
		}
	}
	if f.Export != "" && !capture {
		return doctor.Observation{}, f.checkSource()
	}
	switch {
	case len(ways) > 1:
		return doctor.Observation{}, usageError(remedy.New(fmt.Errorf("%s are different ways to observe", strings.Join(ways, " and ")), "give one of them"))
	case f.dryRun && !f.apply:
		return doctor.Observation{}, usageError(errors.New("--dry-run says what --apply or --undo would change: add one"))
	}
	if len(ways) != 1 || len(args) > 1 && !capture {
		return doctor.Observation{},
			usageError(remedy.New(errors.New("longhaul doctor needs one host, or connections to watch"),
				"see longhaul doctor --help"))
	}
	if err := f.checkSource(); err != nil {
		return doctor.Observation{}, err
	}
	f.Version = "longhaul " + version()
	f.Pairs = func(ctx context.Context) []examine.PairedTunnel { return pairedTunnels(ctx, env) }
	f.Note = func(err error) { note(env, err) }
	f.Progress = func(format string, args ...any) {
		if display.IsTerminal(env.stderr) {
			fmt.Fprintf(env.stderr, format+" ...\n", args...)
		}
	}
	switch {
	case f.replay != "":
		return examine.ReadRecord(f.replay)
	case len(args) == 1 && !capture:
		return f.transfer(ctx, args[0])
	}
	if !capture && f.During < examine.MinWatch {
		return doctor.Observation{}, usageError(fmt.Errorf("--time %v is too short: use 1s or more", f.During))
	}
	local, err := parseEnd(ctx, "local", f.local)
	if err != nil {
		return doctor.Observation{}, err
	}
	remote, err := parseEnd(ctx, "remote", f.remote)
	if err != nil {
		return doctor.Observation{}, err
	}
	if capture {
		f.Stdin = env.stdin
		return f.Capture(ctx, slices.Concat(f.pcap, args), local, remote)
	}
	return f.Watch(ctx, examine.Connections{Local: local, Remote: remote, PID: f.pid})
}

// checkSource refuses flags that need a live connection beside a file.
func (f *doctorFlags) checkSource() error {
	source := ""
	switch {
	case len(f.pcap) > 0:
		source = "--pcap"
	case f.Export != "":
		return usageError(remedy.New(errors.New("--export needs --pcap: it saves the headers of a capture"), "see longhaul doctor --help"))
	case f.replay != "":
		source = "--replay"
	default:
		return nil
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"--test", f.Test}, {"--pid", f.pid != 0}, {"--receive", f.receive}, {"--token", f.tokenFile != ""},
		{"--local", f.local != "" && f.replay != ""}, {"--remote", f.remote != "" && f.replay != ""},
	} {
		if flag.set {
			return usageError(remedy.New(fmt.Errorf("%s needs a live connection, and %s reads a file", flag.name, source),
				"leave "+flag.name+" out, or run longhaul doctor on the sending host"))
		}
	}
	return nil
}

// moreData says how to get an observation that suffices.
func (f *doctorFlags) moreData() string {
	if len(f.pcap) > 0 || f.replay != "" {
		return "capture longer, at the sending host, while data are moving"
	}
	return "watch longer with --time, while data are moving"
}

// transfer sends data to HOST[:PORT], or receives data from it.
func (f *doctorFlags) transfer(ctx context.Context, host string) (doctor.Observation, error) {
	port := int(f.TestPort)
	if name, service, err := net.SplitHostPort(host); err == nil {
		if port, err = net.DefaultResolver.LookupPort(ctx, "tcp", service); err != nil {
			return doctor.Observation{}, usageError(fmt.Errorf("invalid port in %q", host))
		}
		host = name
	}
	if f.During < examine.MinTransfer {
		return doctor.Observation{}, usageError(fmt.Errorf("--time %v is too short for a test: use 4s or more", f.During))
	}
	direction := measure.Send
	if f.receive {
		direction = measure.Receive
	}
	return f.Transfer(ctx, net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port)), direction)
}

// parseEnd parses the value of a flag for one end of connections; empty is any end.
func parseEnd(ctx context.Context, flag, text string) (examine.End, error) {
	if text == "" {
		return examine.End{}, nil
	}
	if strings.HasPrefix(text, "-") {
		return examine.End{}, usageError(fmt.Errorf("--%s needs HOST[:PORT] or a port, and got %q", flag, text))
	}
	end, err := examine.ParseEnd(ctx, text)
	var unresolved *examine.UnresolvedError
	switch {
	case errors.As(err, &unresolved):
		return end, fmt.Errorf("--%s: %w", flag, err)
	case err != nil:
		return end, usageError(remedy.New(fmt.Errorf("--%s: %w", flag, err), remedy.Of(err)))
	}
	return end, nil
}

// applyRemedies applies the remedies that longhaul has for this host, each after
// asking unless --yes is given.
func applyRemedies(env *env, r doctor.Report, f *doctorFlags) error {
	answers := bufio.NewScanner(env.stdin)
	confirm := func(r doctor.Remedy) bool {
		fmt.Fprintf(env.stderr, "apply: longhaul %s\n", strings.Join(r.Apply, " "))
		if f.yes || f.dryRun {
			return true
		}
		fmt.Fprint(env.stderr, "? [y/N] ")
		if answers.Scan() && strings.EqualFold(strings.TrimSpace(answers.Text()), "y") {
			return true
		}
		fmt.Fprintln(env.stderr, "left as it is")
		return false
	}
	return examine.Apply(r, confirm, func(args []string) error {
		applying := *env
		applying.args, applying.stdout, applying.appliedBy = args, env.stderr, commandLine(env.args)
		if f.dryRun {
			applying.args = append(slices.Clone(args), "--dry-run")
		}
		if status := run(&applying); status != exitOK {
			return &exitError{status: status} // the command has printed the error
		}
		if !f.dryRun {
			fmt.Fprintln(env.stderr, "done for new connections; undo it with: longhaul doctor --undo")
		}
		return nil
	})
}

// undoRemedies takes back the remedies that doctor has applied for this user, or with
// --yes for all users.
func undoRemedies(cmd *cobra.Command, env *env, f *doctorFlags, args []string) error {
	allowed := []string{"undo", "yes", "json", "dry-run", "netns"}
	wrong := len(args) > 0
	cmd.Flags().Visit(func(flag *pflag.Flag) { wrong = wrong || !slices.Contains(allowed, flag.Name) })
	if wrong {
		return usageError(errors.New("--undo takes only --yes, --json, --dry-run and --netns: it takes back what --apply has done"))
	}
	undo := undoFlags{changeFlags{json: f.json, dryRun: f.dryRun}, f.yes}
	if err := undo.enter(env); err != nil {
		return err
	}
	return undo.undo(cmd, env, undoing{
		named: true, everywhere: true,
		which: func(_ ledger.Key, c ledger.Claim) bool { return c.Means == ledger.Doctor },
	})
}
