//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/integrity"
	"longhaul/internal/run/daemon"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// exitLossy says that a tunnel is whole and loses segments.
const exitLossy = 3

func newCheck(env *env) *cobra.Command {
	var (
		asJSON, all bool
		size, newTo string
		chosen      relayChoice
	)
	cmd := &cobra.Command{
		Use:   "check (TUNNEL | --all | --new-key FILE)",
		Short: "Walk a tunnel's relays to its target: is each up, does data pass whole",
		Long: `check has the running relay walk the chain that begins with TUNNEL: from relay
to relay, as a flow would, to what the last one leads to. It says whether each
hop is up, whether the target accepts, and whether bytes pass every leg and
every relay unaltered in both directions, with round-trip time, goodput and
loss. The target is connected to once, and sent nothing. A tunnel is whole if
its relays have passed bytes both ways and its target has sent some, as one
that greets does. Of a target that says nothing it is known that it accepts.

The relays of a chain share a key (check.key_file in their configuration), which
--new-key makes; nobody else can have them answer. The file may hold two keys, a
line each: a relay asks with the first and answers under both, so that the key
can be changed while checks go on. Clocks that differ by more than 2 minutes
are noted; checks go on all the same.

--all checks every tunnel of the relay, one after the other.

Exit codes: 0 whole, or it accepts; 1 broken, or it could not be checked; 2
wrong command line; 3 whole, but a leg loses segments. With --all, the worst.`,
		Example: `  longhaul check to-site-b
  longhaul check --all
  longhaul check to-site-b --bytes 16MiB --json | jq .summary
  longhaul check --new-key /etc/longhaul/check.key`,
		Args: cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&size, "bytes", "", "send `SIZE` each way over every leg (check.bytes)")
	flags.BoolVar(&all, "all", false, "check every tunnel of the relay")
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	chosen.register(flags)
	flags.StringVar(&newTo, "new-key", "", "make a key in a new `FILE`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case newTo != "" && (all || len(args) > 0):
			return usageError(remedy.New(errors.New("--new-key checks no tunnel"), "leave out one of the two"))
		case all && len(args) > 0:
			return usageError(remedy.New(errors.New("--all checks every tunnel"), "leave out one of the two"))
		case newTo != "":
			return newKey(env, newTo)
		case len(args) != 1 && !all:
			return usageError(remedy.New(errors.New("no tunnel is named"), "longhaul check --all checks every tunnel; longhaul status lists them"))
		}
		arguments := url.Values{}
		if size != "" {
			bytes, err := units.ParseSize(size)
			if err != nil || bytes < integrity.MinBytes || bytes > integrity.MaxBytes {
				return usageError(remedy.New(fmt.Errorf("--bytes cannot be %q", size), "choose 4KiB to 256MiB"))
			}
			arguments.Set("bytes", strconv.FormatInt(int64(bytes), 10))
		}
		if !all {
			return checkTunnel(cmd.Context(), env, chosen, args[0], arguments, asJSON)
		}
		return checkAll(cmd.Context(), env, chosen, arguments, asJSON)
	}
	return cmd
}

// checkAll checks every tunnel of the relay. Its error is that of the worst.
func checkAll(ctx context.Context, env *env, chosen relayChoice, arguments url.Values, asJSON bool) (worst error) {
	body, err := askRelay(ctx, env, chosen)
	if err != nil {
		return err
	}
	var s daemon.Status
	if err := json.Unmarshal(body, &s); err != nil {
		return remedy.New(fmt.Errorf("read the relay's answer: %w", err), "the relay may be of another version; name a tunnel")
	}
	for i, t := range s.Tunnels {
		if i > 0 && !asJSON {
			fmt.Fprintln(env.stdout)
		}
		err := checkTunnel(ctx, env, chosen, t.Name, arguments, asJSON)
		var exit *exitError
		if err != nil && (!errors.As(err, &exit) || exit.error != nil) { // it could not be checked
			printError(env.stderr, err)
			err = &exitError{status: exitFailure}
		}
		if err != nil && (worst == nil || exitCode(worst) == exitLossy) {
			worst = err
		}
	}
	return worst
}

// checkTunnel has the relay check a tunnel, and prints the report.
func checkTunnel(ctx context.Context, env *env, chosen relayChoice, tunnel string, arguments url.Values, asJSON bool) error {
	arguments.Set("tunnel", tunnel)
	body, err := tellRelay(ctx, env, chosen, "check", arguments)
	if err != nil {
		return err
	}
	var r integrity.Report
	if err := json.Unmarshal(body, &r); err != nil {
		return remedy.New(fmt.Errorf("cannot read the relay's answer: %w", err), "the relay may be of another version; try --json")
	}
	if asJSON {
		err = display.WriteJSON(env.stdout, r)
	} else {
		err = r.WriteText(env.stdout)
	}
	if err != nil {
		return err
	}
	switch r.State {
	case integrity.Whole, integrity.Accepts:
		return nil
	case integrity.Lossy:
		return &exitError{status: exitLossy}
	}
	return &exitError{status: exitFailure}
}

func newKey(env *env, path string) error {
	if err := integrity.NewKey().Create(path); err != nil {
		return err
	}
	_, err := fmt.Fprintf(env.stdout, `%s: a new key, for its owner only (mode 600)
Copy it to every relay of the chain. Name it there with relay --check-key FILE,
or with check.key_file in the configuration. A relay whose next hop is a relay
needs --check-next relay as well, or check.next: relay.
`, path)
	return err
}
