//go:build linux

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/run/config"
	"longhaul/internal/words/display"
)

func newPairApply(env *env) *cobra.Command {
	var (
		f     pairFlags
		check bool
	)
	cmd := &cobra.Command{
		Use:   "apply (FILE | -)",
		Short: "Make the list of peers as a file declares it",
		Long: `apply makes the list of peers as FILE declares it, all of it or nothing, and
prints the difference. Again, it changes nothing. Each line of FILE is a host:
NAME: KEY, as longhaul pair key --as NAME prints it there. One file serves all
hosts of a mesh: each skips its own entry, which it knows by its key.

Peers that FILE does not have are removed: running relays end their sessions,
and reset their flows. The same happens to a peer that gets another name, unless
its tunnels name its site. --check only prints what would change.

Exit codes: 0 done, or nothing to do; 1 failed, or with --check something would
change; 2 FILE or the command line is wrong.`,
		Example: `  longhaul pair apply peers.yaml
  longhaul pair apply --check peers.yaml`,
		Args: exactArgs(1, "a FILE, or - for standard input"),
		RunE: func(_ *cobra.Command, args []string) error {
			wanted, err := readPeers(env, args[0])
			if err != nil {
				return err
			}
			store, err := f.open(env)
			if err != nil {
				return err
			}
			applied, err := store.Apply(wanted, check)
			if err != nil {
				return err
			}
			if f.json {
				err = display.WriteJSON(env.stdout, applied)
			} else {
				err = writeApplied(env, &applied, check)
			}
			if err == nil && check && len(applied.Changes) > 0 {
				return &exitError{status: exitFailure}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "change nothing; exit with 1 if something would change")
	f.register(cmd.Flags())
	return cmd
}

// readPeers reads a declared list of peers.
func readPeers(env *env, file string) ([]identity.Wanted, error) {
	if file == "-" {
		return config.ReadPeers("standard input", env.stdin)
	}
	return config.LoadPeers(file)
}

// writeApplied prints the difference, a line for each peer.
func writeApplied(env *env, a *identity.Applied, check bool) error {
	for _, name := range a.Outdated {
		writeWarning(env.stderr, "the list has a former key of "+name+", which has another one by now",
			"longhaul pair list --yaml prints the present one")
	}
	table := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	for _, c := range a.Changes {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", c.Kind, c.Peer, c.Keys[0].Short(), changeNote(&c))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	verb := "made"
	if check {
		verb = "to make"
	}
	changes := "no change"
	if n := len(a.Changes); n > 0 {
		changes = display.Plural(n, "change") + " " + verb
	}
	own := ""
	if a.ThisHost != "" {
		own = "; this host is " + a.ThisHost
	}
	_, err := fmt.Fprintf(env.stdout, "%s, %s as before%s\n", changes, display.Plural(a.Unchanged, "peer"), own)
	return err
}

// changeNote is what a change does besides.
func changeNote(c *identity.Change) string {
	var notes []string
	if c.FormerName != "" {
		notes = append(notes, "was "+c.FormerName)
	}
	if len(c.FormerKeys) > 0 {
		notes = append(notes, "key was "+shortKeys(c.FormerKeys))
	}
	if len(c.Keys) > 1 {
		notes = append(notes, "old key still accepted")
	}
	if c.Kind == identity.PeerRemoved || c.Kind == identity.PeerRenamed && !identity.IsOf(c.Peer, c.FormerName) {
		notes = append(notes, "ends its sessions")
	}
	return strings.Join(notes, ", ")
}

func shortKeys(keys []identity.PublicKey) string {
	return strings.Join(namesOf(keys, identity.PublicKey.Short), " and ")
}

// writePeers prints peers as a list that apply takes.
func writePeers(w io.Writer, peers []identity.Wanted) error {
	for _, p := range peers {
		if _, err := io.WriteString(w, config.FormatPeer(p)); err != nil {
			return err
		}
	}
	return nil
}
