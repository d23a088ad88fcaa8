//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab/relays"
)

// deadLeast and deadMost are how long a dead relay stays away; livesLeast and livesMost how long all
// of them live between two deaths.
const (
	deadLeast, deadMost   = 100 * time.Millisecond, 2 * time.Second
	livesLeast, livesMost = 500 * time.Millisecond, 3 * time.Second
)

// deathReasons are those of a flow that a relay's death may cut at both ends.
var deathReasons = []string{"peer-restarted", "peer-refused", "wan-lost"}

// deaths has one of several far relays die at random moments, and come back.
type deaths struct {
	record
	relays  []*relays.Process
	configs []string
	dice    *rand.Rand

	dead map[*relays.Process]bool // guarded by the record's lock
}

func newDeaths(seed uint64) *deaths {
	return &deaths{dice: rand.New(rand.NewPCG(seed, 1<<61)), dead: map[*relays.Process]bool{}}
}

// add adds a relay with the configuration with which it comes back.
func (d *deaths) add(r *relays.Process, config string) {
	d.relays, d.configs = append(d.relays, r), append(d.configs, config)
}

// run has one relay die after the other until the context ends. Then all live.
func (d *deaths) run(ctx context.Context) error {
	for ctx.Err() == nil {
		n := d.dice.IntN(len(d.relays))
		r := d.relays[n]
		d.set(r, true)
		end := d.begin("death of the " + r.Name + " relay")
		if err := r.Kill(); err != nil {
			return fmt.Errorf("kill the %s relay: %w", r.Name, err)
		}
		wait(ctx, between(d.dice, deadLeast, deadMost))
		if err := r.Start(context.WithoutCancel(ctx), d.configs[n]); err != nil {
			return fmt.Errorf("start the %s relay again: %w", r.Name, err)
		}
		end()
		d.set(r, false)
		wait(ctx, between(d.dice, livesLeast, livesMost))
	}
	return nil
}

func (d *deaths) set(r *relays.Process, dead bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead[r] = dead
}

// isDead says whether a relay does not run, and so has no flow.
func (d *deaths) isDead(r *relays.Process) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead[r]
}

// others are the connections that came to a script's target beside the one that it accepted.
type others struct {
	mu    sync.Mutex
	came  int
	bytes int // that they brought
}

// see drains a lane's listeners, and notes what came there.
func (o *others) see(l *lane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.came, o.bytes = 0, 0
	for _, fd := range l.listeners {
		for {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				break
			}
			o.came++
			if n, err := unix.IoctlGetInt(conn, unix.SIOCINQ); err == nil {
				o.bytes += n
			}
			unix.Close(conn)
		}
	}
}

// excused holds a broken script that has met a death against what a death may do: it may reset both
// ends, if the near relay says why; and before that, a relay may have connected to the target for a
// flow that another one then took. again says that the script's target had that connection.
func (p *pair) excused(i int, s *Script, began time.Time, a *attempt) (again bool) {
	o := &p.others[i]
	o.mu.Lock()
	came, bytes := o.came, o.bytes
	o.mu.Unlock()
	switch {
	case bytes > 0 && a.Target.Read > 0:
		a.broken = &Violation{KindTwice, fmt.Sprintf("the target reads %d bytes, and another connection to it has %d", a.Target.Read, bytes)}
		return false
	case a.broken == nil:
		return false
	case came > 0 && a.Target.Read == 0:
		return true
	}
	reason := p.observer.endedBecause(nearRelay, p.tunnel(i, s.Refused).name, began)
	named := slices.Contains(deathReasons, reason)
	// The target may be cut alone. The far relay has acknowledged what it has given to the target's
	// socket, so the near one may have the whole flow, and does not learn that the rest died on its
	// way. Or the client has reset before its relay learns of the death.
	late := reason == "end" || reason == "client-reset"
	if (named || late) && !s.Refused && allowed(s, nil, &a.Outcome, [2]bool{named, true}) == nil {
		a.broken, a.cut, a.late = nil, named, late
	}
	return false
}
