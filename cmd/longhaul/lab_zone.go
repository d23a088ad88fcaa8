//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/display"
	"longhaul/internal/lab"
	"longhaul/internal/lab/congestion"
	"longhaul/internal/units"
)

// zoneTransfer is the experiment with real name servers.
func zoneTransfer() experiment {
	algorithms, _ := congestion.Available() // none is said when it is run
	return experiment{
		name:    "zone-transfer",
		summary: "AXFR and IXFR of a signed zone between two name servers, 300 ms and 10 % loss apart",
		source:  "DNS zone transfers to far name servers, and what the sender's congestion control makes of them",
		cases:   lab.ZoneTransfer{Algorithms: algorithms}.CaseNames(),
		command: newLabRunZone,
	}
}

func newLabRunZone(env *env) *cobra.Command {
	z := lab.ZoneTransfer{Conditions: lab.LossyConditions()}
	var (
		algorithms    []string
		quick, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "zone-transfer",
		Short: "Zone transfers between two name servers over a lossy long path",
		Long: `zone-transfer runs a primary name server at site A and a secondary at site B
(Knot DNS, both), with a generated and signed zone of 50 MB. It times the full
transfer to an empty secondary and a series of incremental ones, without relays
under each congestion control that the kernel has and each of longhaul's own,
and through a pair of longhaul relays; and compares the zones of both servers
after each.`,
		Example: `  longhaul lab run zone-transfer
  longhaul lab run zone-transfer --quick --case relay --case direct-cubic`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := cmd.Flags()
			if quick {
				if !flags.Changed("names") {
					z.Names = lab.QuickZoneNames
				}
				if !flags.Changed("changes") {
					z.Changes = 3
				}
				if !flags.Changed("patience") {
					z.Patience = 20 * time.Second
				}
			}
			// Refused here, so that a mistake loads nothing and costs no sandbox.
			wanted, err := zoneAlgorithms(algorithms, z.Cases)
			if err != nil {
				return usageError(err)
			}
			z.Algorithms = wanted
			if err := z.Check(); err != nil {
				return usageError(err)
			}
			if reason := z.Missing(); reason != "" {
				return errors.New("zone-transfer cannot run here: " + reason)
			}
			inside := labRun(env, &asJSON, func(ctx context.Context, program string) (lab.ZoneResult, error) {
				progress := newProgress(env.stderr)
				defer progress.clear()
				z.Program, z.Notef, z.Progress = program, progress.note, progress.zone
				return z.Run(ctx)
			}, writeZoneTable, judgeZone)
			if wanted == nil && len(z.Cases) > 0 {
				return inside(cmd, args) // relays only
			}
			return withOwnCC(cmd.Context(), env, wanted, func() error {
				var err error
				if z.Algorithms, err = congestion.Choose(wanted); err != nil {
					return err
				}
				return inside(cmd, args)
			})
		},
	}
	flags := cmd.Flags()
	c := &z.Conditions
	add := func(name, usage, shown string, set func(string) error) {
		flags.Var(&conditionFlag{shown: shown, set: set}, name, usage)
	}
	add("rtt", "round-trip time", c.RTT.String(), durationInto(&c.RTT))
	add("rate", "bottleneck", units.Rate(c.RateBps).String(), rateInto(&c.RateBps))
	add("loss", "share lost on the way to the secondary", "10%", shareInto(&c.Loss.Probability))
	add("loss-back", "share lost on the way to the primary", "0", shareInto(&c.LossBA.Probability))
	add("loss-place", "lost before or after the bottleneck", "before", lossPlaceInto(&c.LossPlace))
	flags.Uint64Var(&c.Seed, "seed", c.Seed, "seed of the random choices")
	flags.IntVar(&z.Names, "names", lab.FullZoneNames, "hosts in the zone, about 276 bytes of a transfer each")
	flags.IntVar(&z.Changes, "changes", 10, "incremental transfers")
	flags.DurationVar(&z.Patience, "patience", time.Minute, "a transfer that takes longer is unfinished")
	flags.Float64Var(&z.WindowBDP, "window", 0, "raise the name servers' buffers to so many BDP (0: the kernel's own)")
	flags.StringSliceVar(&algorithms, "algorithms", nil, "the primary's congestion controls (all of the kernel's)")
	flags.StringArrayVar(&z.Cases, "case", nil, "run only this case (may be given again)")
	flags.IntVar(&z.Repeat, "repeat", 1, "run each case this many times")
	flags.BoolVar(&quick, "quick", false, "a zone of 5 MB, 3 changes, 20 s of patience")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// zoneAlgorithms are the congestion controls that the named cases run, those
// that are named if no case is, or nil for all.
func zoneAlgorithms(named, cases []string) ([]string, error) {
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

func judgeZone(r lab.ZoneResult) error {
	if slices.ContainsFunc(r.Cases, func(c lab.ZoneCase) bool { return !c.Identical }) {
		return errors.New("a secondary's zone is not the primary's: look at the case")
	}
	return nil
}

// writeZoneTable prints the result in 80 columns.
func writeZoneTable(w io.Writer, r lab.ZoneResult) error {
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
