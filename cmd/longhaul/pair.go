//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

func newPair(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pair",
		Short: "Keys of paired relays: this host's own, and those of its peers",
		Long: `Relays of a pair encrypt what is between them, and let nobody else in. Each host
has a key, and a list of peers with their keys. invite at one site and join at
the other make two hosts peers; apply takes the whole list from a file. Running
relays take changes over within a second.

A tunnel names its peer in the configuration, by pair or pair_from. Peers named
SITE/HOST are the hosts of a site: its name stands for all of them.`,
		Example: `  longhaul pair invite site-a --address relay-b.example.net:6000
  longhaul pair list
  longhaul pair rotate`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newPairKey(env), newPairInvite(env), newPairJoin(env), newPairList(env), newPairRename(env),
		newPairRemove(env), newPairRotate(env), newPairApply(env))
	return cmd
}

// pairFlags are the flags of every command on the keys of pairs.
type pairFlags struct {
	dir  string
	json bool
}

func (f *pairFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.dir, "dir", "",
		"`DIR` with the keys (default: "+identity.RootDirectory+" for root, else ~/.local/state/longhaul/pair)")
	flags.BoolVar(&f.json, "json", false, "print the result as JSON")
}

// open returns the store of the keys.
func (f *pairFlags) open(env *env) (*identity.Store, error) {
	dir := f.dir
	if dir == "" {
		dir = identity.Directory(env.getenv)
	}
	if dir == "" {
		return nil, usageError(remedy.New(errors.New("no directory for the keys: HOME is not set"), "add --dir DIR"))
	}
	return identity.New(dir), nil
}

func newPairKey(env *env) *cobra.Command {
	var (
		f  pairFlags
		as string
	)
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Print this host's public key; make it at the first use",
		Long: `key prints the public key of this host. Whoever has it can make this host a peer
with longhaul pair join, and learns nothing secret. The private key stays in
--dir. --as prints this host's entry for a file of longhaul pair apply, with
both keys during a rotation.`,
		Example: `  longhaul pair key
  longhaul pair key --as site-b/b1 >> peers.yaml
  longhaul pair key --json | jq -r .key`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := identity.CheckName(as); as != "" && err != nil {
				return usageError(err)
			}
			store, err := f.open(env)
			if err != nil {
				return err
			}
			key, next, made, err := store.Key()
			if err != nil {
				return err
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{
					"directory": store.Dir(), "key": key, "next_key": keyOrEmpty(next), "made": made})
			}
			if made {
				fmt.Fprintf(env.stderr, "made a new key in %s\n", store.Dir())
			}
			if as != "" {
				entry := identity.Wanted{Name: as, Keys: []identity.PublicKey{key}}
				if !next.IsZero() {
					entry.Keys = []identity.PublicKey{next, key}
				}
				return writePeers(env.stdout, []identity.Wanted{entry})
			}
			_, err = fmt.Fprintln(env.stdout, key)
			return err
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "print the entry of this host as `NAME` in a list of peers")
	f.register(cmd.Flags())
	return cmd
}

// keyOrEmpty is the text of a key. The zero key has the empty text.
func keyOrEmpty(key identity.PublicKey) string {
	if key.IsZero() {
		return ""
	}
	return key.String()
}

func newPairList(env *env) *cobra.Command {
	var (
		f      pairFlags
		asYAML bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the peers with their keys, and open invitations",
		Long: `list shows the peers of this host with the beginnings of their keys, and the
invitations that can still be used. --json has the keys in full, and --yaml the
peers as longhaul pair apply takes them. longhaul status shows which peers are
connected.`,
		Example: `  longhaul pair list
  longhaul pair list --json | jq -r '.peers[].name'`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := f.open(env)
			if err != nil {
				return err
			}
			list, err := store.List()
			if err != nil {
				return err
			}
			switch {
			case f.json:
				return display.WriteJSON(env.stdout, list)
			case asYAML:
				return writePeers(env.stdout, list.Wanted())
			}
			return list.WriteText(env.stdout, time.Now())
		},
	}
	cmd.Flags().BoolVar(&asYAML, "yaml", false, "print the peers as a file of longhaul pair apply")
	f.register(cmd.Flags())
	return cmd
}

func newPairRename(env *env) *cobra.Command {
	var f pairFlags
	cmd := &cobra.Command{
		Use:   "rename OLD NEW",
		Short: "Give a peer another name here; its keys stay",
		Long: `rename changes the name that this host has for a peer: the one of pair and
pair_from in the configuration. The other host keeps its own name for this one.
Running relays end the sessions of the former name, and reset their flows;
unless NEW is a host of the site OLD, which tunnels may go on naming.`,
		Example: `  longhaul pair rename vm2 site-b
  longhaul pair rename site-b site-b/b1`,
		Args: exactArgs(2, "the OLD name of a peer and the NEW one"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := identity.CheckName(args[1]); err != nil {
				return usageError(err)
			}
			store, err := f.open(env)
			if err != nil {
				return err
			}
			if err := store.Rename(args[0], args[1]); err != nil {
				return err
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"renamed": args[0], "peer": args[1]})
			}
			_, err = fmt.Fprintf(env.stdout, "%s is %s now\n", args[0], args[1])
			return err
		},
	}
	f.register(cmd.Flags())
	return cmd
}

func newPairRemove(env *env) *cobra.Command {
	var f pairFlags
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Take a peer out of the list, or an invitation back",
		Long: `remove forgets the keys of a peer. Running relays end its sessions, and reset
their flows. The other host still lists this one, and is refused. An invitation
for NAME that nobody has used is void. The hosts of a site are removed one by
one.`,
		Example: "  longhaul pair remove site-b",
		Args:    exactArgs(1, "the NAME of a peer"),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := f.open(env)
			if err != nil {
				return err
			}
			if err := store.Remove(args[0]); err != nil {
				return err
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"removed": args[0]})
			}
			_, err = fmt.Fprintf(env.stdout, "removed %s\n", args[0])
			return err
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// completePeers offers the names of the peers.
func completePeers(cmd *cobra.Command, given []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	f := pairFlags{dir: cmd.Flags().Lookup("dir").Value.String()}
	store, err := f.open(&env{getenv: os.Getenv})
	if err != nil || len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	peers, _ := store.Peers() // none to offer without them
	return namesOf(peers, func(p identity.Peer) string { return p.Name }), cobra.ShellCompDirectiveNoFileComp
}
