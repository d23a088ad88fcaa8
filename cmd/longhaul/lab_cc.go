//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"longhaul/internal/cc"
	"longhaul/internal/lab/sandbox"
)

// withOwnCC runs an experiment with those of longhaul's congestion controls
// loaded that it names, or with all that can be if it names none, and takes
// those out again that were not there before. It does so outside the sandbox:
// the kernel has one table of algorithms for the whole machine.
func withOwnCC(ctx context.Context, env *env, names []string, run func() error) error {
	return withCC(ctx, env, names, len(names) > 0, run)
}

// withCC does so, and makes it an error if one that is named cannot be loaded,
// or only says so.
func withCC(ctx context.Context, env *env, names []string, must bool, run func() error) (err error) {
	if sandbox.Inside() {
		return run()
	}
	host := cc.NewHost()
	own, err := host.Names()
	if err != nil {
		return err
	}
	var refused []string
	for _, name := range own {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		result, loadErr := host.Load(ctx, name, name)
		switch {
		case errors.Is(loadErr, cc.ErrTaken): // a kernel module's: that one is run
		case loadErr != nil && must:
			return ccError(loadErr)
		case loadErr != nil:
			refused = append(refused, name)
			err = loadErr
		case result.Outcome == cc.Loaded:
			defer func() {
				// Not with the context: an interrupt must not leave it loaded.
				_, unloadErr := host.Unload(context.WithoutCancel(ctx), name)
				err = errors.Join(err, unloadErr)
			}()
		}
	}
	if len(refused) > 0 {
		fmt.Fprintf(env.stderr, "longhaul: %s: not run: %v\n", strings.Join(refused, ", "), err)
	}
	return run()
}
