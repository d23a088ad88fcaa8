package congestion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
	"longhaul/lab/linkflag"
	"longhaul/lab/tcpcc"
)

// Experiment runs congestion controls alone on a path of the user's.
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
buffers: 300 ms, 100 Mb/s, 10 % of the packets lost, or the path that the flags
describe. Flows that meet others, faults and short transfers are cells of
go run ./bench/dossier.`,
		Example: `  go run ./bench/congestion
  go run ./bench/congestion --cc cubic,bbr --repeat 5 --json > lossy.json
  go run ./bench/congestion --warm --cc haul --rtt 600ms --loss 0`,
		New: func() experiment.Run {
			return &command{path: LossyLFN(), Options: Options{Time: time.Minute, Repeat: 1}}
		},
	}
}

// command is a run as flags describe it.
type command struct {
	Options
	path  Path
	quick bool
}

func (c *command) Flags(flags *pflag.FlagSet) {
	c.path.Flags(flags)
	linkflag.AddHostBuffers(flags, &c.path.WindowBDP, "buffers of the hosts, in BDP")
	flagvalue.AddNames(flags, &c.Options.Algorithms, "cc", "congestion controls, like cubic,bbr (all there are)")
	flagvalue.AddDuration(flags, &c.Time, "time", "how long each run sends")
	flagvalue.AddCount(flags, &c.Repeat, "repeat", "run each case this many times")
	flags.BoolVar(&c.Warm, "warm", false, "have another connection use the path just before each")
	flags.BoolVar(&c.quick, "quick", false, "15 s each: a first look, not a measurement")
}

// quickTime is the duration of a run of --quick.
const quickTime = 15 * time.Second

func (c *command) Check(flags *pflag.FlagSet) error {
	if c.quick && !flags.Changed("time") {
		c.Time = quickTime
	}
	switch {
	case c.Repeat < 1:
		return fmt.Errorf("--repeat %d: choose 1 or more", c.Repeat)
	case c.Time < time.Second:
		return fmt.Errorf("--time %v: choose 1s or more", c.Time)
	case c.path.Trace != nil && flags.Changed("rate"):
		return errors.New("--rate does not go with --trace: the trace has the rate")
	}
	c.path.Conditions = c.path.WithTraces()
	return c.path.Check()
}

// Algorithms returns the named algorithms, or all of longhaul's own.
func (c *command) Algorithms() experiment.Algorithms {
	if len(c.Options.Algorithms) == 0 {
		return experiment.Algorithms{All: true}
	}
	return experiment.Algorithms{Names: c.Options.Algorithms, Required: true}
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Report = env.Report
	return Single(ctx, c.path, c.Options)
}
