//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/mss"
	"longhaul/internal/mss/pathprobe"
	"longhaul/internal/remedy"
)

// mssSet holds the flags of set.
type mssSet struct {
	mssData
	raise, clamp              int
	clampToPMTU, clampToRoute bool
	probe, namespace          string
	noProbe, watch, json      bool
	every                     time.Duration
}

func newMSSSet(env *env) *cobra.Command {
	var s mssSet
	cmd := &cobra.Command{
		Use:   "set --dev DEVICE [--toward PREFIX] [--from PREFIX] ACTION",
		Short: "Raise or clamp the MSS for some of the data",
		Long: `set adds a rule, or replaces the rule for the same data. The receiver of data
announces the MSS that bounds it. So a rule for data toward a prefix changes
the SYNs from there, and a rule for data from a prefix changes the SYNs to it.

Raising makes segments larger than the receiver asked for. Connections stall if
the path does not carry them. So set first sends packets of that size to a host
there, or asks one for them. It refuses the value if they do not get through.
With --watch it keeps probing, and removes the rule when the packets no longer
get through or when you interrupt it.

Clamping to the route or the path MTU is for forwarded connections. This host's
own connections already follow their routes.`,
		Example: `  longhaul mss set --dev eth0 --toward 203.0.113.9 --raise 1460
  longhaul mss set --dev eth0 --from 2001:db8:5::/48 --port 5432 --clamp 1300
  longhaul mss set --dev tun0 --clamp-to-pmtu`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rule, err := s.rule(cmd)
			if err != nil {
				return usageError(err)
			}
			if err := enterNamespace(s.namespace); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return s.run(ctx, env, rule)
		},
	}
	flags := cmd.Flags()
	s.register(flags)
	flags.IntVar(&s.raise, "raise", 0, "raise a smaller MSS to this, `BYTES`")
	flags.IntVar(&s.clamp, "clamp", 0, "lower a larger MSS to this, `BYTES`")
	flags.BoolVar(&s.clampToPMTU, "clamp-to-pmtu", false, "lower it to the MTU of the routes both ways")
	flags.BoolVar(&s.clampToRoute, "clamp-to-route", false, "lower it to the MTU of the data's route")
	flags.StringVar(&s.probe, "probe", "", "`ADDRESS` that answers full packets (the prefix, if one)")
	flags.BoolVar(&s.noProbe, "no-probe", false, "raise without probing the path")
	flags.BoolVar(&s.watch, "watch", false, "keep probing, and remove the rule when the path fails")
	flags.DurationVar(&s.every, "every", 10*time.Second, "time between two probes of --watch")
	flags.BoolVar(&s.json, "json", false, "print the outcome as JSON")
	namespaceFlag(flags, &s.namespace)
	return cmd
}

// rule builds the rule of the flags.
func (s *mssSet) rule(cmd *cobra.Command) (mss.Rule, error) {
	r := mss.Rule{Device: s.device, Toward: s.toward.Prefix, From: s.from.Prefix, Port: s.port}
	if r.Device == "" {
		return r, remedy.New(errors.New("missing --dev"),
			"add --dev DEVICE, the device that the connections pass; ip route get ADDRESS prints it")
	}
	var actions []string
	for _, a := range []struct {
		flag   string
		action mss.Action
		mss    int
	}{
		{"raise", mss.Raise, s.raise},
		{"clamp", mss.Clamp, s.clamp},
		{"clamp-to-pmtu", mss.ClampToPMTU, 0},
		{"clamp-to-route", mss.ClampToRoute, 0},
	} {
		if cmd.Flags().Changed(a.flag) {
			actions = append(actions, "--"+a.flag)
			r.Action, r.MSS = a.action, a.mss
		}
	}
	switch {
	case len(actions) == 0:
		return r, remedy.New(errors.New("missing action"),
			"add --raise BYTES, --clamp BYTES, --clamp-to-pmtu or --clamp-to-route")
	case len(actions) > 1:
		return r, remedy.New(fmt.Errorf("choose one of %s", strings.Join(actions, " and ")),
			"give one of them; another rule may do the other")
	case r.Action != mss.Raise && (s.probe != "" || s.noProbe || s.watch):
		return r, remedy.New(errors.New("only --raise probes the path"), "leave --probe, --no-probe and --watch out")
	case s.noProbe && s.watch:
		return r, remedy.New(errors.New("--watch probes, and --no-probe forbids it"), "leave one of them out")
	case s.every < time.Second:
		return r, remedy.New(fmt.Errorf("--every %v is too short", s.every), "use at least 1s")
	}
	return r, r.Check()
}

func (s *mssSet) run(ctx context.Context, env *env, rule mss.Rule) error {
	host := mss.NewHost()
	var probe *pathprobe.Probe
	if rule.Action == mss.Raise && !s.noProbe {
		var err error
		if probe, err = s.choose(rule); err != nil {
			return usageError(err)
		}
	}
	outcome, err := pathprobe.Set(ctx, host, rule, probe, func(p *pathprobe.Probe) {
		if !s.json {
			fmt.Fprintf(env.stderr, "probing whether packets of %d bytes get %s\n", p.Bytes, p)
		}
	})
	if err != nil {
		return mssError(err)
	}
	if s.json {
		if err := json.NewEncoder(env.stdout).Encode(outcome); err != nil {
			return err
		}
	} else {
		writeNotes(env.stderr, outcome.Notes)
		is := ""
		if !outcome.Changed {
			is = " (already)"
		}
		fmt.Fprintf(env.stdout, "%s  %s%s\n", rule.Device, rule.Text(), is)
	}
	if !s.watch {
		return nil
	}
	err = outcome.Watch(ctx, host, probe, s.every, func(note string) { writeNotes(env.stderr, []string{note}) })
	if err == nil {
		fmt.Fprintln(env.stderr, "interrupted: the rule is removed")
	}
	return err
}

// choose returns the host to probe and the direction.
func (s *mssSet) choose(rule mss.Rule) (*pathprobe.Probe, error) {
	var address netip.Addr
	if s.probe != "" {
		var err error
		if address, err = netip.ParseAddr(s.probe); err != nil {
			return nil, remedy.New(fmt.Errorf("invalid address in --probe %q", s.probe), "write it like 203.0.113.9")
		}
	}
	probe, err := pathprobe.Choose(rule, address)
	if errors.Is(err, pathprobe.ErrNoHost) {
		return nil, remedy.New(err, "add --probe ADDRESS, or --no-probe to skip it")
	}
	return probe, err
}
