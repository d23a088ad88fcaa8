//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/mss"
	"longhaul/internal/pathmtu"
	"longhaul/internal/remedy"
)

// mssSet is what set was asked to do.
type mssSet struct {
	mssData
	raise, clamp              int
	clampToPMTU, clampToRoute bool
	probe, namespace          string
	noProbe, watch, json      bool
	every                     time.Duration
}

// mssOutcome is what set prints as JSON.
type mssOutcome struct {
	Rule     mss.Rule  `json:"rule"`
	Changed  bool      `json:"changed"`
	Replaced *mss.Rule `json:"replaced,omitempty"`
	Hook     string    `json:"hook"`
	Probed   string    `json:"probed,omitempty"` // the address that answered packets of this size
	Notes    []string  `json:"notes,omitempty"`
}

func newMSSSet(env *env) *cobra.Command {
	var s mssSet
	cmd := &cobra.Command{
		Use:   "set --dev DEVICE [--toward PREFIX] [--from PREFIX] ACTION",
		Short: "Raise or clamp the MSS for some data",
		Long: `set puts a rule into force, in place of one for the same data. The MSS that
bounds data is announced by its receiver. So a rule for data toward a prefix
changes the SYNs that come from there, and one for data from a prefix those
that go there.

Raising makes segments larger than the receiver asked for, which stalls
connections if the path does not carry them. So it first sends packets of that
size to a host there, or asks one for them, and refuses the value if they do
not get through. With --watch it goes on doing so, and takes the rule back when
they no longer do, or when it is interrupted.

Clamping to the route or the path MTU is for forwarded connections; those of
this host go by their routes anyway.`,
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
	flags.IntVar(&s.raise, "raise", 0, "raise an MSS below this to it, `BYTES`")
	flags.IntVar(&s.clamp, "clamp", 0, "lower an MSS above this to it, `BYTES`")
	flags.BoolVar(&s.clampToPMTU, "clamp-to-pmtu", false, "lower it to what the routes both ways carry")
	flags.BoolVar(&s.clampToRoute, "clamp-to-route", false, "lower it to what the route of the data carries")
	flags.StringVar(&s.probe, "probe", "", "`ADDRESS` that answers full packets (the prefix, if one)")
	flags.BoolVar(&s.noProbe, "no-probe", false, "raise without knowing what the path carries")
	flags.BoolVar(&s.watch, "watch", false, "stay, and take it back when the path fails it")
	flags.DurationVar(&s.every, "every", 10*time.Second, "time between two probes of --watch")
	flags.BoolVar(&s.json, "json", false, "print the outcome as JSON")
	namespaceFlag(flags, &s.namespace)
	return cmd
}

// rule puts the flags together.
func (s *mssSet) rule(cmd *cobra.Command) (mss.Rule, error) {
	r := mss.Rule{Device: s.device, Toward: s.toward.Prefix, From: s.from.Prefix, Port: s.port}
	if r.Device == "" {
		return r, remedy.New(errors.New("longhaul mss set wants to know which device the connections pass"), "add --dev DEVICE; ip route get ADDRESS tells it")
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
		return r, remedy.New(errors.New("longhaul mss set wants to know what to do"), "add --raise BYTES, --clamp BYTES, --clamp-to-pmtu or --clamp-to-route")
	case len(actions) > 1:
		return r, remedy.New(fmt.Errorf("%s cannot go together", strings.Join(actions, " and ")), "give one of them; another rule may do the other")
	case r.Action != mss.Raise && (s.probe != "" || s.noProbe || s.watch):
		return r, remedy.New(errors.New("only --raise probes the path"), "leave --probe, --no-probe and --watch out")
	case s.noProbe && s.watch:
		return r, remedy.New(errors.New("--watch is about probing, and --no-probe about not doing it"), "leave one of them out")
	case s.every < time.Second:
		return r, remedy.New(fmt.Errorf("--every %v is too often", s.every), "use at least 1s")
	}
	return r, r.Check()
}

func (s *mssSet) run(ctx context.Context, env *env, rule mss.Rule) error {
	host := mss.NewHost()
	out := mssOutcome{Rule: rule}
	var (
		p *pathProbe
		o mss.SetOptions
	)
	if rule.Action == mss.Raise && !s.noProbe {
		var err error
		if p, err = s.choose(rule); err != nil {
			return err
		}
		o.Arrives = p.from
	}
	if err := host.CheckSet(rule, o); err != nil {
		return mssError(err)
	}
	if p != nil {
		if !s.json {
			fmt.Fprintf(env.stderr, "probing whether packets of %d bytes get %s\n", p.size, p)
		}
		if err := p.need(ctx); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted: nothing was changed")
			}
			return err
		}
		out.Probed = p.address.String()
	}
	result, err := host.Set(ctx, rule, o)
	if err != nil {
		return mssError(err)
	}
	out.Changed, out.Replaced, out.Hook = result.Changed, result.Replaced, result.Hook
	for _, r := range result.Dropped {
		if r != rule {
			out.Notes = append(out.Notes, fmt.Sprintf("dropped a rule that was no longer in force: %s  %s", r.Device, ruleText(r)))
		}
	}
	if note := localNote(rule); note != "" {
		out.Notes = append(out.Notes, note)
	}
	if s.json {
		if err := json.NewEncoder(env.stdout).Encode(out); err != nil {
			return err
		}
	} else {
		for _, note := range out.Notes {
			fmt.Fprintln(env.stderr, "longhaul: note:", note)
		}
		is := ""
		if !out.Changed {
			is = " (already)"
		}
		fmt.Fprintf(env.stdout, "%s  %s%s\n", rule.Device, ruleText(rule), is)
	}
	if s.watch {
		return s.watchPath(ctx, env, host, p, rule, result)
	}
	return nil
}

// pathProbe is the part of a path that can be probed from here.
type pathProbe struct {
	address netip.Addr
	from    bool // data comes from there; else it goes there
	size    int  // of the IP packets
}

func (p *pathProbe) String() string {
	if p.from {
		return fmt.Sprintf("here from %s", p.address)
	}
	return fmt.Sprintf("to %s", p.address)
}

// choose finds the host to probe, and the direction.
func (s *mssSet) choose(rule mss.Rule) (*pathProbe, error) {
	p := &pathProbe{}
	single := func(prefix netip.Prefix) bool {
		return prefix.IsValid() && prefix.IsSingleIP() && !isLocal(prefix.Addr())
	}
	switch {
	case s.probe != "":
		address, err := netip.ParseAddr(s.probe)
		if err != nil {
			return nil, usageError(remedy.New(fmt.Errorf("--probe wants an address, and got %q", s.probe), "write it like 203.0.113.9"))
		}
		p.address = address.Unmap()
	case single(rule.Toward):
		p.address = rule.Toward.Addr()
	case single(rule.From):
		p.address = rule.From.Addr()
	default:
		return nil, usageError(remedy.New(errors.New("raising the MSS needs a host there that answers, to see whether the path carries it"), "add --probe ADDRESS, or --no-probe to do without"))
	}
	switch {
	case isLocal(p.address):
		return nil, usageError(remedy.New(fmt.Errorf("%s is this host itself", p.address), "probe a host at the other end of the path"))
	case rule.Toward.IsValid() && rule.Toward.Contains(p.address):
	case rule.From.IsValid() && rule.From.Contains(p.address):
		p.from = true
	case rule.Toward.IsValid() || rule.From.IsValid():
		return nil, usageError(remedy.New(fmt.Errorf("%s is in none of the rule's prefixes", p.address), "probe a host that the rule is about"))
	}
	p.size = rule.PacketBytes()
	if p.address.Is6() {
		p.size = max(p.size, rule.MSS+60)
	}
	return p, nil
}

// isLocal says whether an address is one of this host's.
func isLocal(address netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == address {
				return true
			}
		}
	}
	return false
}

func (p *pathProbe) run(ctx context.Context) (pathmtu.Result, error) {
	if p.from {
		return pathmtu.From(ctx, p.address, p.size, pathmtu.Options{})
	}
	return pathmtu.Toward(ctx, p.address, p.size, pathmtu.Options{})
}

// need is an error unless the path carries the size.
func (p *pathProbe) need(ctx context.Context) error {
	result, err := p.run(ctx)
	if err != nil {
		return err
	}
	switch result.Verdict {
	case pathmtu.Carries:
		return nil
	case pathmtu.Silent:
		return remedy.New(fmt.Errorf("%s answers nothing, so whether the path carries %d bytes is unknown", p.address, p.size),
			"probe another host with --probe ADDRESS, or add --no-probe")

	}
	less := "nothing tells what the path carries: try a smaller value"
	if result.MTU > 0 {
		headers := 40
		if p.address.Is6() {
			headers = 60
		}
		less = fmt.Sprintf("the path carries %d, so use at most %d", result.MTU, result.MTU-headers)
	}
	return remedy.New(fmt.Errorf("packets of %d bytes do not get %s", p.size, p), less)
}

// localNote says where a route does what a rule was set for.
func localNote(rule mss.Rule) string {
	if rule.Action != mss.Raise || !rule.From.IsValid() || forwards(rule.From.Addr().Is6()) {
		return ""
	}
	return fmt.Sprintf("this host forwards nothing: longhaul route set %s --advmss %d does the same for its own connections, with no BPF", rule.From, rule.MSS)
}

func forwards(ipv6 bool) bool {
	path := "/proc/sys/net/ipv4/ip_forward"
	if ipv6 {
		path = "/proc/sys/net/ipv6/conf/all/forwarding"
	}
	b, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(b)) != "0"
}

// badProbes is how many times in a row packets must not get through before a
// rule is taken back. Each is several packets.
const badProbes = 2

// watchPath probes until the path no longer carries the size, or the command
// is interrupted. Either way the rule goes, and what it replaced comes back.
func (s *mssSet) watchPath(ctx context.Context, env *env, host *mss.Host, p *pathProbe, rule mss.Rule, set mss.SetResult) error {
	revert := func() error {
		if set.Replaced != nil {
			_, err := host.Set(context.WithoutCancel(ctx), *set.Replaced, mss.SetOptions{Arrives: true})
			return err
		}
		_, err := host.Clear(context.WithoutCancel(ctx), false, func(r mss.Rule, _ uint32) bool { return r == rule })
		return err
	}
	bad, silent := 0, false
	for {
		select {
		case <-ctx.Done():
			fmt.Fprintln(env.stderr, "interrupted: the rule is taken back")
			return revert()
		case <-time.After(s.every):
		}
		result, err := p.run(ctx)
		if ctx.Err() != nil {
			continue
		}
		if err != nil {
			return errors.Join(err, revert())
		}
		if silent != (result.Verdict == pathmtu.Silent) {
			silent = !silent
			if silent {
				fmt.Fprintf(env.stderr, "longhaul: note: %s no longer answers; the rule stays\n", p.address)
			} else {
				fmt.Fprintf(env.stderr, "longhaul: note: %s answers again\n", p.address)
			}
		}
		if result.Verdict != pathmtu.TooBig {
			bad = 0
			continue
		}
		if bad++; bad < badProbes {
			continue
		}
		if err := revert(); err != nil {
			return err
		}
		return remedy.New(fmt.Errorf("packets of %d bytes no longer get %s: the rule was taken back", p.size, p),
			"connections that began under it may hang, and should be made anew")

	}
}
