package diagnosis

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"longhaul/internal/lab/experiment"
	"longhaul/internal/lab/tcpcc"
)

// Experiment has the doctor look at connections of which the lab knows what limits
// them.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "diagnosis",
		Summary: "what longhaul doctor says of connections, and what its remedies bring",
		Source:  "no report: the truth is what brings more once it is removed",
		Cases:   Kinds(),
		Short:   "What longhaul doctor says of connections, and what its remedies bring",
		Long: `diagnosis draws paths, hosts and programs, puts something in the way of most of
them, and has longhaul doctor look at each connection. Then it takes away what
is in the way, and what doctor named: what brings a fifth more is the cause.

The table has how often doctor was right, and what it took each cause for.`,
		Example: `  longhaul lab run diagnosis --sample 36
  longhaul lab run diagnosis --seed 8 --json > diagnosis.json
  longhaul lab run diagnosis --sample 20 --case policer`,
		New: func() experiment.Run { return &command{} },
	}
}

// command is a run as flags describe it.
type command struct {
	Options
	sample int
	seed   uint64
	kinds  []string
}

func (c *command) Flags(flags *pflag.FlagSet) {
	flags.IntVar(&c.sample, "sample", 432, "scenarios to draw")
	flags.Uint64Var(&c.seed, "seed", 7, "seed of what is drawn")
	flags.IntVar(&c.Parallel, "parallel", 4, "scenarios at once")
	flags.StringArrayVar(&c.kinds, "case", nil, "draw only these (may be given again)")
	flags.StringVar(&c.Keep, "keep", "", "keep what doctor saw in this directory")
}

func (c *command) Check(*pflag.FlagSet) error {
	switch {
	case c.sample < 1:
		return fmt.Errorf("--sample %d: choose 1 or more", c.sample)
	case c.Parallel < 1 || c.Parallel > 64:
		return fmt.Errorf("--parallel %d: choose 1 to 64", c.Parallel)
	}
	if err := experiment.CheckCases(c.kinds, Kinds()); err != nil {
		return err
	}
	return experiment.CheckFile(c.Keep)
}

// Algorithms is haul, the remedy of losses; where it cannot be loaded, that is bbr.
func (c *command) Algorithms() experiment.Algorithms {
	return experiment.Algorithms{Names: []string{"haul"}}
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report, c.Tolerant = env.Program, env.Report, "bbr"
	if tcpcc.IsAvailable("haul") {
		c.Tolerant = "haul"
	}
	return Run(ctx, Draw(c.sample, c.seed, c.kinds), c.Options)
}
