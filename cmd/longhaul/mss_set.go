//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/mss"
	"longhaul/internal/tune/mss/pathprobe"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

// mssSet holds the flags of set.
type mssSet struct {
	mssData
	changeFlags
	raise, clamp              int
	clampToPMTU, clampToRoute bool
	probe                     string
	noProbe, watch            bool
	interval                  time.Duration
}

func newMSSSet(env *env) *cobra.Command {
	s := mssSet{interval: 10 * time.Second}
	cmd := &cobra.Command{
		Use:   "set --dev DEVICE [--to DEST] [--from DEST] ACTION",
		Short: "Raise or clamp the MSS for some of the data",
		Long: `set adds a rule, or replaces the rule for the same data. The receiver of data
announces the MSS that bounds it. So a rule for data to a prefix changes
the SYNs from there, and a rule for data from a prefix changes the SYNs to it.

Raising makes segments larger than the receiver asked for. Connections stall if
the path does not carry them. So set first sends packets of that size to a host
there, or asks one for them. It refuses the value if they do not get through.
With --watch it keeps probing, and removes the rule when the packets no longer
get through or when you interrupt it.

Clamping to the route or the path MTU is for forwarded connections. This host's
own connections already follow their routes.`,
		Example: `  longhaul mss set --dev eth0 --to 203.0.113.9 --raise 1460
  longhaul mss set --dev eth0 --from 2001:db8:5::/48 --port 5432 --clamp 1300
  longhaul mss set --dev tun0 --clamp-to-pmtu`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rules, err := s.actions(cmd)
			if err != nil {
				return err
			}
			if err := s.enter(env); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return s.run(ctx, env, rules)
		},
	}
	flags := cmd.Flags()
	s.mssData.register(flags)
	flags.IntVar(&s.raise, "raise", 0, "raise a smaller MSS to this, `BYTES`")
	flags.IntVar(&s.clamp, "clamp", 0, "lower a larger MSS to this, `BYTES`")
	flags.BoolVar(&s.clampToPMTU, "clamp-to-pmtu", false, "lower it to the MTU of the routes both ways")
	flags.BoolVar(&s.clampToRoute, "clamp-to-route", false, "lower it to the MTU of the data's route")
	flags.StringVar(&s.probe, "probe", "", "`ADDRESS` that answers full packets (the prefix, if one)")
	flags.BoolVar(&s.noProbe, "no-probe", false, "raise without probing the path")
	flags.BoolVar(&s.watch, "watch", false, "keep probing, and remove the rule when the path fails")
	flagvalue.AddDuration(flags, &s.interval, "interval", "time between two probes of --watch")
	s.changeFlags.register(flags)
	return cmd
}

// actions builds the rules of the flags.
func (s *mssSet) actions(cmd *cobra.Command) ([]mss.Rule, error) {
	action, err := s.action(cmd)
	if err != nil {
		return nil, usageError(err)
	}
	rules, err := s.rules(cmd.Context())
	for i := range rules {
		rules[i].Action, rules[i].MSS = action.Action, action.MSS
		if err := rules[i].Check(); err != nil {
			return nil, usageError(err)
		}
	}
	if len(rules) > 1 && s.watch {
		return nil, usageError(remedy.New(errors.New("--watch watches one rule"), "name one address or prefix"))
	}
	return rules, err
}

// action builds a rule without its data.
func (s *mssSet) action(cmd *cobra.Command) (r mss.Rule, err error) {
	if s.device == "" {
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
	case s.dryRun && s.watch:
		return r, remedy.New(errors.New("--dry-run sets no rule to watch"), "leave one of them out")
	case s.interval < time.Second:
		return r, remedy.New(fmt.Errorf("--interval %v is too short", s.interval), "use at least 1s")
	}
	return r, nil
}

func (s *mssSet) run(ctx context.Context, env *env, rules []mss.Rule) error {
	by := env.by()
	if s.watch { // the claim ends with the command
		by.Means, by.Process = ledger.Watch, ledger.ThisProcess()
	}
	host := mss.NewHost(by)
	host.DryRun = s.dryRun
	outcomes := []pathprobe.Outcome{}
	var probe *pathprobe.Probe
	for _, rule := range rules {
		outcome, probed, err := s.set(ctx, env, host, rule)
		if err != nil {
			return err
		}
		outcomes, probe = append(outcomes, outcome), probed
	}
	if s.json {
		if err := display.WriteJSON(env.stdout, map[string]any{"rules": outcomes, "dry_run": s.dryRun}); err != nil {
			return err
		}
	}
	if !s.watch {
		return nil
	}
	err := outcomes[0].Watch(ctx, host, probe, s.interval, func(note string) { writeNotes(env.stderr, []string{note}) })
	if err == nil {
		fmt.Fprintln(env.stderr, "interrupted: the rule is removed")
	}
	return err
}

// set sets one rule, after probing the path if the rule raises the MSS.
func (s *mssSet) set(ctx context.Context, env *env, host *mss.Host, rule mss.Rule) (outcome pathprobe.Outcome, probe *pathprobe.Probe, err error) {
	if rule.Action == mss.Raise && !s.noProbe {
		if probe, err = s.choose(rule); err != nil {
			return outcome, nil, usageError(err)
		}
	}
	outcome, err = pathprobe.Set(ctx, host, rule, probe, func(p *pathprobe.Probe) {
		if !s.json {
			fmt.Fprintf(env.stderr, "probing whether packets of %d bytes get %s\n", p.Bytes, p)
		}
	})
	if err != nil || s.json {
		return outcome, probe, mssError(err)
	}
	writeNotes(env.stderr, outcome.Notes)
	is := ""
	if !outcome.Changed {
		is = " (already)"
	}
	fmt.Fprintf(env.stdout, "%s  %s%s\n", rule.Device, rule.Text(), is)
	return outcome, probe, nil
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
