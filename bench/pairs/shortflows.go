package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"longhaul/lab"
	"longhaul/lab/relays"
)

// What the cases upgrade-churn and upgrade-outage do.
const (
	churnFlowsEvery  = time.Second / 60
	churnEvery       = 2 * time.Second // pause between two upgrades
	outageFlowsEvery = time.Second / 6
	outageRest       = 5 * time.Second // before each outage
	outageUpgradeAt  = 0.3             // of the outage
)

// upgraded are the relays that are replaced by new processes, one after the other.
type upgraded struct {
	name   string
	relays func(*world) []*relays.Process
}

var upgradedRelays = []upgraded{
	{"far", func(w *world) []*relays.Process { return []*relays.Process{w.far()} }},
	{"near", func(w *world) []*relays.Process { return []*relays.Process{w.near()} }},
	{"both", func(w *world) []*relays.Process { return []*relays.Process{w.far(), w.near()} }},
}

// churnTrial has short flows go over a pair whose relays are upgraded. A flow is cut by the
// upgrade before it.
type churnTrial struct {
	name  string
	rtt   time.Duration
	pair  string // settings of the near tunnel's pair
	every time.Duration
	// script upgrades the relays, with what it finds around that.
	script func(ctx context.Context, w *world, upgrade func(upgraded) error) error

	upgrades []upgradeAt
	outcome  tally
	cutAfter map[string]int // flows that failed, by the relays that had been upgraded
}

type upgradeAt struct {
	relays string
	at     time.Time
}

// upgradeChurn upgrades relays under short flows alone, so that no flow holds an old process
// open. Paths of several delays take part at the same time.
func upgradeChurn(ctx context.Context, o Options, way string, run int, note func(measured)) error {
	upgrades := pick(o, 100, 6)
	if o.Upgrades > 0 {
		upgrades = o.Upgrades
	}
	script := func(ctx context.Context, _ *world, upgrade func(upgraded) error) error {
		for i := range upgrades {
			if err := errors.Join(pause(ctx, churnEvery), ctx.Err()); err != nil {
				return err
			}
			if err := upgrade(upgradedRelays[i%len(upgradedRelays)]); err != nil {
				return err
			}
		}
		return pause(ctx, churnEvery)
	}
	var all []*churnTrial
	for _, setting := range []string{"lanes: 1", "lanes: 4", "warm: 0"} {
		var trials []*churnTrial
		for _, rtt := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
			trials = append(trials, &churnTrial{name: fmt.Sprintf("%d ms, %s", rtt.Milliseconds(), setting), rtt: rtt, pair: ", " + setting, every: churnFlowsEvery, script: script})
		}
		if err := runChurn(ctx, o, way, run, trials); err != nil {
			return err
		}
		all = append(all, trials...)
	}
	noteChurn(note, all)
	return nil
}

// upgradeOutages upgrades relays in outages, in which new clients come.
func upgradeOutages(ctx context.Context, o Options, way string, run int, note func(measured)) error {
	var trials []*churnTrial
	for _, lasts := range pick(o, []time.Duration{40 * time.Second, 15 * time.Second, 4 * time.Second}, []time.Duration{15 * time.Second, 4 * time.Second}) {
		rounds := max(1, int(pick(o, 2*time.Minute, 20*time.Second)/(lasts+outageRest)))
		for _, relays := range upgradedRelays {
			trials = append(trials, &churnTrial{name: fmt.Sprintf("%.0f s, %s", lasts.Seconds(), relays.name), rtt: 20 * time.Millisecond, every: outageFlowsEvery,
				script: func(ctx context.Context, w *world, upgrade func(upgraded) error) error {
					for range rounds {
						if err := w.upgradeInOutage(ctx, outageRest, lasts, func() error { return upgrade(relays) }); err != nil {
							return err
						}
					}
					return pause(ctx, outageRest)
				}})
		}
	}
	if err := runChurn(ctx, o, way, run, trials); err != nil {
		return err
	}
	noteChurn(note, trials)
	return nil
}

// upgradeInOutage cuts the WAN after a rest, with an upgrade meanwhile.
func (w *world) upgradeInOutage(ctx context.Context, rest, lasts time.Duration, upgrade func() error) error {
	if err := pause(ctx, rest); err != nil {
		return err
	}
	if err := w.cut(true); err != nil {
		return err
	}
	began := time.Now()
	err := pause(ctx, time.Duration(outageUpgradeAt*float64(lasts)))
	if err == nil {
		err = upgrade()
	}
	if err == nil {
		err = pause(ctx, time.Until(began.Add(lasts)))
	}
	return errors.Join(err, w.cut(false))
}

// runChurn runs trials at the same time, whose worlds it builds one after the other.
func runChurn(ctx context.Context, o Options, way string, run int, trials []*churnTrial) error {
	return atOnce(len(trials), func(i int, building *sync.Mutex) error {
		if err := trials[i].run(ctx, o, way, run, building); err != nil {
			return fmt.Errorf("%s: %w", trials[i].name, err)
		}
		return nil
	})
}

// atOnce runs the trials of a case at the same time. Those that hold the lock build their
// worlds.
func atOnce(n int, run func(i int, building *sync.Mutex) error) error {
	var building sync.Mutex
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = run(i, &building) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (t *churnTrial) run(ctx context.Context, o Options, way string, run int, building *sync.Mutex) error {
	c := newCrowd(crowdOptions{every: t.every, minLife: 20 * time.Millisecond, maxLife: 500 * time.Millisecond,
		pace: pace{every: 50 * time.Millisecond, bytes: 2000}, seed: o.seed(run)})
	building.Lock()
	path := lab.TwoSites(conditions(t.rtt, outageRateBps))
	if t.rtt == 0 { // whose queue would be one packet
		path = cabled(path)
	}
	w, err := buildWorld(ctx, o, path, way, c.serve, settings{pair: t.pair})
	if err == nil {
		err = c.gather(ctx, w)
	}
	building.Unlock()
	if err != nil {
		return err
	}
	defer w.close()
	err = t.script(ctx, w, func(u upgraded) error {
		t.upgrades = append(t.upgrades, upgradeAt{u.name, time.Now()})
		for _, r := range u.relays(w) {
			if _, err := r.Upgrade(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return w.explain(err)
	}
	c.finish()
	t.outcome, t.cutAfter = c.tally(), map[string]int{}
	for _, at := range c.failures() {
		t.cutAfter[t.before(at)]++
	}
	return ctx.Err()
}

// before names the relays of the latest upgrade before a moment.
func (t *churnTrial) before(at time.Time) string {
	for _, u := range slices.Backward(t.upgrades) {
		if u.at.Before(at) {
			return u.relays
		}
	}
	return "none"
}

// failures are the moments at which the flows failed, which are done.
func (c *crowd) failures() (all []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flows {
		switch {
		case f.client.err != nil:
			all = append(all, f.client.failedAt)
		case f.target.err != nil:
			all = append(all, f.target.failedAt)
		}
	}
	return all
}

// noteChurn notes the flows and the failures of each trial, and of all.
func noteChurn(note func(measured), trials []*churnTrial) {
	var all tally
	cutAfter, upgrades := map[string]int{}, map[string]int{}
	for _, t := range trials {
		failed := measured{name: fmt.Sprintf("%s: of %d failed", t.name, t.outcome.flows), value: float64(t.outcome.cut + t.outcome.hung + t.outcome.wrong), bound: atMost(0), exact: true}
		if failed.value > 0 {
			failed.example = t.outcome.said()
		}
		note(failed)
		for relays, n := range t.cutAfter {
			cutAfter[relays] += n
		}
		for _, u := range t.upgrades {
			upgrades[u.relays]++
		}
		all.add(t.outcome)
	}
	for _, relays := range upgradedRelays {
		note(measured{name: fmt.Sprintf("%s: failed in %d upgrades", relays.name, upgrades[relays.name]), value: float64(cutAfter[relays.name])})
	}
	all.figures(note)
}
