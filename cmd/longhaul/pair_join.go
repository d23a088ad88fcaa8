//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// maxLine bounds a line that is read from stdin, in bytes.
const maxLine = 64 << 10

func newPairJoin(env *env) *cobra.Command {
	var (
		f  pairFlags
		as string
	)
	cmd := &cobra.Command{
		Use:   "join (- | KEY)",
		Short: "Make another host a peer, with its invitation or its key",
		Long: `join reads the line of longhaul pair invite at the other site from its standard
input, which other users do not see. It connects there and proves that it has
the secret without sending it. Both hosts pin each other's key.

Without a connection between the sites, join takes the KEY that longhaul pair
key prints at the other site, and --as NAME. Run it at both.`,
		Example: `  longhaul pair join - < invitation
  longhaul pair join - --as site-b < invitation
  longhaul pair join KEY --as site-b`,
		Args: exactArgs(1, "- for the line of an invitation, or a KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			line, err := joinLine(env, args[0])
			if err != nil {
				return err
			}
			store, err := f.open(env)
			if err != nil {
				return err
			}
			if strings.HasPrefix(line, identity.KeyPrefix) {
				return f.pinKey(env, store, line, as)
			}
			inv, err := identity.ParseInvitation(line)
			if err == nil && as != "" {
				err = identity.CheckName(as)
			}
			if err != nil {
				return usageError(err)
			}
			if args[0] != "-" {
				writeWarning(env.stderr, "other users of this host can read the invitation's secret on the command line", "longhaul pair join - < line")
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			joined, err := store.Join(ctx, inv, as)
			if err != nil {
				return err
			}
			return f.print(env, joined)
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "`NAME` of the peer here (default: the one that it proposes)")
	f.register(cmd.Flags())
	return cmd
}

// joinLine returns the argument of join, or what stands on the standard input.
func joinLine(env *env, argument string) (string, error) {
	if argument != "-" {
		return strings.TrimSpace(argument), nil
	}
	text, err := io.ReadAll(io.LimitReader(env.stdin, maxLine))
	if err != nil {
		return "", fmt.Errorf("read the line: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// pinKey makes a host a peer by the key that it printed.
func (f *pairFlags) pinKey(env *env, store *identity.Store, line, as string) error {
	if as == "" {
		return usageError(remedy.New(errors.New("a key has no name"), "add --as NAME, for the peer"))
	}
	key, err := identity.ParsePublicKey(line)
	if err == nil {
		err = identity.CheckName(as)
	}
	if err != nil {
		return usageError(err)
	}
	added, err := store.Pin(as, key)
	if err != nil {
		return err
	}
	return f.print(env, identity.Joined{Peer: as, Key: key, Added: added})
}

func (f *pairFlags) print(env *env, j identity.Joined) (err error) {
	switch {
	case f.json:
		return display.WriteJSON(env.stdout, map[string]any{"peer": j.Peer, "key": j.Key, "address": j.Address, "added": j.Added})
	case !j.Added:
		_, err = fmt.Fprintf(env.stdout, "%s is a peer already\n", j.Peer)
	case j.Address == "":
		_, err = fmt.Fprintf(env.stdout, "%s is a peer now; it needs the key of this host: longhaul pair key\n", j.Peer)
	default:
		_, err = fmt.Fprintf(env.stdout, "%s is a peer now, and has the key of this host\n", j.Peer)
	}
	return err
}
