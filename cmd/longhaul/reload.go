//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"longhaul/internal/run/config"
	"longhaul/internal/run/daemon"
	"longhaul/internal/words/remedy"
)

func newReload(env *env) *cobra.Command {
	var (
		asJSON bool
		chosen relayChoice
	)
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the running relay read its configuration file again",
		Long: `reload has the running relay read its file again, as SIGHUP does, and prints
what has changed. Flows go on, those of a removed tunnel as well. After any
mistake or failure the old configuration serves on. A relay made by flags has no
file: it tries again what has failed, such as an algorithm that was not loaded.

Exit codes: 0 the file is in force, 1 it could not be put into force, or no
relay answers, 2 the file has mistakes, which are printed.`,
		Example: `  longhaul reload
  longhaul reload --name site-b --json`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print the outcome as JSON")
	chosen.register(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		body, err := tellRelay(ctx, env, chosen, "reload", nil)
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
