package congestion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/plot"
	"longhaul/internal/words/units"
	"longhaul/lab/experiment"
	"longhaul/lab/linkflag"
	"longhaul/lab/tcpcc"
)

// Experiment runs congestion controls over lossy long fat paths.
func Experiment() experiment.Experiment {
	cases, err := tcpcc.Available()
	if err != nil {
		cases = []string{"one for every congestion control of the kernel"}
	}
	return experiment.Experiment{
		Name:    "congestion",
		Summary: "congestion control algorithms on a lossy long fat path: 100 Mb/s, 300 ms, 10 % loss",
		Source:  "DNS zone transfers to far name servers: 10 KB/s with CUBIC, 15-20 with Illinois, 60-80 with Hybla",
		Cases:   cases,
		Short:   "Congestion control algorithms on a lossy long fat path",
		Long: `congestion sends from host-a to host-b with each congestion control that the
kernel has, and with longhaul's own where they can be loaded, all with equal
buffers: 300 ms, 100 Mb/s, 10 % of the packets lost.

--grid runs a matrix of paths instead, --sharing has flows meet others,
--safety puts them through faults, --short times transfers of a few sizes,
--traps holds them to bounds on paths that trapped an algorithm before.
bench/README.md has the defaults.`,
		Example: `  go run ./bench/congestion
  go run ./bench/congestion --cc cubic,bbr --series lossy.csv
  go run ./bench/congestion --grid --rate 100Mbit --queue 1 --out grid/
  go run ./bench/congestion --sharing --queue 0.5,1,4 --against cubic
  go run ./bench/congestion --sharing --scenario 1v1 --queue 4 --aqm codel
  go run ./bench/congestion --safety --fault outage,policer
  go run ./bench/congestion --traps --case slow,four-flows --cc haul
  go run ./bench/congestion --short --repeat 20
  go run ./bench/congestion --warm --cc haul --rtt 600ms --loss 0`,
		New: func() experiment.Run { return &command{path: LossyLFN(), during: time.Minute, repeat: 1} },
	}
}

// command is a run as flags describe it.
type command struct {
	rates  flagvalue.List[int64]
	rtts   flagvalue.List[time.Duration]
	losses flagvalue.List[float64]
	queues flagvalue.List[float64]

	path       Path // values besides the lists
	algorithms []string
	during     time.Duration
	repeat     int
	quick      bool
	warm       bool
	series     string

	grid, sharing, safety, short, traps bool // kinds of run; none: one path

	out       string                // grid
	against   []string              // sharing, traps
	scenarios []string              // sharing
	faults    []string              // safety
	cases     []string              // traps
	sizes     flagvalue.List[int64] // short

	run runner // set by Check
}

func (c *command) Flags(flags *pflag.FlagSet) {
	c.rates.Parse = func(s string) (int64, error) {
		rate, err := units.ParseRate(s)
		if err != nil {
			return 0, fmt.Errorf("%w: write it like 100Mbit", err)
		}
		return int64(rate), nil
	}
	c.rtts.Parse = flagvalue.Parse(flagvalue.Delay)
	c.losses.Parse = flagvalue.Parse(flagvalue.Share)
	c.queues.Parse = func(s string) (float64, error) {
		products, err := strconv.ParseFloat(strings.TrimSuffix(s, "bdp"), 64)
		if err != nil || !(products > 0 && products <= 1000) {
			return 0, fmt.Errorf("invalid queue size %q: write it in bandwidth-delay products, like 0.5", s)
		}
		return products, nil
	}
	flags.Var(&c.rates, "rate", "rate of the bottleneck (100Mbit)")
	flags.Var(&c.rtts, "rtt", "round-trip time (300ms)")
	flags.Var(&c.losses, "loss", "share lost on the way to the receiver (10%)")
	flags.Var(&c.queues, "queue", "queue of the bottleneck, in BDP (1)")
	path := &c.path
	path.TraceFlags(flags)
	linkflag.AddAQM(flags, &path.AQM, &path.MarkAbove)
	path.HostECN.Flag(flags)
	linkflag.AddLossPlace(flags, &path.LossPlace)
	flagvalue.AddShare(flags, &path.LossBA.Probability, "loss-back", "share of ACKs lost (0: none)")
	linkflag.AddLossBurst(flags, &path.LossBurstPackets)
	linkflag.AddJitter(flags, &path.Jitter)
	path.AccessFlags(flags)
	linkflag.AddHostBuffers(flags, &path.WindowBDP, "buffers of the hosts, in BDP")
	flagvalue.AddNames(flags, &c.algorithms, "cc", "congestion controls, like cubic,bbr (all there are)")
	flagvalue.AddDuration(flags, &c.during, "time", "how long each run sends")
	flagvalue.AddCount(flags, &c.repeat, "repeat", "run each case this many times")
	flags.BoolVar(&c.warm, "warm", false, "have another connection use the path just before each")
	flags.BoolVar(&c.quick, "quick", false, "15 s each: a first look, not a measurement")
	flagvalue.AddCount(flags, &path.Seed, "seed", "seed of the random choices")
	flags.StringVar(&c.series, "series", "", "write the points of a plot to `FILE`, as CSV")

	flags.BoolVar(&c.grid, "grid", false, "a matrix of paths: rate, rtt, loss and queue take lists")
	flags.StringVar(&c.out, "out", "", "grid: keep each run in `DIR`, and continue from there")
	flags.BoolVar(&c.sharing, "sharing", false, "flows that meet others (100Mbit, 63ms, no loss)")
	flagvalue.AddNames(flags, &c.against, "against", "sharing: the others (cubic,bbr,self); traps: the peer (bbr)")
	flagvalue.AddNames(flags, &c.scenarios, "scenario", "sharing: how they meet, like 1v1,late (all)")
	flags.BoolVar(&c.safety, "safety", false, "faults of the path (100Mbit, 100ms, 1%)")
	flagvalue.AddNames(flags, &c.faults, "fault", "safety: which, like outage,policer (all)")
	flags.BoolVar(&c.traps, "traps", false, "paths with bounds of their own, medians of 5 runs")
	flagvalue.AddNames(flags, &c.cases, "case", "traps: run only these cases, like slow,detour (all)")
	flags.BoolVar(&c.short, "short", false, "time to complete short transfers")
	c.sizes.Parse = func(s string) (int64, error) {
		bytes, err := units.ParseSize(s)
		if err != nil || bytes < 1 {
			return 0, fmt.Errorf("invalid size %q: write it like 100kB or 10MB", s)
		}
		return int64(bytes), nil
	}
	flags.Var(&c.sizes, "bytes", "short: amounts to send (100kB,1MB,10MB)")
}

// trapRepeat is the number of runs of each case of --traps.
const trapRepeat = 5

// quickTime is the duration of a run of --quick.
const quickTime = 15 * time.Second

// outcome is a result that can be plotted.
type outcome interface {
	experiment.Result
	Plot() plot.Figure
}

// runner runs the experiment that the flags choose.
type runner func(context.Context, Options) (outcome, error)

func (c *command) Check(flags *pflag.FlagSet) (err error) {
	c.run, err = c.choose(flags)
	return err
}

// choose checks the flags and returns the runner that they choose.
func (c *command) choose(flags *pflag.FlagSet) (runner, error) {
	if c.traps && !flags.Changed("repeat") {
		c.repeat = trapRepeat
	}
	if c.quick && !flags.Changed("time") {
		c.during = quickTime
	}
	switch {
	case c.repeat < 1:
		return nil, fmt.Errorf("--repeat %d: choose 1 or more", c.repeat)
	case c.during < time.Second:
		return nil, fmt.Errorf("--time %v: choose 1s or more", c.during)
	}
	if err := c.oneKind(flags); err != nil {
		return nil, err
	}
	for _, file := range []string{c.series, c.out} {
		if err := experiment.CheckFile(file); err != nil {
			return nil, err
		}
	}
	switch {
	case c.grid:
		return c.gridRun()
	case c.sharing:
		return c.sharingRun()
	case c.safety:
		return c.safetyRun(flags)
	case c.traps:
		return c.trapsRun(flags)
	}
	path, err := c.onePath(c.path)
	if err != nil {
		return nil, err
	}
	if err := path.Check(); err != nil {
		return nil, err
	}
	if c.short {
		sizes := or(c.sizes.Values, ShortSizes())
		return func(ctx context.Context, options Options) (outcome, error) {
			return RunShort(ctx, path, sizes, options)
		}, nil
	}
	return func(ctx context.Context, options Options) (outcome, error) {
		return Single(ctx, path, options)
	}, nil
}

// oneKind refuses flags that do not belong together.
func (c *command) oneKind(flags *pflag.FlagSet) error {
	kinds := map[string]bool{"grid": c.grid, "sharing": c.sharing, "safety": c.safety, "short": c.short, "traps": c.traps}
	var chosen []string
	for _, name := range []string{"grid", "sharing", "safety", "short", "traps"} {
		if kinds[name] {
			chosen = append(chosen, "--"+name)
		}
	}
	if len(chosen) > 1 {
		return fmt.Errorf("%s are different experiments: choose one", strings.Join(chosen, " and "))
	}
	if c.warm && (c.grid || c.sharing || c.safety || c.traps) {
		return fmt.Errorf("--warm does not go with %s: leave one out", chosen[0])
	}
	for name, kind := range map[string]string{"out": "grid", "against": "sharing", "scenario": "sharing", "fault": "safety", "size": "short", "case": "traps"} {
		if name == "against" && c.traps {
			continue
		}
		if flags.Changed(name) && !kinds[kind] {
			return fmt.Errorf("--%s belongs to --%s: give both", name, kind)
		}
	}
	return nil
}

// or returns a list, or a default for an empty one.
func or[T any](values, usual []T) []T {
	if len(values) == 0 {
		return usual
	}
	return values
}

func (c *command) gridRun() (runner, error) {
	if c.path.Trace != nil || c.path.TraceBack != nil {
		return nil, errors.New("--trace does not go with --grid: each path of the grid has a rate of its own")
	}
	full := FullGrid()
	grid := Grid{
		RatesBps: or(c.rates.Values, full.RatesBps), RTTs: or(c.rtts.Values, full.RTTs),
		Losses: or(c.losses.Values, full.Losses), BuffersBDP: or(c.queues.Values, full.BuffersBDP),
	}
	if err := grid.Check(c.path); err != nil {
		return nil, err
	}
	return func(ctx context.Context, options Options) (outcome, error) {
		var store *Store
		if c.out != "" {
			var err error
			if store, err = NewStore(c.out); err != nil {
				return nil, err
			}
		}
		return RunGrid(ctx, grid, c.path, options, store)
	}, nil
}

func (c *command) sharingRun() (runner, error) {
	path := c.path
	usual := SharingPath()
	path.RTT, path.Loss = usual.RTT, usual.Loss
	sharing := SharingOptions{Against: c.against, Scenarios: c.scenarios, Buffers: c.queues.Values}
	c.queues.Values = nil // each is run
	path, err := c.onePath(path)
	if err == nil {
		err = errors.Join(path.Check(), CheckSharing(sharing))
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, options Options) (outcome, error) {
		return RunSharing(ctx, path, sharing, options)
	}, nil
}

func (c *command) safetyRun(flags *pflag.FlagSet) (runner, error) {
	for _, name := range []string{"trace", "trace-back"} {
		if flags.Changed(name) {
			return nil, fmt.Errorf("--%s does not go with --safety: the faults change the path", name)
		}
	}
	for _, name := range []string{"time", "quick"} {
		if flags.Changed(name) {
			return nil, fmt.Errorf("--%s does not go with --safety: a run is as long as its fault needs", name)
		}
	}
	path := c.path
	usual := SafetyPath()
	path.RTT, path.Loss = usual.RTT, usual.Loss
	safety := SafetyOptions{Faults: c.faults}
	path, err := c.onePath(path)
	if err == nil {
		err = CheckSafety(path, safety)
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, options Options) (outcome, error) {
		return RunSafety(ctx, path, safety, options)
	}, nil
}

func (c *command) trapsRun(flags *pflag.FlagSet) (runner, error) {
	for _, name := range []string{"rate", "trace", "trace-back", "rtt", "loss", "buffer", "aqm", "ecn", "mark-above", "loss-place", "loss-back", "loss-burst", "jitter", "rate-loss",
		"ack-thinning", "aggregate", "aggregate-back", "aggregate-bytes", "time", "quick"} {
		if flags.Changed(name) {
			return nil, fmt.Errorf("--%s does not go with --traps: each case has a path and a time of its own", name)
		}
	}
	traps := TrapOptions{Cases: c.cases}
	switch {
	case len(c.against) > 1 || len(c.against) == 1 && c.against[0] == Self:
		return nil, fmt.Errorf("--against %s: with --traps, name one algorithm", strings.Join(c.against, ","))
	case len(c.against) == 1:
		traps.Peer = c.against[0]
	}
	if err := CheckTraps(traps); err != nil {
		return nil, err
	}
	path := c.path
	return func(ctx context.Context, options Options) (outcome, error) {
		return RunTraps(ctx, path, traps, options)
	}, nil
}

// onePath returns the path of the flags, each list with one value.
func (c *command) onePath(path Path) (Path, error) {
	err := errors.Join(
		oneInto(&path.RateBps, c.rates, "rate"),
		oneInto(&path.RTT, c.rtts, "rtt"),
		oneInto(&path.Loss.Probability, c.losses, "loss"),
		oneInto(&path.QueueBDP, c.queues, "queue"))
	if err == nil && path.Trace != nil && len(c.rates.Values) > 0 {
		err = errors.New("--rate does not go with --trace: the trace has the rate")
	}
	path.Conditions = path.WithTraces()
	return path, err
}

// oneInto stores a list's only value, if any.
func oneInto[T any](field *T, l flagvalue.List[T], name string) error {
	switch len(l.Values) {
	case 0:
	case 1:
		*field = l.Values[0]
	default:
		return fmt.Errorf("--%s has %d values: choose one, or run the grid of all with --grid", name, len(l.Values))
	}
	return nil
}

// Algorithms returns the named algorithms, or all of longhaul's own.
func (c *command) Algorithms() experiment.Algorithms {
	if len(c.algorithms) == 0 {
		return experiment.Algorithms{All: true}
	}
	return experiment.Algorithms{Names: slices.Concat(c.algorithms, c.against), Required: true}
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	result, err := c.run(ctx, Options{Algorithms: c.algorithms, Time: c.during, Repeat: c.repeat, Warm: c.warm, Report: env.Report})
	if err == nil && c.series != "" {
		if err = result.Plot().WriteFile(c.series); err != nil {
			err = fmt.Errorf("write the series: %w", err)
		}
	}
	return result, err
}
