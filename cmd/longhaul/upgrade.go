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

	"github.com/spf13/cobra"

	"longhaul/internal/config"
	"longhaul/internal/daemon"
	"longhaul/internal/display"
	"longhaul/internal/handover"
	"longhaul/internal/remedy"
	"longhaul/internal/units"
)

func newUpgrade(env *env) *cobra.Command {
	var (
		asJSON         bool
		binary, within string
		chosen         relayChoice
	)
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Replace the running relay by the program that now lies at its path",
		Long: `upgrade has the running relay start the program that now lies at its path, with
the same command line, and hands it the listening sockets: no connection is
refused, and no flow is touched. The new process reads the configuration anew,
as after a restart; only when it is ready does the old one stop accepting. The
old one ends when its flows have; until then longhaul status names it.

If the new process does not get ready (a bad configuration, a crash, 30 s
without a word), the old one goes on as if nothing had been asked, and upgrade
exits with 1 and the new one's last words.`,
		Example: `  install -m 755 longhaul-new /usr/bin/longhaul && longhaul upgrade
  longhaul upgrade --within 1h
  longhaul upgrade --binary /opt/longhaul/next`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&binary, "binary", "", "start the program at this `PATH` instead")
	flags.StringVar(&within, "within", "", "reset flows that the old process has after `TIME` (never)")
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
		if within != "" && within != config.Off {
			d, err := units.ParseDuration(within)
			if err != nil {
				return usageError(remedy.New(fmt.Errorf("--within: %w", err), "write it like 1h, or off"))
			}
			arguments.Set("within", d.String())
		}
		return tellUpgrade(cmd.Context(), env, chosen, arguments, asJSON)
	}
	return cmd
}

// upgradePatience is longer than the relay takes to find out that the new
// process does not get ready.
const upgradePatience = daemon.ReadyPatience + 3*daemon.ServingPatience

func tellUpgrade(ctx context.Context, env *env, chosen relayChoice, arguments url.Values, asJSON bool) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, upgradePatience)
	defer cancel()
	body, err := tellRelay(ctx, env, chosen, "upgrade", arguments)
	switch {
	case errors.Is(err, context.Canceled):
		return remedy.New(errors.New("the upgrade was broken off"), "longhaul status shows which process serves")
	case err != nil:
		return err
	}
	if asJSON {
		_, err := env.stdout.Write(body)
		return err
	}
	var u daemon.Upgraded
	if err := json.Unmarshal(body, &u); err != nil {
		return remedy.New(fmt.Errorf("cannot read the relay's answer: %w", err), "longhaul status shows which process serves")
	}
	_, err = fmt.Fprint(env.stdout, upgradeText(u))
	return err
}

// upgradeText is the outcome in a few lines.
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
