//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/display"
	"longhaul/internal/lab/congestion"
	"longhaul/internal/plot"
	"longhaul/internal/units"
)

// lossyLFN is the experiment on congestion control over lossy long fat paths.
func lossyLFN() experiment {
	cases, err := congestion.Available()
	if err != nil {
		cases = []string{"one for every congestion control of the kernel"}
	}
	return experiment{
		name:    "lossy-lfn",
		summary: "congestion control algorithms on a lossy long fat path: 100 Mb/s, 300 ms, 10 % loss",
		source:  "DNS zone transfers to far name servers: 10 KB/s with CUBIC, 15-20 with Illinois, 60-80 with Hybla",
		cases:   cases,
		command: newLabRunLossy,
	}
}

// lossyOptions are the flags of lab run lossy-lfn.
type lossyOptions struct {
	rates   list[int64]
	rtts    list[time.Duration]
	losses  list[float64]
	buffers list[float64]

	path       congestion.Path // what the lists do not say
	algorithms []string
	during     time.Duration
	repeat     int
	quick      bool
	asJSON     bool
	series     string

	grid, sharing, safety, short, traps bool // what to run; none: one path

	out       string      // grid
	against   []string    // sharing, traps
	scenarios []string    // sharing
	faults    []string    // safety
	cases     []string    // traps
	sizes     list[int64] // short
}

func newLabRunLossy(env *env) *cobra.Command {
	o := lossyOptions{path: congestion.LossyLFN()}
	cmd := &cobra.Command{
		Use:   "lossy-lfn",
		Short: "Congestion control algorithms on a lossy long fat path",
		Long: `lossy-lfn sends from host-a to host-b with each congestion control that the
kernel has, and with longhaul's own where they can be loaded, all with equal
buffers: 300 ms, 100 Mb/s, 10 % of the packets lost.

--grid runs a matrix of paths instead, --sharing has flows meet others,
--safety puts them through faults, --short times transfers of a few sizes,
--traps holds them to bounds on paths that trapped an algorithm before.
docs/lab.md has the defaults.`,
		Example: `  longhaul lab run lossy-lfn
  longhaul lab run lossy-lfn --algorithms cubic,bbr --repeat 5 --series lossy.csv
  longhaul lab run lossy-lfn --grid --rate 100Mbit --buffer 1 --out grid/
  longhaul lab run lossy-lfn --sharing --buffer 0.5,1,4 --against cubic
  longhaul lab run lossy-lfn --sharing --scenario 1v1 --buffer 4 --aqm codel
  longhaul lab run lossy-lfn --safety --fault outage,policer
  longhaul lab run lossy-lfn --traps --case slow,four-flows --algorithms haul
  longhaul lab run lossy-lfn --short --repeat 20`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := o.experiment(cmd.Flags())
			if err != nil {
				return usageError(err)
			}
			inside := inSandbox(env, func(cmd *cobra.Command, _ []string) error {
				ctx, stop := untilSignal(cmd.Context())
				defer stop()
				return o.show(ctx, env, run)
			})
			wanted := o.algorithms
			if len(wanted) > 0 {
				wanted = slices.Concat(wanted, o.against)
			}
			return withOwnCC(cmd.Context(), env, wanted, func() error { return inside(cmd, args) })
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *lossyOptions) flags(flags *pflag.FlagSet) {
	o.rates.parse = func(s string) (int64, error) {
		rate, err := units.ParseRate(s)
		if err != nil {
			return 0, fmt.Errorf("%w: write it like 100Mbit", err)
		}
		return int64(rate), nil
	}
	o.rtts.parse = func(s string) (d time.Duration, err error) { return d, durationInto(&d)(s) }
	o.losses.parse = func(s string) (p float64, err error) { return p, shareInto(&p)(s) }
	o.buffers.parse = func(s string) (float64, error) {
		products, err := strconv.ParseFloat(strings.TrimSuffix(s, "bdp"), 64)
		if err != nil || !(products > 0 && products <= 1000) {
			return 0, fmt.Errorf("%q is no queue size: write it in bandwidth-delay products, like 0.5", s)
		}
		return products, nil
	}
	flags.Var(&o.rates, "rate", "bottleneck (100Mbit)")
	flags.Var(&o.rtts, "rtt", "round-trip time (300ms)")
	flags.Var(&o.losses, "loss", "share of packets lost on the way to the receiver (10%)")
	flags.Var(&o.buffers, "buffer", "queue of the bottleneck, in BDP (1)")
	path := &o.path
	add := func(name, usage, shown string, set func(string) error) {
		flags.Var(&conditionFlag{shown: shown, set: set}, name, usage)
	}
	add("aqm", "management of that queue: codel (RFC 8289), or none", "none", aqmInto(&path.CoDel))
	add("loss-place", "lost before or after the bottleneck", "before", lossPlaceInto(&path.LossPlace))
	add("loss-back", "share of ACKs lost", "0", shareInto(&path.LossBA.Probability))
	add("loss-burst", "mean length of a loss burst, packets", "1", burstInto(&path.LossBurstPackets))
	add("jitter", "each packet's delay varies by ± this", "0s", durationInto(&path.Jitter))
	flags.Float64Var(&path.WindowBDP, "window", path.WindowBDP, "what the hosts' buffers hold, in BDP")
	flags.StringSliceVar(&o.algorithms, "algorithms", nil, "congestion controls, like cubic,bbr (all there are)")
	flags.DurationVar(&o.during, "time", 60*time.Second, "how long each run sends")
	flags.IntVar(&o.repeat, "repeat", 1, "run each case this many times")
	flags.BoolVar(&o.quick, "quick", false, "15 s each: a first look, not a measurement")
	flags.Uint64Var(&path.Seed, "seed", path.Seed, "seed of the random choices")
	flags.BoolVar(&o.asJSON, "json", false, "print the result as JSON")
	flags.StringVar(&o.series, "series", "", "write what a plot shows to this file, as CSV")

	flags.BoolVar(&o.grid, "grid", false, "a matrix of paths: rate, rtt, loss and buffer take lists")
	flags.StringVar(&o.out, "out", "", "grid: keep each run in this directory, and go on from there")
	flags.BoolVar(&o.sharing, "sharing", false, "flows that meet others (100Mbit, 63ms, no loss)")
	flags.StringSliceVar(&o.against, "against", nil, "sharing: the others (cubic,bbr,self); traps: the peer (bbr)")
	flags.StringSliceVar(&o.scenarios, "scenario", nil, "sharing: how they meet, like 1v1,late (all)")
	flags.BoolVar(&o.safety, "safety", false, "faults of the path (100Mbit, 100ms, 1%)")
	flags.StringSliceVar(&o.faults, "fault", nil, "safety: which, like outage,policer (all)")
	flags.BoolVar(&o.traps, "traps", false, "paths with bounds of their own, medians of 5 runs")
	flags.StringSliceVar(&o.cases, "case", nil, "traps: which, like slow,detour (all)")
	flags.BoolVar(&o.short, "short", false, "time to complete short transfers")
	o.sizes.parse = func(s string) (int64, error) {
		bytes, err := units.ParseSize(s)
		if err != nil || bytes < 1 {
			return 0, fmt.Errorf("%q is no size: write it like 100kB or 10MB", s)
		}
		return int64(bytes), nil
	}
	flags.Var(&o.sizes, "size", "short: how much is sent (100kB,1MB,10MB)")
}

// trapRepeat is how often --traps runs each case.
const trapRepeat = 5

// quickTime is how long a run of --quick sends.
const quickTime = 15 * time.Second

// outcome is what an experiment on congestion control comes to.
type outcome interface {
	WriteTable(io.Writer) error
	Plot() plot.Figure
}

// lossyRun runs one of the experiments, inside the sandbox.
type lossyRun func(context.Context, congestion.Options) (outcome, error)

// experiment checks the flags and returns what they ask for.
func (o *lossyOptions) experiment(flags *pflag.FlagSet) (lossyRun, error) {
	if o.traps && !flags.Changed("repeat") {
		o.repeat = trapRepeat
	}
	if o.quick && !flags.Changed("time") {
		o.during = quickTime
	}
	switch {
	case o.repeat < 1:
		return nil, fmt.Errorf("--repeat %d: choose 1 or more", o.repeat)
	case o.during < time.Second:
		return nil, fmt.Errorf("--time %v: choose 1s or more", o.during)
	}
	if err := o.oneKind(flags); err != nil {
		return nil, err
	}
	for _, file := range []string{o.series, o.out} {
		if err := reachable(file); err != nil {
			return nil, err
		}
	}
	switch {
	case o.grid:
		return o.gridRun()
	case o.sharing:
		return o.sharingRun()
	case o.safety:
		return o.safetyRun(flags)
	case o.traps:
		return o.trapsRun(flags)
	}
	path, err := o.onePath(o.path)
	if err != nil {
		return nil, err
	}
	if err := path.Check(); err != nil {
		return nil, err
	}
	if o.short {
		sizes := or(o.sizes.values, congestion.ShortSizes())
		return func(ctx context.Context, options congestion.Options) (outcome, error) {
			return congestion.RunShort(ctx, path, sizes, options)
		}, nil
	}
	return func(ctx context.Context, options congestion.Options) (outcome, error) {
		return congestion.Single(ctx, path, options)
	}, nil
}

// oneKind refuses flags that do not belong together.
func (o *lossyOptions) oneKind(flags *pflag.FlagSet) error {
	kinds := map[string]bool{"grid": o.grid, "sharing": o.sharing, "safety": o.safety, "short": o.short, "traps": o.traps}
	var chosen []string
	for _, name := range []string{"grid", "sharing", "safety", "short", "traps"} {
		if kinds[name] {
			chosen = append(chosen, "--"+name)
		}
	}
	if len(chosen) > 1 {
		return fmt.Errorf("%s are different experiments: choose one", strings.Join(chosen, " and "))
	}
	for name, kind := range map[string]string{"out": "grid", "against": "sharing", "scenario": "sharing", "fault": "safety", "size": "short", "case": "traps"} {
		if name == "against" && o.traps {
			continue
		}
		if flags.Changed(name) && !kinds[kind] {
			return fmt.Errorf("--%s belongs to --%s: give both", name, kind)
		}
	}
	return nil
}

// or is a list, or what stands for an empty one.
func or[T any](values, usual []T) []T {
	if len(values) == 0 {
		return usual
	}
	return values
}

func (o *lossyOptions) gridRun() (lossyRun, error) {
	full := congestion.FullGrid()
	grid := congestion.Grid{
		RatesBps: or(o.rates.values, full.RatesBps), RTTs: or(o.rtts.values, full.RTTs),
		Losses: or(o.losses.values, full.Losses), BuffersBDP: or(o.buffers.values, full.BuffersBDP),
	}
	if err := grid.Check(o.path); err != nil {
		return nil, err
	}
	return func(ctx context.Context, options congestion.Options) (outcome, error) {
		var store *congestion.Store
		if o.out != "" {
			var err error
			if store, err = congestion.NewStore(o.out); err != nil {
				return nil, err
			}
		}
		return congestion.RunGrid(ctx, grid, o.path, options, store)
	}, nil
}

func (o *lossyOptions) sharingRun() (lossyRun, error) {
	path := o.path
	usual := congestion.SharingPath()
	path.RTT, path.Loss = usual.RTT, usual.Loss
	sharing := congestion.SharingOptions{Against: o.against, Scenarios: o.scenarios, Buffers: o.buffers.values}
	o.buffers.values = nil // each of them is run
	path, err := o.onePath(path)
	if err == nil {
		err = errors.Join(path.Check(), congestion.CheckSharing(sharing))
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, options congestion.Options) (outcome, error) {
		return congestion.RunSharing(ctx, path, sharing, options)
	}, nil
}

func (o *lossyOptions) safetyRun(flags *pflag.FlagSet) (lossyRun, error) {
	for _, name := range []string{"time", "quick"} {
		if flags.Changed(name) {
			return nil, fmt.Errorf("--%s does not go with --safety: a run is as long as its fault needs", name)
		}
	}
	path := o.path
	usual := congestion.SafetyPath()
	path.RTT, path.Loss = usual.RTT, usual.Loss
	safety := congestion.SafetyOptions{Faults: o.faults}
	path, err := o.onePath(path)
	if err == nil {
		err = congestion.CheckSafety(path, safety)
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, options congestion.Options) (outcome, error) {
		return congestion.RunSafety(ctx, path, safety, options)
	}, nil
}

func (o *lossyOptions) trapsRun(flags *pflag.FlagSet) (lossyRun, error) {
	for _, name := range []string{"rate", "rtt", "loss", "buffer", "aqm", "loss-place", "loss-back", "loss-burst", "jitter", "time", "quick"} {
		if flags.Changed(name) {
			return nil, fmt.Errorf("--%s does not go with --traps: each case has a path and a time of its own", name)
		}
	}
	traps := congestion.TrapOptions{Cases: o.cases}
	switch {
	case len(o.against) > 1 || len(o.against) == 1 && o.against[0] == congestion.Self:
		return nil, fmt.Errorf("--against %s: with --traps, name one algorithm", strings.Join(o.against, ","))
	case len(o.against) == 1:
		traps.Peer = o.against[0]
	}
	if err := congestion.CheckTraps(traps); err != nil {
		return nil, err
	}
	path := o.path
	return func(ctx context.Context, options congestion.Options) (outcome, error) {
		return congestion.RunTraps(ctx, path, traps, options)
	}, nil
}

// onePath is a path with what the flags say of it, each list with one value.
func (o *lossyOptions) onePath(path congestion.Path) (congestion.Path, error) {
	err := errors.Join(
		oneInto(&path.RateBps, o.rates, "rate"),
		oneInto(&path.RTT, o.rtts, "rtt"),
		oneInto(&path.Loss.Probability, o.losses, "loss"),
		oneInto(&path.QueueBDP, o.buffers, "buffer"))
	return path, err
}

// oneInto takes over a list's only value, if it has any.
func oneInto[T any](field *T, l list[T], name string) error {
	switch len(l.values) {
	case 0:
	case 1:
		*field = l.values[0]
	default:
		return fmt.Errorf("--%s has %d values: choose one, or run the grid of all with --grid", name, len(l.values))
	}
	return nil
}

// reachable refuses a file that the sandbox would hide.
func reachable(file string) error {
	if file == "" {
		return nil
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	if strings.HasPrefix(path, "/run/") {
		return fmt.Errorf("%s lies in /run, which the lab has one of its own of: choose another place", file)
	}
	return nil
}

// show runs the experiment and prints what came of it.
func (o *lossyOptions) show(ctx context.Context, env *env, run lossyRun) error {
	progress := newProgress(env.stderr)
	result, err := run(ctx, congestion.Options{
		Algorithms: o.algorithms, Time: o.during, Repeat: o.repeat,
		Progress: progress.timed, Notef: progress.note,
	})
	progress.clear()
	if err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return err
	}
	if o.series != "" {
		if err := result.Plot().WriteFile(o.series); err != nil {
			return fmt.Errorf("cannot write the series: %w", err)
		}
	}
	if o.asJSON {
		return display.WriteJSON(env.stdout, result)
	}
	return result.WriteTable(env.stdout)
}

// list is a flag with several values, separated by commas.
type list[T any] struct {
	values []T
	text   string
	parse  func(string) (T, error)
}

func (l *list[T]) String() string { return l.text }
func (l *list[T]) Type() string   { return "list" }
func (l *list[T]) Set(s string) error {
	l.values, l.text = nil, s
	for part := range strings.SplitSeq(s, ",") {
		value, err := l.parse(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		l.values = append(l.values, value)
	}
	return nil
}
