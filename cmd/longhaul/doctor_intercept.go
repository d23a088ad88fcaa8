//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/carry/intercept"
	"longhaul/internal/find/doctor/examine"
	"longhaul/internal/find/doctor/routing"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// examineInterception judges the way to each target, or to one of each tunnel.
func examineInterception(ctx context.Context, cmd *cobra.Command, env *env, f *doctorFlags, args []string) error {
	observer, targets, err := interceptionFlags(cmd, f, args)
	if err != nil {
		return err
	}
	relays, err := intercept.NewHost(env.by()).Show()
	if err != nil {
		return err
	}
	relays = slices.DeleteFunc(relays, intercept.Status.HasEnded)
	if len(relays) == 0 {
		return remedy.New(errors.New("no relay intercepts here: new connections go directly"), "start one, or run doctor on its host")
	}
	if len(targets) == 0 {
		targets = []netip.AddrPort{{}} // one of a flow
	}
	verdicts := []routing.Verdict{}
	var unobserved []error // tunnels of which no target or no client is known
	for _, target := range targets {
		taken := false
		for _, r := range relays {
			for _, t := range r.Tunnels {
				if target.IsValid() && !t.LeadsTo(target) {
					continue
				}
				taken = true
				o, err := observer.Observe(ctx, r, t, target)
				if err != nil && ctx.Err() != nil {
					return errors.New("interrupted before the verdict")
				}
				if err != nil {
					unobserved = append(unobserved, err)
					continue
				}
				verdicts = append(verdicts, routing.Judge(o))
			}
		}
		if !taken {
			return remedy.New(fmt.Errorf("no tunnel intercepts connections to %s", target), "see longhaul intercept show")
		}
	}
	for i, err := range unobserved {
		if i == 0 && len(verdicts) == 0 {
			return err
		}
		note(env, err)
	}
	if f.json {
		return display.WriteJSON(env.stdout, map[string]any{"ways": verdicts})
	}
	for i, v := range verdicts {
		if i > 0 {
			fmt.Fprintln(env.stdout)
		}
		if err := v.WriteText(env.stdout); err != nil {
			return err
		}
	}
	return nil
}

// interceptionFlags reads the flags that --intercept takes, and refuses others.
func interceptionFlags(cmd *cobra.Command, f *doctorFlags, args []string) (o routing.Observer, targets []netip.AddrPort, err error) {
	allowed := []string{"intercept", "client", "time", "json", "netns"}
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if !slices.Contains(allowed, flag.Name) {
			err = usageError(errors.New("--intercept takes only --client, --time, --json and --netns"))
		}
	})
	if !f.intercept {
		err = usageError(errors.New("--client goes with --intercept"))
	}
	if err == nil && f.During < examine.MinWatch {
		err = usageError(fmt.Errorf("--time %v is too short: use 1s or more", f.During))
	}
	if err != nil {
		return o, nil, err
	}
	o.During = f.During
	if f.client != "" {
		if o.Client, err = netip.ParseAddr(f.client); err != nil {
			return o, nil, usageError(remedy.New(fmt.Errorf("invalid address %q of a client", f.client), "use one such as 10.10.10.7"))
		}
	}
	for _, text := range args {
		target, err := netip.ParseAddrPort(text)
		if err != nil {
			return o, nil, usageError(remedy.New(fmt.Errorf("invalid target %q", text), "use an address with a port, such as 10.20.20.5:22"))
		}
		targets = append(targets, target)
	}
	return o, targets, nil
}
