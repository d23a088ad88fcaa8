//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"longhaul/lab/relays"
)

// Between two upgrades, beside as long as the first one took: on a busy machine there is to be
// time for flows.
const servesLeast, servesMost = 50 * time.Millisecond, 2 * time.Second

// upgrades has paired relays upgraded at random moments, as operators do.
type upgrades struct {
	record
	relays []*relays.Process
	dice   *rand.Rand
}

func newUpgrades(seed uint64, of []*relays.Process) *upgrades {
	return &upgrades{relays: of, dice: rand.New(rand.NewPCG(seed, 1<<62))}
}

// run makes one upgrade after the other until the context ends, the first at once: of one relay, or
// of several, one straight after the other.
func (u *upgrades) run(ctx context.Context) error {
	for ctx.Err() == nil {
		picked := u.pick()
		names := make([]string, len(picked))
		for i, r := range picked {
			names[i] = r.Name
		}
		began := time.Now()
		end := u.begin("upgrade of " + strings.Join(names, ", then "))
		for _, r := range picked {
			if _, err := r.Upgrade(context.WithoutCancel(ctx)); err != nil {
				return fmt.Errorf("upgrade of the %s relay: %w", r.Name, err)
			}
		}
		end()
		wait(ctx, time.Since(began)+between(u.dice, servesLeast, servesMost))
	}
	return nil
}

// pick returns some of the relays, in any order.
func (u *upgrades) pick() (picked []*relays.Process) {
	for _, i := range u.dice.Perm(len(u.relays))[:1+u.dice.IntN(len(u.relays))] {
		picked = append(picked, u.relays[i])
	}
	return picked
}
