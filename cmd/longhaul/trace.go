//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/trace"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

func newTrace(env *env) *cobra.Command {
	var (
		asJSON   bool
		uniqueID string
		chosen   relayChoice
	)
	cmd := &cobra.Command{
		Use:   "trace (NAME | --unique-id TEXT)",
		Short: "Show one flow from end to end: client leg, WAN and target leg side by side",

		DisableFlagsInUseLine: true,

		Long: `trace shows a running flow as the relays that carry it see it, at any of them,
and names the part that limits it. NAME is the flow's name, which is the same at
every relay, or the first 8 digits of it or more; --unique-id finds the flow
that a proxy, such as HAProxy, gave an identifier. The relay asks the other one
of its pair, which asks the one behind it, and waits 2 s for the answer. If it
gets none, trace says why, and shows what this relay knows.

Figures of a leg are up / down: of its sender towards the target, and of its
sender towards the client. rate is over the latest second, again the share that
was sent more than once, window the congestion window, peer has the room that
the receiver has announced, and waits what was sent or is to be sent, without an
acknowledgement. The causes are doctor's.`,
		Example: `  longhaul trace 5f3a0bc1
  longhaul trace 5f3a0bc1-2233-4455-8677-8899aabbccdd --json | jq .limit
  longhaul trace --unique-id C0000201:04D2_C6336402:1770_65A1_01:1F40`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch given := cmd.Flags().Changed("unique-id"); {
			case given && len(args) > 0:
				return usageError(remedy.New(errors.New("choose a name, or --unique-id"), "leave one of them out"))
			case given:
				return nil
			}
			return exactArgs(1, "the name of a flow, which longhaul status --json lists")(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	flags.StringVar(&uniqueID, "unique-id", "", "the flow with this identifier `TEXT` of a proxy in front of the relays")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := flow.NameOf([]byte(uniqueID)).String()
		if len(args) > 0 {
			name = args[0]
		} else if name == "" {
			return usageError(remedy.New(errors.New("missing identifier of a flow"), "give --unique-id TEXT a text, or the flow's name"))
		}
		if _, err := flow.ParseNamePrefix(name); err != nil {
			return usageError(remedy.New(err, "longhaul status --json lists the flows that run, with their names; a proxy's identifier takes --unique-id TEXT"))
		}
		body, err := tellRelay(cmd.Context(), env, chosen, "trace", url.Values{"name": {name}})
		if err != nil {
			return err
		}
		var r trace.Report
		if err := json.Unmarshal(body, &r); err != nil {
			return remedy.New(fmt.Errorf("cannot read the relay's answer: %w", err), "the relay may be of another version")
		}
		if asJSON {
			return display.WriteJSON(env.stdout, r)
		}
		r.WriteText(env.stdout)
		return nil
	}
	return cmd
}
