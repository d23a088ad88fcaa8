//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/report"
	"longhaul/internal/words/display"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

func newHistoryShow(env *env) *cobra.Command {
	var s historySelection
	var uniqueID string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show (ID | NAME | --unique-id TEXT)",
		Short: "Show one flow: both legs, its relays, and its goodput over time",

		DisableFlagsInUseLine: true,

		Long: `show prints one record whole: addresses, times, the figures of both legs, the
causes that limited the flow, the reason of its end, and its goodput over time.
It takes the ID that longhaul history lists, or the name that the flow has in
the logs, the status and the history of every relay that carried it: 32
hexadecimal digits, with hyphens or without. A relay has several records of a
name if the flow passed several of its tunnels; show prints all, the first one
first. With --db they are those of all relays of the flow's way. --unique-id
finds the flow that a proxy, such as HAProxy, gave an identifier.`,
		Example: `  longhaul history show 4711
  longhaul history show 5f3a1c2e-9b7d-4e0f-8a6b-0c1d2e3f4a5b --json
  longhaul history show --unique-id C0000201:04D2_C6336402:1770_65A1_01:1F40`,
		Args: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed("unique-id")
			if given && len(args) > 0 {
				return usageError(remedy.New(errors.New("choose an ID or name, or --unique-id"), "leave one of them out"))
			}
			if given {
				return nil
			}
			return exactArgs(1, "the ID of a record or the name of a flow")(cmd, args)
		},
	}
	s.addSource(cmd)
	cmd.Flags().StringVar(&uniqueID, "unique-id", "", "the flow with this identifier `TEXT` of a proxy in front of the relays")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name := flow.NameOf([]byte(uniqueID))
		if len(args) > 0 {
			if id, err := strconv.ParseInt(args[0], 10, 64); err == nil && id > 0 {
				return s.run(env, func(ctx context.Context, r history.Source) error {
					record, err := r.Get(ctx, id)
					if err != nil {
						return err
					}
					if asJSON {
						return display.WriteJSON(env.stdout, record)
					}
					report.WriteRecord(env.stdout, &record)
					return nil
				})
			}
			var err error
			if name, err = flow.ParseName(args[0]); err != nil {
				return usageError(remedy.New(err, "longhaul history lists records with their IDs; --json has their names"))
			}
		}
		if name.IsZero() {
			return usageError(remedy.New(errors.New("missing identifier of a flow"), "give --unique-id TEXT a text, or the flow's name"))
		}
		return s.run(env, func(ctx context.Context, r history.Source) error {
			records, err := r.Query(ctx, history.Query{Name: name, Limit: -1})
			if err != nil {
				return err
			}
			slices.Reverse(records) // the first one first
			if s.db != "" {
				history.SortByWay(records)
			}
			tunnels := s.tunnelsWith(name)
			if len(records) == 0 {
				return noSuchFlow(ctx, r, name, uniqueID, tunnels)
			}
			if err := s.showAll(env, r, records, asJSON); err != nil {
				return err
			}
			if len(tunnels) > 0 {
				fmt.Fprintf(env.stderr, "the flow runs still in the tunnel %s; %s\n", joinWords(tunnels), traceHint(name))
			}
			return nil
		})
	}
	return cmd
}

// tunnelsWith lists the tunnels of the relay in which a flow runs.
func (s *historySelection) tunnelsWith(name flow.Name) (tunnels []string) {
	for _, f := range s.running {
		if f.Name == name && !slices.Contains(tunnels, f.Tunnel) {
			tunnels = append(tunnels, f.Tunnel)
		}
	}
	return tunnels
}

func traceHint(name flow.Name) string { return fmt.Sprintf("longhaul trace %v shows it", name) }

// noSuchFlow is the error for a name without a record, or for a proxy's identifier that stands for it.
func noSuchFlow(ctx context.Context, r history.Source, name flow.Name, uniqueID string, tunnels []string) error {
	if len(tunnels) > 0 {
		return remedy.New(fmt.Errorf("the flow %v runs still, in the tunnel %s: it gets a record when it ends", name, joinWords(tunnels)), traceHint(name))
	}
	extent, err := r.Extent(ctx)
	if err != nil {
		return err
	}
	holds := "no records"
	if extent.Records > 0 {
		holds = fmt.Sprintf("records of flows that ended %s", units.Period{From: extent.Oldest, To: extent.Newest})
	}
	asked, hint := name.String(), "a flow that still runs has no record, but "+traceHint(name)+"; or look at the other relays of its way"
	if uniqueID != "" {
		asked = fmt.Sprintf("with the identifier %q", printable.String(uniqueID))
		hint = "capitals and small letters of an identifier differ; " + hint
	}
	return remedy.New(fmt.Errorf("no flow %s in %s, which has %s", asked, r.Name(), holds), hint)
}

// showAll prints the records of a flow, with a line between them.
func (s *historySelection) showAll(env *env, r history.Source, records []monitor.Record, asJSON bool) error {
	if asJSON {
		key, name := s.named(r)
		return display.WriteJSON(env.stdout, map[string]any{key: name, "records": records})
	}
	for i := range records {
		if i > 0 {
			fmt.Fprintln(env.stdout)
		}
		report.WriteRecord(env.stdout, &records[i])
	}
	return nil
}
