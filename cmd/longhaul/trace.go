//go:build linux

package main

import (
	"encoding/json"
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
		asJSON bool
		chosen relayChoice
	)
	cmd := &cobra.Command{
		Use:   "trace NAME",
		Short: "Show one flow from end to end: client leg, WAN and target leg side by side",
		Long: `trace shows a running flow as the relays that carry it see it, at any of them,
and names the part that limits it. NAME is the flow's name, which is the same at
every relay, or the first 8 digits of it or more. The relay asks the other one
of its pair, which asks the one behind it, and waits 2 s for the answer. If it
gets none, trace says why, and shows what this relay knows.

Figures of a leg are up / down: of its sender towards the target, and of its
sender towards the client. rate is over the latest second, again the share that
was sent more than once, window the congestion window, peer has the room that
the receiver has announced, and waits what was sent or is to be sent, without an
acknowledgement. The causes are doctor's.`,
		Example: `  longhaul trace 5f3a0bc1
  longhaul trace 5f3a0bc1-2233-4455-8677-8899aabbccdd --json | jq .limit`,
		Args: exactArgs(1, "the name of a flow, which longhaul status --json lists"),
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := flow.ParseNamePrefix(args[0]); err != nil {
			return usageError(remedy.New(err, "longhaul status --json lists the flows that run, with their names"))
		}
		body, err := tellRelay(cmd.Context(), env, chosen, "trace", url.Values{"name": {args[0]}})
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
