//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"longhaul/lab/relays"
)

// Between two upgrades, beside as long as the first one took: on a busy machine there is to be
// time for flows.
const servesLeast, servesMost = 50 * time.Millisecond, 2 * time.Second

// upgrades has the relays of a pair upgraded at random moments, as operators do.
type upgrades struct {
	record
	near, far *relays.Process
	dice      *rand.Rand
}

func newUpgrades(seed uint64, near, far *relays.Process) *upgrades {
	return &upgrades{near: near, far: far, dice: rand.New(rand.NewPCG(seed, 1<<62))}
}

// run makes one upgrade after the other until the context ends, the first at once: of the near
// relay, of the far one, or of both, one straight after the other.
func (u *upgrades) run(ctx context.Context) error {
	kinds := []struct {
		what string
		of   []*relays.Process
	}{
		{"near relay", []*relays.Process{u.near}},
		{"far relay", []*relays.Process{u.far}},
		{"near relay, then far", []*relays.Process{u.near, u.far}},
		{"far relay, then near", []*relays.Process{u.far, u.near}},
	}
	for ctx.Err() == nil {
		kind := kinds[u.dice.IntN(len(kinds))]
		began := time.Now()
		end := u.begin("upgrade of the " + kind.what)
		for _, r := range kind.of {
			if _, err := r.Upgrade(context.WithoutCancel(ctx)); err != nil {
				return fmt.Errorf("upgrade of the %s: %w", kind.what, err)
			}
		}
		end()
		wait(ctx, time.Since(began)+between(u.dice, servesLeast, servesMost))
	}
	return nil
}
