package zonetransfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/lab"
	"longhaul/lab/experiment"
	"longhaul/lab/linkflag"
	"longhaul/lab/tcpcc"
)

// Experiment is the one with real name servers.
func Experiment() experiment.Experiment {
	algorithms, _ := tcpcc.Available() // an error shows when it is run
	return experiment.Experiment{
		Name:    "zone-transfer",
		Summary: "AXFR and IXFR of a signed zone between two name servers, 300 ms and 10 % loss apart",
		Source:  "DNS zone transfers to far name servers, and what the sender's congestion control makes of them",
		Cases:   Options{Algorithms: algorithms}.CaseNames(),
		Short:   "Zone transfers between two name servers over a lossy long path",
		Long: `zone-transfer runs a primary name server at site A and a secondary at site B
(Knot DNS, both), with a generated and signed zone of 50 MB. It times the full
transfer to an empty secondary and a series of incremental ones, without relays
under each congestion control that the kernel has and each of longhaul's own,
and through a pair of longhaul relays; and compares the zones of both servers
after each.`,
		Example: `  longhaul lab run zone-transfer
  longhaul lab run zone-transfer --quick --case relay,direct-cubic`,
		New: func() experiment.Run {
			return &command{Options: Options{
				Conditions: lab.LossyConditions(), Names: FullNames, Changes: 10, Patience: time.Minute, Repeat: 1,
			}}
		},
	}
}

// command is a run as flags describe it.
type command struct {
	Options
	named []string // congestion controls; Algorithms of Options are those of the cases
	quick bool
}

func (c *command) Flags(flags *pflag.FlagSet) {
	p := &c.Conditions
	flagvalue.AddDelay(flags, &p.RTT, "rtt", "round-trip time")
	flagvalue.AddRate(flags, &p.RateBps, "rate", "rate of the bottleneck (0: no bound)")
	flagvalue.AddShare(flags, &p.Loss.Probability, "loss", "share lost on the way to the secondary (0: none)")
	flagvalue.AddShare(flags, &p.LossBA.Probability, "loss-back", "share lost on the way to the primary (0: none)")
	linkflag.AddLossPlace(flags, &p.LossPlace)
	flagvalue.AddCount(flags, &p.Seed, "seed", "seed of the random choices")
	flagvalue.AddCount(flags, &c.Names, "names", "hosts in the zone, about 276 bytes of a transfer each")
	flagvalue.AddCount(flags, &c.Changes, "changes", "incremental transfers")
	flagvalue.AddDuration(flags, &c.Patience, "timeout", "a transfer that takes longer is unfinished")
	linkflag.AddHostBuffers(flags, &c.WindowBDP, "buffers of the name servers, in BDP (0: the kernel's own)")
	flagvalue.AddNames(flags, &c.named, "cc", "congestion controls of the primary (all of the kernel's)")
	flagvalue.AddNames(flags, &c.Options.Cases, "case", "run only these cases (all)")
	flagvalue.AddCount(flags, &c.Repeat, "repeat", "run each case this many times")
	flags.BoolVar(&c.quick, "quick", false, "a zone of 5 MB, 3 changes, a timeout of 20 s")
}

func (c *command) Check(flags *pflag.FlagSet) (err error) {
	if c.quick {
		if !flags.Changed("names") {
			c.Names = QuickNames
		}
		if !flags.Changed("changes") {
			c.Changes = 3
		}
		if !flags.Changed("timeout") {
			c.Patience = 20 * time.Second
		}
	}
	if c.Options.Algorithms, err = algorithmsOf(c.named, c.Options.Cases); err != nil {
		return err
	}
	if err := c.Options.Check(); err != nil {
		return err
	}
	if reason := c.Missing(); reason != "" {
		return experiment.Lack("zone-transfer cannot run here: " + reason)
	}
	return nil
}

// algorithmsOf are the congestion controls that the named cases run, those
// that are named if no case is, or nil for all.
func algorithmsOf(named, cases []string) ([]string, error) {
	var wanted []string
	for _, name := range cases {
		algorithm, direct := strings.CutPrefix(name, "direct-")
		switch {
		case direct:
			wanted = append(wanted, algorithm)
		case name != "relay":
			return nil, fmt.Errorf("zone-transfer has no case %q: it has relay, and direct-NAME for every congestion control", name)
		}
	}
	if len(cases) > 0 {
		return wanted, nil
	}
	return named, nil
}

// onlyRelays says whether no case needs a congestion control.
func (c *command) onlyRelays() bool { return c.Options.Algorithms == nil && len(c.Options.Cases) > 0 }

// Algorithms are those that the cases run, or all of longhaul's own.
func (c *command) Algorithms() experiment.Algorithms {
	wanted := c.Options.Algorithms
	if c.onlyRelays() {
		return experiment.Algorithms{}
	}
	return experiment.Algorithms{Names: wanted, All: len(wanted) == 0, Required: len(wanted) > 0}
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	c.Program, c.Report = env.Program, env.Report
	if !c.onlyRelays() {
		var err error
		if c.Options.Algorithms, err = tcpcc.Choose(c.Options.Algorithms); err != nil {
			return nil, err
		}
	}
	return c.Options.Run(ctx)
}

// Judge says whether each secondary has the primary's zone.
func (r Result) Judge() error {
	if slices.ContainsFunc(r.Cases, func(c Case) bool { return !c.Identical }) {
		return errors.New("a secondary's zone is not the primary's: look at the case")
	}
	return nil
}

// WriteText prints the result in 80 columns.
func (r Result) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "case\tAXFR\tspread\ton the wire\tMb/s\tIXFR\tslowest\tsame zone\t\n")
	seconds := func(s *float64, verb string) string {
		if s == nil {
			return "-"
		}
		return fmt.Sprintf(verb, *s)
	}
	for _, c := range r.Cases {
		full, spread := seconds(c.AXFRSeconds, "%.1f s"), "-"
		if !c.AXFRFinished {
			full = "unfinished"
			if c.AXFRSecondsTotal != nil {
				full = "~" + (time.Duration(*c.AXFRSecondsTotal) * time.Second).String()
			}
		} else if c.Runs > 1 {
			spread = fmt.Sprintf("±%.1f s", (*c.AXFRMaxSeconds-*c.AXFRMinSeconds)/2)
		}
		slowest := seconds(c.IXFRSecondsMax, "%.1f s")
		if c.IXFRUnfinished > 0 {
			slowest = fmt.Sprintf("%d unfinished", c.IXFRUnfinished)
		}
		same := "yes"
		if !c.Identical {
			same = "NO"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%.2f\t%s\t%s\t%s\t\n", c.Name, full, spread,
			seconds(c.AXFRWireSeconds, "%.1f s"), c.AXFRBps/1e6, seconds(c.IXFRSecondsP50, "%.2f s"), slowest, same)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	zone := fmt.Sprintf("A signed zone of %d names", r.Zone.Names)
	if r.Zone.TransferBytes > 0 {
		zone += fmt.Sprintf(", %.1f MB in a transfer", float64(r.Zone.TransferBytes)/1e6)
	}
	_, err := fmt.Fprintf(w, `%s; %d changes of %d names.
AXFR: until the secondary serves the zone; ~: what it would take at the rate seen
in %v s. IXFR: median, from refresh until the change is served.
%.4g Mb/s, %v ms RTT, %v %% lost %s the bottleneck; the limit is %s
`, zone, r.Zone.Changes, r.Zone.ChangedNames, r.Conditions["patience_s"],
		float64(r.Conditions["rate_bps"].(int64))/1e6, r.Conditions["rtt_ms"], 100*r.Conditions["loss_ab"].(float64),
		r.Conditions["loss_place"], display.Rate(r.Conditions["limit_bps"].(float64)))
	return err
}
