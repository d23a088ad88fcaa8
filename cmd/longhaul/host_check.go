//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/find/hostcheck"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/display"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
	"longhaul/lab/linkflag"
	"longhaul/lab/sandbox"
)

// usualPath is the path of which host check says what a lack costs.
const usualPath = "lossy-lfn"

func newHostCheck(env *env) *cobra.Command {
	var (
		path                pathFlags
		asJSON, onlyMissing bool
		namespace           string
	)
	cmd := &cobra.Command{
		Use:   "check [FEATURE...]",
		Short: "Check which features work on this host, and what others lack",
		Long: `check tries out the features of longhaul on this host:
` + strings.Join(hostcheck.Features(), ", ") + `.

It shows what the others lack, the remedy, and what each lack costs in goodput
on a path. Without FEATURE it checks all. It changes nothing and loads no
module. Without root it says what it cannot try out.

States: yes; limited: it works with less; no; unknown: only root can try it out.

Exit codes: 0 no part is missing, 1 one is (state no).`,
		Example: `  longhaul host check
  longhaul host check --path mitre
  longhaul host check --rate 20Mbit --rtt 300ms --loss 10%
  longhaul host check cc --json | jq -r '.parts[] | select(.state == "no").part'`,
		ValidArgs: hostcheck.Features(),
		Args: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if !slices.Contains(hostcheck.Features(), name) {
					hint := "choose from " + strings.Join(hostcheck.Features(), ", ")
					if meant := remedy.Nearest(name, hostcheck.Features()); meant != "" {
						hint = "did you mean " + meant + "?"
					}
					return usageError(remedy.New(fmt.Errorf("unknown feature %q", name), hint))
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	path.register(flags)
	flags.BoolVar(&onlyMissing, "missing", false, "print only a sentence for each part that is missing or limited")
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	namespaceFlag(flags, &namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		way, err := path.path(cmd.Flags())
		if err != nil {
			return usageError(err)
		}
		if err := enterNamespace(namespace); err != nil {
			return err
		}
		report, err := hostcheck.Check(hostcheck.Options{Path: way, Features: args, CC: cc.NewHost(env.by()), Sandbox: trySandbox})
		switch {
		case err != nil:
			return err
		case asJSON:
			err = display.WriteJSON(env.stdout, report)
		case onlyMissing:
			err = report.WriteMissing(env.stdout)
		default:
			err = report.WriteText(env.stdout)
		}
		if err == nil && report.Count(hostcheck.No) > 0 {
			return &exitError{nil, exitFailure}
		}
		return err
	}
	return cmd
}

// trySandbox runs this program in the lab's namespaces for a moment.
func trySandbox() error {
	status, err := sandbox.Run([]string{"version"}, nil, io.Discard, io.Discard)
	if err == nil && status != 0 {
		err = fmt.Errorf("a program in the lab's namespaces ended with status %d", status)
	}
	return err
}

// pathFlags name a path, or describe one.
type pathFlags struct {
	name    string
	rateBps int64
	rtt     time.Duration
	loss    float64
	mtu     int
}

func (f *pathFlags) register(flags *pflag.FlagSet) {
	names := slices.Sorted(maps.Keys(hostcheck.Paths()))
	usual := hostcheck.Paths()[usualPath]
	f.rateBps, f.rtt, f.loss, f.mtu = int64(usual.RateBps), usual.RTT.Duration(), usual.Loss, usual.MTU
	f.name = usualPath
	flagvalue.Add(flags, "NAME", "path", "path of the costs, by its experiment: "+strings.Join(names, ", "), usualPath, func(s string) error {
		if !slices.Contains(names, s) {
			return fmt.Errorf("unknown path %q: choose from %s, or describe it by --rate, --rtt and --loss", s, strings.Join(names, ", "))
		}
		f.name = s
		return nil
	})
	flagvalue.AddRate(flags, &f.rateBps, "rate", "rate of the path instead")
	flagvalue.AddDelay(flags, &f.rtt, "rtt", "round-trip time of the path instead")
	flagvalue.AddShare(flags, &f.loss, "loss", "share of packets that the path loses instead")
	flagvalue.Add(flags, "BYTES", "mtu", "largest packet of the path instead", strconv.Itoa(f.mtu), linkflag.MTU(&f.mtu))
}

// path returns the named path with the described properties. The figures of a named path
// are not those of another one.
func (f *pathFlags) path(flags *pflag.FlagSet) (hostcheck.Path, error) {
	p := hostcheck.Paths()[f.name]
	named := p
	if flags.Changed("rate") {
		p.RateBps = float64(f.rateBps)
	}
	if flags.Changed("rtt") {
		p.RTT = units.Seconds(f.rtt)
	}
	if flags.Changed("loss") {
		p.Loss = f.loss
	}
	if flags.Changed("mtu") {
		p.MTU = f.mtu
	}
	switch {
	case p.RateBps <= 0 || p.RTT <= 0:
		return p, remedy.New(fmt.Errorf("a path needs a rate and a round-trip time"), "write them like --rate 20Mbit --rtt 300ms")
	case p.Loss >= 1:
		return p, remedy.New(fmt.Errorf("a path that loses every packet carries nothing"), "write the loss like --loss 10%")
	}
	if p.RateBps != named.RateBps || p.RTT != named.RTT || p.Loss != named.Loss || p.MTU != named.MTU {
		p.Name, p.Measured, p.By = "", nil, ""
	}
	return p, nil
}
