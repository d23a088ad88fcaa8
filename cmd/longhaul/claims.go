//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/destination"
	"longhaul/internal/tune/hostchanges"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// by returns who makes the claims of this command.
func (env *env) by() ledger.By {
	b := ledger.Caller(env.getenv, commandLine(env.args))
	if env.appliedBy != "" {
		b.Means, b.Command = ledger.Doctor, env.appliedBy
	}
	return b
}

// commandLine writes arguments as a shell takes them.
func commandLine(args []string) string {
	words := []string{"longhaul"}
	for _, arg := range args {
		if arg == "" || strings.ContainsAny(arg, " \t\n'\"\\$`*?[]{}()<>|&;#~!") {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}

// changeFlags are the flags of all commands that change the host.
type changeFlags struct {
	namespace    string
	json, dryRun bool
}

func (f *changeFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.json, "json", false, "print the outcome as JSON")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only say what would change")
	namespaceFlag(flags, &f.namespace)
}

// enter enters the namespace, and says that nothing changes.
func (f *changeFlags) enter(env *env) error {
	if err := enterNamespace(f.namespace); err != nil {
		return err
	}
	if f.dryRun && !f.json {
		if _, err := fmt.Fprintln(env.stdout, "Dry run: nothing changes. Without --dry-run:"); err != nil {
			return err
		}
	}
	return nil
}

// undoFlags are the flags of all commands that take claims back.
type undoFlags struct {
	changeFlags
	yes bool
}

func (f *undoFlags) register(flags *pflag.FlagSet) {
	f.changeFlags.register(flags)
	flags.BoolVar(&f.yes, "yes", false, "do not ask; with a name: take it from all owners")
}

// undoing is what an undo command takes back.
type undoing struct {
	// named: the command names things, and so means the caller's own claims.
	named      bool
	everywhere bool // in all network namespaces
	which      func(ledger.Key, ledger.Claim) bool
}

// undo takes claims back. It prints what others use and so stays.
func (f *undoFlags) undo(cmd *cobra.Command, env *env, u undoing) error {
	host := hostchanges.NewHost(env.by())
	if f.dryRun {
		host.DryRun()
	}
	own := ledger.OwnClaims(env.by().Owner)
	choose := u.which
	if u.named && !f.yes {
		choose = func(k ledger.Key, c ledger.Claim) bool { return u.which(k, c) && own(k, c) }
	}
	selection := hostchanges.Selection{Choose: choose, Everywhere: u.everywhere}
	if !u.named && !f.yes && !f.dryRun {
		changes, err := host.List(selection)
		if err != nil {
			return err
		}
		if len(changes) > 0 {
			if err := confirm(env, changes); err != nil {
				return err
			}
		}
	}
	stays, err := f.othersOnly(host, u, own)
	if err != nil {
		return err
	}
	outcome, err := host.Undo(cmd.Context(), selection)
	if err != nil {
		return errors.Join(outcome.WriteText(env.stderr), mssError(routeError(err)))
	}
	if f.json {
		return display.WriteJSON(env.stdout, map[string]any{
			"undone": outcome.Undone(), "stays": append([]hostchanges.Change{}, stays...), "dry_run": f.dryRun,
		})
	}
	if err := outcome.WriteText(env.stdout); err != nil {
		return err
	}
	for _, c := range stays {
		if n := len(c.Claims); n > 0 {
			fmt.Fprintf(env.stdout, "%s %s: stays %s, set by %s; --yes takes it back\n", c.Kind, c.What, c.Value, c.Claims[n-1].Owner)
		}
	}
	if outcome.IsEmpty() && len(stays) == 0 {
		fmt.Fprintln(env.stdout, "nothing to undo")
	}
	return nil
}

// othersOnly returns the named things on which only others have claims.
func (f *undoFlags) othersOnly(host *hostchanges.Host, u undoing, own func(ledger.Key, ledger.Claim) bool) ([]hostchanges.Change, error) {
	if !u.named || f.yes {
		return nil, nil
	}
	changes, err := host.List(hostchanges.Selection{Choose: u.which, Everywhere: u.everywhere})
	return slices.DeleteFunc(changes, func(c hostchanges.Change) bool {
		return len(c.Claims) == 0 || slices.ContainsFunc(c.Claims, func(claim ledger.Claim) bool {
			return u.which(c.Key(), claim) && own(c.Key(), claim)
		})
	}), err
}

// confirm lists changes and asks whether to take them back.
func confirm(env *env, changes []hostchanges.Change) error {
	if !display.IsTerminal(env.stdin) {
		return usageError(remedy.New(
			fmt.Errorf("this takes back %s, of all owners, and there is no terminal to ask", display.Plural(len(changes), "change")),
			"see longhaul host list; add --yes to take all back, or name yours"))
	}
	if err := hostchanges.WriteList(env.stderr, changes, time.Now()); err != nil {
		return err
	}
	fmt.Fprint(env.stderr, "take all of this back? [y/N] ")
	answers := bufio.NewScanner(env.stdin)
	if answers.Scan() && strings.EqualFold(strings.TrimSpace(answers.Text()), "y") {
		return nil
	}
	return errors.New("not confirmed, nothing changed")
}

// parseDestinations parses the DEST of a flag. An empty text has no prefixes.
func parseDestinations(ctx context.Context, flag, text string) ([]netip.Prefix, error) {
	if text == "" {
		return nil, nil
	}
	prefixes, err := destination.Parse(ctx, text)
	if unresolved := (*net.DNSError)(nil); err != nil && !errors.As(err, &unresolved) {
		if fix := remedy.Of(err); fix != "" {
			return nil, usageError(remedy.New(fmt.Errorf("--%s: %w", flag, err), fix))
		}
		return nil, usageError(fmt.Errorf("--%s: %w", flag, err))
	}
	return prefixes, err
}

// isPrefixOf reports whether a key is of one of the prefixes.
func isPrefixOf(k ledger.Key, prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.String() == k.Name })
}

// writeNotes writes the notes on a change.
func writeNotes(w io.Writer, notes []string) {
	for _, note := range notes {
		fmt.Fprintln(w, "longhaul: note:", note)
	}
}

// undoTo takes back the claims on things of the given kinds: the routes to a destination,
// or all of them without one.
func (f *undoFlags) undoTo(cmd *cobra.Command, env *env, to string, isOfKind func(ledger.Key) bool) error {
	prefixes, err := parseDestinations(cmd.Context(), "to", to)
	if err != nil {
		return err
	}
	if err := f.enter(env); err != nil {
		return err
	}
	return f.undo(cmd, env, undoing{
		named: to != "",
		which: func(k ledger.Key, _ ledger.Claim) bool {
			return isOfKind(k) && (to == "" || k.Kind == ledger.Route && isPrefixOf(k, prefixes))
		},
	})
}
