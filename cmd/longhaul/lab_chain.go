//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"longhaul/internal/lab/chain"
)

// checkExperiment breaks a chain of relays in known ways.
func checkExperiment() experiment {
	return experiment{
		name:    "check",
		summary: "what longhaul check says of a chain of relays that is broken in known ways",
		source:  "no report: what is in the way is known",
		cases:   chainCases(),
		command: newLabRunCheck,
	}
}

func chainCases() (names []string) {
	for _, c := range chain.Cases() {
		names = append(names, c.Name)
	}
	return names
}

func newLabRunCheck(env *env) *cobra.Command {
	var (
		names  []string
		seed   uint64
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "check",
		Short: "What longhaul check says of a chain of relays broken in known ways",
		Long: `check builds a chain of three relays and a target, each on a host of its own:
20 and 30 ms apart, at 500 and 200 Mb/s. In each case something else is wrong
with it: a relay or the target is down, a link is cut, a program between two
relays alters bytes, a link loses some, or nothing. The table says whether
longhaul check names what it is, and where, and how long it takes.

Exit codes: 0 each case is right and took 5 s at the most, 1 one is not.`,
		Example: `  longhaul lab run check
  longhaul lab run check --case altered-bc-data --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := knownCases(names, chainCases()); err != nil {
				return err
			}
			cases := chain.Cases()
			if len(names) > 0 {
				cases = slices.DeleteFunc(cases, func(c chain.Case) bool { return !slices.Contains(names, c.Name) })
			}
			return labRun(env, &asJSON, func(ctx context.Context, program string) (chain.Outcome, error) {
				progress := newProgress(env.stderr)
				defer progress.clear()
				return chain.Run(ctx, cases, chain.Options{Program: program, Seed: seed, Progress: func(done, of int, last chain.Result) {
					progress.note("%d/%d %s, %.2f s", done, of, last.Case, last.Seconds)
				}})
			}, writeChains, judgeChains)(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&names, "case", nil, "run only this case (may be given again)")
	flags.Uint64Var(&seed, "seed", 1, "seed of what is lost and altered")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func judgeChains(o chain.Outcome) error {
	if o.Right < o.Run {
		return &exitError{status: exitFailure}
	}
	return nil
}

func writeChains(w io.Writer, o chain.Outcome) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\tcase\tseconds\tsaid\n")
	for _, r := range o.Cases {
		right := "ok"
		if !r.Right {
			right = "NO"
		}
		said := r.Got.String()
		switch {
		case r.Skipped != "":
			right, said = "-", "not run: "+r.Skipped
		case r.Error != "":
			said = r.Error
		}
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%s\n", right, r.Case, r.Seconds, said)
		if !r.Right && r.Skipped == "" && r.Error == "" {
			fmt.Fprintf(t, "\t\t\twanted %s\n", r.Want)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d of %d right, the slowest in %.2f s\n", o.Right, o.Run, o.SlowestSeconds)
	return err
}
