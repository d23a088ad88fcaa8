//go:build linux

package main

import (
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

func newReload(env *env) *cobra.Command {
	var (
		asJSON, dryRun bool
		confirm        time.Duration
		chosen         relayChoice
	)
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the running relay read its configuration file again",
		Long: `reload has the running relay read its file again, as SIGHUP does, and prints
what has changed. Flows go on, those of a removed tunnel as well. After any
mistake or failure the old configuration serves on. A relay made by flags has no
file: it tries again what has failed, such as an algorithm that was not loaded.

--dry-run only prints the outcome, with the old and the new values of each key.
It also finds addresses that are taken, and changes nothing.

--confirm puts the file into force and goes back to the configuration before,
unless another longhaul reload without --confirm, or SIGHUP, follows in time. A
start meanwhile goes back at once, after a crash or a stop as well. The relay
then keeps the configuration before, at further starts as well, until a reload
succeeds.

Exit codes: 0 the file is in force, or would be, with or without a change, 1 it
could not be put into force, or no relay answers, 2 the file has mistakes, which
are printed.`,
		Example: `  longhaul reload
  longhaul reload --dry-run
  longhaul reload --confirm 2m && longhaul check --all && longhaul reload
  longhaul reload --name site-b --json`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	flags.BoolVar(&dryRun, "dry-run", false, "print what a reload would change, and change nothing")
	flagvalue.AddDuration(flags, &confirm, "confirm", "go back after this time, 1s to 24h, unless a reload confirms")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		verb, arguments := "reload", url.Values{}
		switch given := cmd.Flags().Changed("confirm"); {
		case given && dryRun:
			return usageError(remedy.New(errors.New("choose one of --dry-run and --confirm"), "longhaul reload --dry-run first"))
		case dryRun:
			verb = "reload-dry-run"
		case given:
			if err := daemon.CheckConfirm(confirm); err != nil {
				return usageError(err)
			}
			verb = "reload-confirm"
			arguments.Set("within", confirm.String())
		}
		body, err := tellRelay(ctx, env, chosen, verb, arguments)
		switch {
		case ctx.Err() != nil:
			return remedy.New(errors.New("interrupted the wait; the relay may still reload"),
				"longhaul status shows the last reload")
		case err != nil:
			return err
		}
		var r daemon.Reload
		if err := json.Unmarshal(body, &r); err != nil {
			return remedy.New(fmt.Errorf("read the relay's answer: %w", err), "longhaul status shows the last reload")
		}
		err = r.Err()
		if asJSON {
			if _, writeErr := env.stdout.Write(body); writeErr != nil || err == nil {
				return writeErr
			}
			return &exitError{status: exitCode(err)}
		}
		if err != nil {
			return err
		}
		printWarnings(env, daemon.Errors(r.Warnings))
		_, err = fmt.Fprint(env.stdout, &r)
		return err
	}
	return cmd
}

// printWarnings writes settings that are valid but rarely intended.
func printWarnings(env *env, warnings config.Errors) {
	for _, w := range warnings {
		writeWarning(env.stderr, fmt.Sprintf("%s: %s", w.At, w.Problem), w.Fix)
	}
}
