//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/run/config"
	"longhaul/internal/run/daemon"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

func newDrain(env *env) *cobra.Command {
	var (
		asJSON bool
		wait   time.Duration
		chosen relayChoice
	)
	cmd := &cobra.Command{
		Use:   "drain NAME",
		Short: "Take a tunnel or a hop of the running relay out of service",
		Long: `drain takes a tunnel out of service: the relay refuses new connections, as if
nothing listened, and keeps existing flows. A hop gets no new flows.

NAME is that of a tunnel, or the address on which it listens; or a hop as in the
file, for every tunnel that has it, or TUNNEL/HOP. A range of ports belongs to
the address.

A drained tunnel or hop stays drained over a reload and an upgrade, not over a
restart. longhaul resume puts it back. Draining again changes nothing.`,
		Example: `  longhaul drain to-b
  longhaul drain to-b --wait 5m && systemctl stop backup-target
  longhaul drain relay-b1:6000
  longhaul drain to-b/relay-b1:6000`,
		Args: exactArgs(1, "the name of one tunnel or hop"),
	}
	flags := cmd.Flags()
	flagvalue.AddDurationOrOff(flags, &wait, "", "wait", "wait for the end of its flows, at most so long; off: no bound")
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		arguments := url.Values{"name": {args[0]}}
		switch {
		case wait < 0:
			arguments.Set("wait", config.Off)
		case flags.Changed("wait"):
			arguments.Set("wait", wait.String())
		}
		return tellDrain(cmd.Context(), env, chosen, "drain", arguments, asJSON)
	}
	return cmd
}

func newResume(env *env) *cobra.Command {
	var (
		asJSON bool
		chosen relayChoice
	)
	cmd := &cobra.Command{
		Use:   "resume NAME",
		Short: "Put a drained tunnel or hop back into service",
		Long: `resume puts a tunnel or hop that longhaul drain took out back into service.
Resuming one that is in service changes nothing.`,
		Example: `  longhaul resume to-b
  longhaul resume to-b/relay-b1:6000`,
		Args: exactArgs(1, "the name of one tunnel or hop"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return tellDrain(cmd.Context(), env, chosen, "resume", url.Values{"name": {args[0]}}, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	chosen.register(flags)
	return cmd
}

// verbPatience is the timeout for a verb that the relay answers at once.
const verbPatience = 30 * time.Second

func tellDrain(ctx context.Context, env *env, chosen relayChoice, verb string, arguments url.Values, asJSON bool) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	if !arguments.Has("wait") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, verbPatience)
		defer cancel()
	}
	body, err := tellRelay(ctx, env, chosen, verb, arguments)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return remedy.New(errors.New("interrupted the wait; the drain stays in force"), "longhaul resume ends it")
		}
		return err
	}
	var d daemon.Drained
	if err := json.Unmarshal(body, &d); err != nil {
		return remedy.New(fmt.Errorf("read the relay's answer: %w", err),
			"the relay may be of another version; try --json")
	}
	if asJSON {
		_, err = env.stdout.Write(body)
	} else {
		_, err = fmt.Fprintln(env.stdout, d)
	}
	if err == nil && d.TimedOut {
		return fmt.Errorf("%s left after %s", d.FlowsText(), arguments.Get("wait"))
	}
	return err
}
