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

	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
	"longhaul/internal/sys/process"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

func newStop(env *env) *cobra.Command {
	var (
		asJSON       bool
		drainTimeout time.Duration
		chosen       relayChoice
	)
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the running relay once its flows have ended, and wait for that",
		Long: `stop has the running relay stop as SIGTERM does: it accepts no flows, and waits
for existing ones until the drain timeout, when it resets them. stop returns
when the relay has ended. A second stop with a shorter --drain-timeout shortens
the wait.

An interrupt ends this command only: the relay goes on stopping. systemd stops
a relay that it runs (systemctl stop longhaul).

Exit codes: 0 every flow had ended, 1 failed, 2 wrong command line, 3 flows had
not ended at the drain timeout.`,
		Example: `  longhaul stop
  longhaul stop --name site-b --drain-timeout 10m`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flagvalue.AddDurationOrOff(flags, &drainTimeout, "", "drain-timeout",
		"reset flows after this time, or off: never (the relay's)")
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		arguments := url.Values{}
		if flags.Changed("drain-timeout") {
			arguments.Set("drain_timeout", drainTimeout.String())
		}
		body, err := stopRelay(cmd.Context(), env, chosen, arguments)
		if err != nil {
			return err
		}
		var s daemon.Stopped
		if err := json.Unmarshal(body, &s); err != nil {
			return fmt.Errorf("read the relay's answer: %w", err)
		}
		if asJSON {
			_, err = env.stdout.Write(body)
		} else {
			_, err = fmt.Fprintln(env.stdout, s)
		}
		if err == nil && s.Reset+s.Left > 0 {
			return &exitError{status: exitDrained}
		}
		return err
	}
	return cmd
}

// endPatience bounds the time from the relay's answer to the end of its process.
const endPatience = 30 * time.Second

// stopRelay stops the chosen relay. It returns the relay's answer at the end of the
// process.
func stopRelay(ctx context.Context, env *env, chosen relayChoice, arguments url.Values) ([]byte, error) {
	path, err := chosen.path(ctx, env)
	if err != nil {
		return nil, err
	}
	pid, err := control.PIDOf(ctx, path)
	if err != nil {
		return nil, controlError(err)
	}
	relay, openErr := process.Open(pid)
	if openErr == nil {
		defer relay.Close()
	}
	tellOlder(ctx, env, path)

	ctx, cancel := untilSignal(ctx)
	defer cancel()
	watched := make(chan struct{})
	watching, unwatch := context.WithCancel(ctx)
	go func() {
		defer close(watched)
		watchDrain(watching, env, path)
	}()
	body, err := control.Do(ctx, path, "stop", arguments)
	unwatch()
	<-watched
	if err != nil && ctx.Err() != nil {
		return nil, remedy.New(errors.New("interrupted the wait; the relay goes on stopping"),
			"longhaul status shows the flows left, longhaul stop waits again")
	}
	if err == nil && openErr == nil {
		ctx, cancel := context.WithTimeout(ctx, endPatience)
		defer cancel()
		_ = relay.Wait(ctx) // its flows have ended: the outcome is known
	}
	return body, controlError(err)
}

// tellOlder says which older processes a stop waits for.
func tellOlder(ctx context.Context, env *env, path string) {
	s, err := flowSummary(ctx, path)
	if err != nil {
		return // stop reports what is wrong
	}
	for _, older := range s.OlderProcesses {
		flows := "flows"
		if older.FlowsNow != nil {
			flows = display.Plural(int(*older.FlowsNow), "flow")
		}
		fmt.Fprintf(env.stderr, "longhaul: process %d, which this relay replaced, still finishes %s: stop waits for them\n",
			older.PID, flows)
	}
}

// watchDrain shows on a terminal how many flows are left, until ctx ends.
func watchDrain(ctx context.Context, env *env, path string) {
	if !display.IsTerminal(env.stderr) {
		return
	}
	terminal := display.Raw(env.stderr)
	defer fmt.Fprint(terminal, "\r\x1b[K")
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s, err := flowSummary(ctx, path)
		if err != nil {
			continue
		}
		line := display.Plural(int(s.TotalFlows()), "flow") + " left"
		if s.SecondsLeft != nil {
			line += ", reset in " + display.Age(*s.SecondsLeft)
		}
		fmt.Fprintf(terminal, "\r%s\x1b[K", line)
	}
}

// flowSummary returns the flows of a relay and of the processes that it replaced.
func flowSummary(ctx context.Context, path string) (s daemon.Summary, err error) {
	ctx, cancel := context.WithTimeout(ctx, verbPatience)
	defer cancel()
	body, err := control.Do(ctx, path, "summary", url.Values{"older": {"true"}})
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}
