//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/handover"
	"longhaul/internal/run/daemon"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

func newUpgrade(env *env) *cobra.Command {
	var (
		asJSON       bool
		binary       string
		drainTimeout time.Duration
		chosen       relayChoice
	)
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Replace the running relay by the program now at its path",
		Long: `upgrade has the running relay start the program now at its path, with the same
command line, and hand it the listening sockets. No connection is refused, and
no flow is interrupted. The new process reads the configuration, as after a
restart. When it is ready the old process stops accepting. The old process ends
with its last flow; until then longhaul status lists it.

If the new process does not get ready (invalid configuration, crash, 30 s
without an answer), the old one serves on unchanged. upgrade then prints the new
process's last log lines and exits with 1.`,
		Example: `  install -m 755 longhaul-new /usr/bin/longhaul && longhaul upgrade
  longhaul upgrade --drain-timeout 1h
  longhaul upgrade --binary /opt/longhaul/next`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&binary, "binary", "", "start the program in this `FILE` instead")
	flagvalue.AddDurationOrOff(flags, &drainTimeout, "", "drain-timeout",
		"reset flows of the old process after this time (off: never)")
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		arguments := url.Values{}
		if binary != "" {
			absolute, err := filepath.Abs(binary)
			if err != nil {
				return err
			}
			if err := handover.Executable(absolute); err != nil {
				return remedy.New(fmt.Errorf("--binary: %w", err), "name a program that the relay's user may start")
			}
			arguments.Set("binary", absolute)
		}
		if flags.Changed("drain-timeout") {
			arguments.Set("drain_timeout", drainTimeout.String())
		}
		return tellUpgrade(cmd.Context(), env, chosen, arguments, asJSON)
	}
	return cmd
}

// upgradePatience is longer than the relay's own timeout for the new process.
const upgradePatience = daemon.ReadyPatience + 3*daemon.ServingPatience

func tellUpgrade(ctx context.Context, env *env, chosen relayChoice, arguments url.Values, asJSON bool) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, upgradePatience)
	defer cancel()
	body, err := tellRelay(ctx, env, chosen, "upgrade", arguments)
	switch {
	case errors.Is(err, context.Canceled):
		return remedy.New(errors.New("interrupted the upgrade"), "longhaul status shows which process serves")
	case err != nil:
		return err
	}
	if asJSON {
		_, err := env.stdout.Write(body)
		return err
	}
	var u daemon.Upgraded
	if err := json.Unmarshal(body, &u); err != nil {
		return remedy.New(fmt.Errorf("read the relay's answer: %w", err), "longhaul status shows which process serves")
	}
	_, err = fmt.Fprint(env.stdout, upgradeText(u))
	return err
}

// upgradeText prints the outcome in a few lines.
func upgradeText(u daemon.Upgraded) string {
	var b strings.Builder
	fmt.Fprintf(&b, "process %d has taken over from %d after %.2f s\n", u.NewPID, u.OldPID, u.Seconds)
	if u.NewVersion != u.OldVersion {
		fmt.Fprintf(&b, "  old: %s\n  new: %s\n", u.OldVersion, u.NewVersion)
	}
	if u.FlowsLeft > 0 {
		fmt.Fprintf(&b, "%s to end in process %d\n  longhaul status --control-socket %s\n", display.Plural(int(u.FlowsLeft), "flow"), u.OldPID, u.ControlSocket)
	}
	return b.String()
}
