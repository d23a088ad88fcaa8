//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/run/control"
	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/remedy"
)

// pairInvite are the flags of pair invite.
type pairInvite struct {
	pairFlags
	addresses []string
	serve, as string
}

func newPairInvite(env *env) *cobra.Command {
	var f pairInvite
	cmd := &cobra.Command{
		Use:   "invite NAME (--address HOST:PORT | --serve ADDRESS:PORT)",
		Short: "Print a line with which another host becomes the peer NAME",
		Long: fmt.Sprintf(`invite prints one line for longhaul pair join at the other site: where this host
can be reached, its key, and a secret that works once and for %d minutes. The
line is as good as a password for that time: send it over a channel that others
do not read.

The relay of this host takes the join at --address, where one of its tunnels
listens with pair_from. --serve takes it in this command instead, before there
is a relay, and waits for it. Each host of a site with several has a key and an
invitation of its own, and the NAME SITE/HOST.`, int(identity.InvitationLife.Minutes())),
		Example: `  longhaul pair invite site-a --address relay-b.example.net:6000
  longhaul pair invite site-a --serve 192.0.2.20:6000 --as site-b
  longhaul pair invite site-a --address relay-b2.example.net:6000 --as site-b/b2`,
		Args: exactArgs(1, "a NAME for the new peer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), env, args[0])
		},
	}
	flags := cmd.Flags()
	flagvalue.Add(flags, "HOST:PORT", "address", "address of this host for the other site; several are tried in order", "",
		func(s string) error {
			f.addresses = append(f.addresses, s)
			return nil
		})
	flags.StringVar(&f.serve, "serve", "", "take the join in this command, at `ADDRESS:PORT`")
	flags.StringVar(&f.as, "as", "", "`NAME` of this host for the other site (default: name of the running relay, or the host's name)")
	f.register(flags)
	return cmd
}

// invited is an invitation as JSON.
type invited struct {
	Line      string             `json:"line"`
	Name      string             `json:"name"`
	As        string             `json:"as"`
	Addresses []string           `json:"addresses"`
	Key       identity.PublicKey `json:"key"`
	Expires   time.Time          `json:"expires"`
}

func (f *pairInvite) run(ctx context.Context, env *env, name string) error {
	as, err := f.check(ctx, env, name)
	if err != nil {
		return usageError(err)
	}
	store, err := f.open(env)
	if err != nil {
		return err
	}
	var listener net.Listener
	if f.serve != "" {
		if listener, err = f.listen(ctx); err != nil {
			return err
		}
		defer listener.Close()
	}
	expires := time.Now().Add(identity.InvitationLife)
	inv, err := store.Invite(name, as, f.addresses)
	if err != nil {
		return err
	}
	if listener == nil { // a running relay takes the join
		select {
		case <-time.After(identity.KnownAfter):
		case <-ctx.Done():
		}
	}
	if f.json { // a line for each event: with --serve there are two
		err = json.NewEncoder(env.stdout).Encode(invited{inv.Line(), name, inv.Name, inv.Addresses, inv.Key, expires.UTC().Truncate(time.Second)})
	} else {
		_, err = fmt.Fprintln(env.stdout, inv.Line())
		fmt.Fprintf(env.stderr, "at the other site, within %d minutes: longhaul pair join - < line\n", int(identity.InvitationLife.Minutes()))
		fmt.Fprintf(env.stderr, "there this host becomes the peer %s; --as NAME proposes another name\n", inv.Name)
	}
	if err != nil || listener == nil {
		return err
	}
	return f.wait(ctx, env, store, listener, name)
}

// check returns the name of this host for the other site.
func (f *pairInvite) check(ctx context.Context, env *env, name string) (as string, err error) {
	if len(f.addresses) == 0 {
		host, _, _ := net.SplitHostPort(f.serve)
		if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
			return "", remedy.New(errors.New("missing --address"),
				"add --address HOST:PORT, where the other site reaches this host, such as relay-b.example.net:6000")
		}
	} else if err := identity.CheckAddresses(f.addresses); err != nil {
		return "", err
	}
	if as = f.as; as == "" {
		if as, err = ownName(ctx, env); err != nil {
			return "", err
		}
	}
	if err := identity.CheckName(name); err != nil {
		return "", err
	}
	return as, identity.CheckName(as)
}

// ownName is the name of the relay that runs here, if there is one with a name of its own. Otherwise
// it is the name of the host.
func ownName(ctx context.Context, env *env) (string, error) {
	dir := control.Directory(env.getenv)
	names, _ := control.Running(ctx, dir) // an unreadable directory is another user's
	names = slices.DeleteFunc(names, func(name string) bool {
		return name == control.DefaultName || name == control.LabName || control.IsOwnName(name)
	})
	if len(names) == 1 && identity.CheckName(names[0]) == nil {
		if _, err := control.PIDOf(ctx, control.PathIn(dir, names[0])); err == nil {
			return names[0], nil
		}
	}
	return identity.HostName()
}

// listen opens the listener of --serve, which is the address if none is given.
func (f *pairInvite) listen(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", f.serve)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, remedy.New(fmt.Errorf("another program listens at %s", f.serve),
			"leave out --serve if it is a relay with pair_from, and name --address; or choose another port")
	}
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, remedy.New(fmt.Errorf("listen at --serve %s: %w", f.serve, err), "use an address of this host and a port, such as :6000")
	}
	if len(f.addresses) == 0 {
		f.addresses = []string{l.Addr().String()}
	}
	return l, nil
}

// wait takes joins until the peer has joined.
func (f *pairInvite) wait(ctx context.Context, env *env, store *identity.Store, l net.Listener, name string) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	err := store.ServeInvitation(ctx, l, name, func(remote net.Addr, err error) {
		fmt.Fprintf(env.stderr, "%s: %s\n", remote, strings.TrimPrefix(err.Error(), "tls: "))
	})
	switch {
	case errors.Is(err, identity.ErrExpired):
		return remedy.New(fmt.Errorf("nobody has joined as %s within %d minutes", name, int(identity.InvitationLife.Minutes())), "invite again")
	case errors.Is(err, context.Canceled):
		return remedy.New(errors.New("interrupted the wait; the line works on at a running relay with pair_from"), "longhaul pair list shows open invitations")
	case err != nil:
		return err
	}
	if f.json {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"joined": name})
	}
	_, err = fmt.Fprintf(env.stdout, "%s has joined\n", name)
	return err
}
