//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/carry/intercept"
	"longhaul/internal/run/config"
	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

func newIntercept(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "intercept",
		Short: "What relays take out of the routed path: plan, check, show, clear",
		Long: `A relay whose tunnels intercept takes TCP connections that this host routes, and
needs no change of any client or target. It sets nftables rules, a routing rule
and a local route when it starts, and removes them when it ends. These commands
show them, before and while they stand, and remove what a killed relay left.`,
		Example: `  longhaul intercept check --config longhaul.yaml
  longhaul intercept show
  longhaul intercept clear`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newInterceptPlan(env), newInterceptCheck(env), newInterceptShow(env), newInterceptClear(env))
	return cmd
}

// interceptFile are the flags of commands that read what a configuration intercepts.
type interceptFile struct {
	file, namespace string
	json            bool
}

func (f *interceptFile) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "config", "", "configuration `FILE`")
	flags.BoolVar(&f.json, "json", false, "print the outcome as JSON")
	namespaceFlag(flags, &f.namespace)
}

// options enters the namespace and reads what the file intercepts. elsewhere: the file may
// be another host's.
func (f *interceptFile) options(cmd *cobra.Command, elsewhere bool) (intercept.Options, *config.Config, error) {
	if f.file == "" {
		return intercept.Options{}, nil, usageError(remedy.New(errors.New("missing --config"), "add --config FILE, the relay's configuration"))
	}
	if err := enterNamespace(f.namespace); err != nil {
		return intercept.Options{}, nil, err
	}
	l := loader()
	l.Elsewhere = elsewhere
	c, err := l.Load(cmd.Context(), f.file)
	if err != nil {
		return intercept.Options{}, nil, err
	}
	o := daemon.InterceptOptions(cmp.Or(c.Name, control.DefaultName), c)
	if o.IsEmpty() {
		err = remedy.New(fmt.Errorf("no tunnel of %s intercepts or dials from its clients' addresses", f.file),
			"give one intercept in place of listen, or original in place of forward")
	}
	return o, c, err
}

func newInterceptPlan(env *env) *cobra.Command {
	var f interceptFile
	cmd := &cobra.Command{
		Use:   "plan --config FILE",
		Short: "Print the nft and ip commands that do what a relay would do",
		Long: `plan prints the commands that have the effect of a relay's start with the
configuration. It changes nothing. PORT stands for the port on which the relay
listens, which the kernel chooses.`,
		Example: `  longhaul intercept plan --config /etc/longhaul/longhaul.yaml
  longhaul intercept plan --config longhaul.yaml --json | jq -r '.commands[]'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, _, err := f.options(cmd, true)
			if err != nil {
				return err
			}
			commands := intercept.Commands(o)
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"relay": o.Relay, "commands": commands})
			}
			for _, line := range commands {
				if _, err := fmt.Fprintln(env.stdout, line); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f.register(cmd.Flags())
	return cmd
}

func newInterceptCheck(env *env) *cobra.Command {
	var f interceptFile
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Look for what a relay's interception would collide with here",
		Long: `check looks at this host as the relay does when it starts: marks, routing
tables, firewalls, settings, the kernel's modules. It names the first collision
with its remedy, and changes nothing. It also says what this host's rules for
forwarded packets would do with each tunnel's connections, which pass them.`,
		Example: `  longhaul intercept check --config /etc/longhaul/longhaul.yaml
  longhaul intercept check --config longhaul.yaml && longhaul reload`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, c, err := f.options(cmd, false)
			if err != nil {
				return err
			}
			host := intercept.NewHost(env.by())
			if err := host.Check(o); err != nil {
				return err
			}
			verdicts, err := host.ForwardRules(o)
			if err != nil {
				return err
			}
			has, _ := host.HasRecord(o.Relay) // without a ledger as at a first start
			notes := append(host.Notes(o), daemon.DeniedTargets(c)...)
			for _, v := range verdicts {
				switch problem := v.Problem(); {
				case problem != nil && v.Rejects() && !has: // as a first start
					return problem
				case problem != nil:
					notes = append(notes, problem)
				}
			}
			if f.json {
				return display.WriteJSON(env.stdout, interceptChecked{Relay: o.Relay, OK: true, ForwardRules: verdicts, Notes: described(notes)})
			}
			var may []string
			if n := len(o.Tunnels); n > 0 {
				may = append(may, display.Plural(n, "tunnel")+" may intercept here")
			}
			if n := len(o.Dialers); n > 0 {
				may = append(may, display.Plural(n, "tunnel")+" may dial from clients' addresses")
			}
			fmt.Fprintf(env.stdout, "relay %s: ok, %s\n", o.Relay, strings.Join(may, ", "))
			for _, v := range verdicts {
				fmt.Fprintf(env.stdout, "tunnel %s, %s, by this host's forward rules: %s\n", v.Tunnel, v.Family, v)
			}
			for _, n := range notes {
				writeNote(env.stdout, n)
			}
			return nil
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// interceptChecked is the JSON of intercept check.
type interceptChecked struct {
	Relay        string                     `json:"relay"`
	OK           bool                       `json:"ok"`
	ForwardRules []intercept.ForwardVerdict `json:"forward_rules,omitempty"`
	Notes        []interceptNote            `json:"notes"`
}

// interceptNote is what an operator should know, and no mistake.
type interceptNote struct {
	Problem string `json:"problem"`
	Fix     string `json:"fix,omitempty"`
}

func described(notes []error) []interceptNote {
	all := make([]interceptNote, len(notes))
	for i, n := range notes {
		all[i] = interceptNote{n.Error(), remedy.Of(n)}
	}
	return all
}

func writeNote(w io.Writer, n error) {
	fmt.Fprintf(w, "note: %v\n", n)
	if fix := remedy.Of(n); fix != "" {
		fmt.Fprintf(w, "  %s\n", fix)
	}
}

func newInterceptShow(env *env) *cobra.Command {
	var (
		asJSON    bool
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show what relays intercept, with counters and problems",
		Long: `show lists the relays that intercept in this network namespace, and the
connections that each tunnel took. It names rules that another program removed,
and what a killed relay left.`,
		Example: `  longhaul intercept show
  longhaul intercept show --json | jq '.relays[].tunnels[].connections'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := enterNamespace(namespace); err != nil {
				return err
			}
			all, err := intercept.NewHost(env.by()).Show()
			if err != nil {
				return err
			}
			if asJSON {
				return display.WriteJSON(env.stdout, map[string]any{"relays": append([]intercept.Status{}, all...)})
			}
			for _, s := range all {
				if err := s.WriteText(env.stdout); err != nil {
					return err
				}
			}
			if len(all) == 0 {
				fmt.Fprintln(env.stdout, "no relay intercepts here")
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	namespaceFlag(flags, &namespace)
	return cmd
}

func newInterceptClear(env *env) *cobra.Command {
	var f undoFlags
	cmd := &cobra.Command{
		Use:   "clear [RELAY]",
		Short: "Remove the rules that a killed relay left",
		Long: `clear removes the rules, the routing rule and the route of relays that have
ended, or of the one named. A start of that relay does the same. The rules of a
running relay stay without --yes: its standing connections would break.`,
		Example: `  longhaul intercept clear
  longhaul intercept clear site-a --dry-run
  longhaul intercept clear site-a --yes`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.enter(env); err != nil {
				return err
			}
			return f.undo(cmd, env, undoing{
				named: true,
				which: func(k ledger.Key, _ ledger.Claim) bool {
					return k.Kind == ledger.Intercept && (len(args) == 0 || k.Name == args[0])
				},
			})
		},
	}
	f.register(cmd.Flags())
	return cmd
}
