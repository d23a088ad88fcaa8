package transfers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
)

// helpWidth is what the help fits into.
const helpWidth = 80

// Entry is the experiment as the lab lists it.
func (e Experiment) Entry() experiment.Experiment {
	return experiment.Experiment{
		Name:    e.Name,
		Summary: e.Summary,
		Source:  e.Source,
		Cases:   e.CaseNames(),
		Short:   e.Summary,
		Long:    fmt.Sprintf("%s\n\nThe table gives medians over the repeats, and their spread.", display.Fold("After "+e.Source+".", helpWidth, 0)),
		Example: fmt.Sprintf(`  longhaul lab run %[1]s
  longhaul lab run %[1]s --repeat 5 --json > %[1]s.json
  longhaul lab run %[1]s --case %[2]s --quick`, e.Name, e.Cases[0].Name),
		New: func() experiment.Run { return &command{experiment: e, options: Options{Repeat: 1}} },
	}
}

// command is a run as flags describe it.
type command struct {
	experiment Experiment
	options    Options
}

func (c *command) Flags(flags *pflag.FlagSet) {
	o := &c.options
	flags.BoolVar(&o.Quick, "quick", false, "send less data: a first look, not a measurement")
	flagvalue.AddCount(flags, &o.Repeat, "repeat", "run each case this many times")
	flagvalue.AddCount(flags, &o.Seed, "seed", "seed of the random choices (0: the usual)")
	if slices.ContainsFunc(c.experiment.Cases, func(c Case) bool { return c.During > 0 }) {
		flagvalue.AddDuration(flags, &o.During, "time", "how long each run sends (1m, with --quick 15s)")
	}
	flagvalue.AddNames(flags, &o.Cases, "case", "run only these cases (all)")
}

func (c *command) Check(*pflag.FlagSet) error {
	if c.options.Repeat < 1 {
		return fmt.Errorf("--repeat %d: choose 1 or more", c.options.Repeat)
	}
	if c.options.During != 0 && c.options.During < time.Second {
		return fmt.Errorf("--time %v: choose 1s or more", c.options.During)
	}
	return c.experiment.Check(c.options)
}

// Algorithms are those of the cases that have their names. A case says so where its own
// cannot be loaded.
func (c *command) Algorithms() experiment.Algorithms {
	cases := c.options.Cases
	if len(cases) == 0 {
		cases = c.experiment.CaseNames()
	}
	return experiment.Algorithms{Names: slices.Clone(cases)}
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.options.Program, c.options.Report = env.Program, env.Report
	return c.experiment.Run(ctx, c.options)
}
