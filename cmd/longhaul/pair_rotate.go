//go:build linux

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/words/display"
)

func newPairRotate(env *env) *cobra.Command {
	var (
		f   pairFlags
		now bool
	)
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Change this host's key, without a new pairing",
		Long: `rotate makes a second key. Running relays tell it to the peers, over sessions
that the old key authenticates. Both keys work until every peer has the new one;
then the old one is dropped. No flow is cut. Again during a rotation, rotate
lists the peers that it waits for.

--now drops the old key at once, such as a stolen one. Peers that do not have
the new key need a new pairing.`,
		Example: `  longhaul pair rotate
  longhaul pair rotate --now`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := f.open(env)
			if err != nil {
				return err
			}
			rotate := store.Rotate
			if now {
				rotate = store.RotateNow
			}
			r, err := rotate()
			if err != nil {
				return err
			}
			if f.json {
				return display.WriteJSON(env.stdout, map[string]any{"old_key": keyOrEmpty(r.Old), "new_key": r.New,
					"started": r.Started, "waiting": append([]string{}, r.Waiting...)})
			}
			return writeRotation(env, r, now)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "drop the old key at once")
	f.register(cmd.Flags())
	return cmd
}

func writeRotation(env *env, r identity.Rotation, now bool) (err error) {
	waiting := strings.Join(r.Waiting, ", ")
	switch {
	case len(r.Waiting) == 0:
		_, err = fmt.Fprintf(env.stdout, "the new key is in use: %s\n", r.New)
	case now:
		_, err = fmt.Fprintf(env.stdout, "the new key is in use: %s\nthese peers need a new pairing: %s\n", r.New, waiting)
	case r.Started:
		_, err = fmt.Fprintf(env.stdout, "made a new key: %s\nthe old one is dropped once these peers have the new one: %s\n", r.New, waiting)
	default:
		_, err = fmt.Fprintf(env.stdout, "a rotation goes on: these peers do not have the new key: %s\n", waiting)
	}
	return err
}
