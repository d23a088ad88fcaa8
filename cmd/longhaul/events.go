//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/flow"
	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

func newEvents(env *env) *cobra.Command {
	var (
		asJSON bool
		since  string
		limit  = 50
		chosen relayChoice
	)
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List when tunnels, hops and pairs changed their state, and why",
		Long: `events lists the latest changes of the running relay's state: of the relay
itself, its tunnels, hops, pairs, their paths and its interception, services of
the DNS and refused certificates. The relay remembers 1000 of them, also over
upgrades; with a history also over restarts.`,
		Example: `  longhaul events
  longhaul events --since 2h
  longhaul events --json | jq 'select(.kind == "hop")'`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print an object a line")
	flags.StringVar(&since, "since", "", "changes at `TIME` or later: 2h (ago), 2026-11-20, 14:30")
	flags.IntVar(&limit, "limit", limit, "list the last `N` changes; 0: all")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 0 {
			return usageError(remedy.New(fmt.Errorf("invalid --limit %d", limit), "give a number of changes, or 0 for all"))
		}
		period, err := units.ParseSpan(since, "", time.Now())
		if err != nil {
			return usageError(err)
		}
		path, err := chosen.path(cmd.Context(), env)
		if err != nil {
			return err
		}
		arguments := url.Values{}
		if !period.From.IsZero() {
			arguments.Set("since", period.From.Format(time.RFC3339Nano))
		}
		body, err := control.Do(cmd.Context(), path, "events", arguments)
		if err != nil {
			return controlError(err)
		}
		var answer daemon.Events
		if err := json.Unmarshal(body, &answer); err != nil {
			return remedy.New(fmt.Errorf("read the relay's answer: %w", err), "the relay may be of another version")
		}
		all := answer.Events
		if limit > 0 {
			all = all[max(0, len(all)-limit):]
		}
		if asJSON {
			for _, e := range all {
				if err := json.NewEncoder(env.stdout).Encode(e); err != nil {
					return err
				}
			}
			return nil
		}
		writeEvents(env.stdout, all)
		return nil
	}
	return cmd
}

// writeEvents prints a line for each change, and its reason on another. A name that is wider than its
// column stays whole on lines of its own: paths may differ in their middle alone.
func writeEvents(w io.Writer, all []flow.Event) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no changes")
		return
	}
	const row, names = "%-19s  %-12s %-24s %s\n", 24
	fmt.Fprintf(w, row, "TIME", "KIND", "OF", "CHANGE")
	for _, e := range all {
		of := strings.Join(slices.DeleteFunc([]string{e.Tunnel, e.Subject}, func(s string) bool { return s == "" }), " ")
		at, change := e.At.Local().Format(time.DateTime), e.From+" -> "+e.To
		if lead := fmt.Sprintf("%-19s  %-12s ", at, e.Kind); utf8.RuneCountInString(of) > names {
			display.WriteParagraph(w, lead, of+": "+change)
		} else {
			fmt.Fprintf(w, row, at, e.Kind, of, change)
		}
		if e.Reason != "" {
			display.WriteParagraph(w, "    ", display.FirstLine(e.Reason))
		}
	}
}
