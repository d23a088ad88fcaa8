package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
	"longhaul/lab/relays"
	"longhaul/lab/wan"
)

// trouble makes faults for a time: one after the other of the WAN, beside them one after
// the other of the relays, and strangers beside both.
func (s *soaking) trouble(ctx context.Context, lasts time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	causes := []func(context.Context, *rand.Rand) error{s.wanTrouble, s.relayTrouble, s.strangers, s.tryRefused, s.watch}
	ended := make(chan error)
	for i, cause := range causes {
		go func() { ended <- cause(ctx, rand.New(rand.NewPCG(s.seed, uint64(1<<62+i)))) }()
	}
	var errs []error
	for range causes {
		err := <-ended
		if err != nil {
			cancel() // there is nothing to test any more
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// faults are kinds of faults with their shares.
type faults []struct {
	share int
	name  string
	// deadly: flows may be cut.
	deadly bool
	make   func(context.Context, *rand.Rand) error
}

// pick picks one by its share.
func (f faults) pick(dice *rand.Rand) int {
	sum := 0
	for _, one := range f {
		sum += one.share
	}
	n := dice.IntN(sum)
	for i, one := range f {
		if n -= one.share; n < 0 {
			return i
		}
	}
	return 0
}

// makeAll makes one fault after the other, with pauses of random length between them.
func (s *soaking) makeAll(ctx context.Context, dice *rand.Rand, all faults, least, most time.Duration) error {
	for kit.Pause(ctx, between(dice, least, most)) == nil {
		one := all[all.pick(dice)]
		end := s.begin(one.name, one.deadly)
		err := one.make(ctx, dice)
		end()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return nil
}

func between(dice *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(dice.Int64N(int64(most-least)))
}

// shortOutage is the length of an outage that no flow may notice.
func shortOutage(dice *rand.Rand) time.Duration {
	return between(dice, 100*time.Millisecond, 6*time.Second)
}

func (s *soaking) wanTrouble(ctx context.Context, dice *rand.Rand) error {
	outage := func(directions ...link.Direction) func(context.Context, *rand.Rand) error {
		return func(ctx context.Context, dice *rand.Rand) error {
			return s.outage(ctx, shortOutage(dice), directions...)
		}
	}
	return s.makeAll(ctx, dice, faults{
		{6, "outages", false, outage(wan.BothWays...)},
		{3, "outages to the far relay", false, outage(link.AToB)},
		{3, "outages to the near relay", false, outage(link.BToA)},
		{1, "outages longer than resume", true, func(ctx context.Context, _ *rand.Rand) error {
			return s.outage(ctx, soakResume+5*time.Second, wan.BothWays...)
		}},
		{4, "outages with an upgrade in them", false, s.upgradeInOutage},
		{6, "resets of lanes and controls", false, s.resetSome},
		{6, "lanes and controls that went black", false, s.forgetSome},
		{3, "NATs that forgot everything", false, s.forgetAll},
		{3, "firewalls that drop what is new", false, s.blockNew},
		{3, "spells of loss", false, func(ctx context.Context, dice *rand.Rand) error {
			loss := 0.08 * dice.Float64()
			return s.changed(ctx, dice, func(l *link.Settings) { l.Loss.Probability = loss })
		}},
		{2, "spells of delay", false, func(ctx context.Context, dice *rand.Rand) error {
			more := between(dice, soakRTT, 4*soakRTT)
			return s.changed(ctx, dice, func(l *link.Settings) { l.Delay += more / 2 })
		}},
		{2, "lacks of local ports", false, s.lackPorts},
		{2, "spells of altered bytes", false, func(ctx context.Context, dice *rand.Rand) error {
			share := 0.01 * dice.Float64()
			return s.changed(ctx, dice, func(l *link.Settings) { l.Alter = share })
		}},
		{1, "changes of the near site's address", false, s.readdress},
	}, 2*time.Second, 8*time.Second)
}

func (s *soaking) outage(ctx context.Context, lasts time.Duration, directions ...link.Direction) error {
	path := s.w.path()
	err := path.Cut(true, directions...)
	_ = kit.Pause(ctx, lasts) // the WAN is mended in any case
	return errors.Join(err, path.Cut(false, directions...))
}

// upgradeInOutage upgrades one relay or both at the beginning of an outage that is longer than a
// client's connect_timeout, and shorter than resume: clients that come then are served after it.
func (s *soaking) upgradeInOutage(ctx context.Context, dice *rand.Rand) error {
	lasts := between(dice, soakConnect+soakResume/10, soakResume-soakResume/5)
	far, near := s.w.far(), s.w.near()
	upgraded := [...][]*relays.Process{{far}, {near}, {far, near}}[dice.IntN(3)]
	began := time.Now()
	err := s.w.path().Cut(true, wan.BothWays...)
	_ = kit.Pause(ctx, between(dice, 100*time.Millisecond, soakResume/10)) // the WAN is mended in any case
	for _, r := range upgraded {
		err = errors.Join(err, s.upgrade(ctx, r))
	}
	_ = kit.Pause(ctx, time.Until(began.Add(lasts)))
	return errors.Join(err, s.w.path().Cut(false, wan.BothWays...))
}

// upgrade upgrades a relay, between two of the other faults of relays.
func (s *soaking) upgrade(ctx context.Context, r *relays.Process) error {
	s.relayFault.Lock()
	defer s.relayFault.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	_, err := r.Upgrade(ctx)
	return err
}

// changed has the WAN be another one for a time.
func (s *soaking) changed(ctx context.Context, dice *rand.Rand, change func(*link.Settings)) (err error) {
	l := s.w.path().Link
	var before [2]link.Settings
	for i, d := range wan.BothWays {
		before[i] = l.Settings(d)
		during := before[i]
		change(&during)
		err = errors.Join(err, l.Set(d, during))
	}
	_ = kit.Pause(ctx, shortOutage(dice)) // the WAN is mended in any case
	for i, d := range wan.BothWays {
		err = errors.Join(err, l.Set(d, before[i]))
	}
	return err
}

// lackPorts leaves the near relay a few local ports for a time, so that it can hardly
// make another lane.
func (s *soaking) lackPorts(ctx context.Context, dice *rand.Rand) error {
	err := s.w.ports(40000, 40000+dice.IntN(8))
	_ = kit.Pause(ctx, shortOutage(dice))
	return errors.Join(err, s.w.ports(32768, 60999))
}

// readdress gives the near site another address, as providers do: all connections are
// dead, and new ones come from elsewhere.
func (s *soaking) readdress(context.Context, *rand.Rand) error {
	was := s.address
	s.address = newAddresses[s.readdressed%len(newAddresses)]
	s.readdressed++
	near, far := s.w.Host("relay-a"), s.w.Host("relay-b")
	single := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	err := errors.Join(
		far.Route(hosts.Route{To: single(s.address), Device: lab.WAN}),
		near.Address(lab.WAN, single(s.address)),
		near.Route(hosts.Route{To: single(lab.WANB), Device: lab.WAN, From: s.address}),
	)
	if was.IsValid() {
		return errors.Join(err, near.DropAddress(lab.WAN, single(was)))
	}
	return errors.Join(err, near.DropAddress(lab.WAN, netip.PrefixFrom(lab.WANA, 30)))
}

// newAddresses are those that the near site has in turn after its first one.
var newAddresses = []netip.Addr{netip.MustParseAddr("10.30.33.1"), netip.MustParseAddr("10.30.33.2")}

// some picks a random share of the connections.
func (s *soaking) some(dice *rand.Rand) ([]wan.Connection, error) {
	share := [...]float64{0.1, 0.5, 1}[dice.IntN(3)]
	return s.w.path().Connections(func(*tcpinfo.Connection) bool { return dice.Float64() < share })
}

func (s *soaking) resetSome(_ context.Context, dice *rand.Rand) error {
	picked, err := s.some(dice)
	for _, c := range picked {
		err = errors.Join(err, s.w.path().Reset(c, dice.IntN(2) == 0))
	}
	return err
}

// forgotten drops the packets of connections for a time.
func (s *soaking) forgotten(ctx context.Context, picked []wan.Connection, lasts time.Duration) (err error) {
	for _, c := range picked {
		err = errors.Join(err, s.w.path().Forget(c))
	}
	_ = kit.Pause(ctx, lasts)
	for _, c := range picked {
		err = errors.Join(err, s.w.path().Remember(c))
	}
	return err
}

func (s *soaking) forgetSome(ctx context.Context, dice *rand.Rand) error {
	picked, err := s.some(dice)
	if err != nil {
		return err
	}
	return s.forgotten(ctx, picked, shortOutage(dice))
}

// forgetAll has all connections dead until the relays have given them up.
func (s *soaking) forgetAll(ctx context.Context, _ *rand.Rand) error {
	picked, err := s.w.path().Connections(everyConnection)
	if err != nil {
		return err
	}
	return s.forgotten(ctx, picked, 15*time.Second)
}

// blockNew has every connection go black that begins meanwhile: its preface does not
// arrive.
func (s *soaking) blockNew(ctx context.Context, dice *rand.Rand) (err error) {
	path := s.w.path()
	known := map[wan.Connection]bool{}
	old, err := path.Connections(everyConnection)
	for _, c := range old {
		known[c] = true
	}
	var blocked []wan.Connection
	for until := time.Now().Add(shortOutage(dice)); err == nil && time.Now().Before(until); {
		var all []wan.Connection
		all, err = path.Connections(func(c *tcpinfo.Connection) bool { return !known[wan.Connection{Near: c.Local, Far: c.Remote}] })
		for _, c := range all {
			known[c] = true
			blocked = append(blocked, c)
			err = errors.Join(err, path.Forget(c))
		}
		if kit.Pause(ctx, 10*time.Millisecond) != nil {
			break
		}
	}
	for _, c := range blocked {
		err = errors.Join(err, path.Remember(c))
	}
	return err
}

func (s *soaking) relayTrouble(ctx context.Context, dice *rand.Rand) error {
	upgrade := func(all ...*relays.Process) func(context.Context, *rand.Rand) error {
		return func(ctx context.Context, _ *rand.Rand) error {
			var errs []error
			for _, r := range all {
				_, err := r.Upgrade(ctx)
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}
	}
	alone := func(fault func(context.Context, *rand.Rand) error) func(context.Context, *rand.Rand) error {
		return func(ctx context.Context, dice *rand.Rand) error {
			s.relayFault.Lock()
			defer s.relayFault.Unlock()
			return fault(ctx, dice)
		}
	}
	kill := func(r *relays.Process) func(context.Context, *rand.Rand) error {
		return func(ctx context.Context, dice *rand.Rand) error {
			return s.kill(ctx, r, between(dice, 0, 3*time.Second))
		}
	}
	near, far := s.w.near(), s.w.far()
	reload := func(r *relays.Process) func(context.Context, *rand.Rand) error {
		return func(ctx context.Context, dice *rand.Rand) error {
			for range 1 + dice.IntN(10) {
				if err := s.w.reload(ctx, r, dice.IntN(8)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	failUpgrade := func(r *relays.Process) func(context.Context, *rand.Rand) error {
		return func(ctx context.Context, _ *rand.Rand) error { return r.FailUpgrade(ctx, "/bin/false") }
	}
	all := faults{
		{3, "upgrades of the near relay", false, upgrade(near)},
		{3, "upgrades of the far relay", false, upgrade(far)},
		{2, "upgrades of both", false, upgrade(far, near)},
		{1, "upgrades of the near relay, twice in a row", false, upgrade(near, near)},
		{1, "upgrades of the far relay, twice in a row", false, upgrade(far, far)},
		{1, "upgrades of the near relay that fail", false, failUpgrade(near)},
		{1, "upgrades of the far relay that fail", false, failUpgrade(far)},
		{2, "reloads of the near relay, up to ten in a row", false, reload(near)},
		{2, "reloads of the far relay, up to ten in a row", false, reload(far)},
		{1, "changes of the near relay's key", false, s.rotate("relay-a")},
		{1, "changes of the far relay's key", false, s.rotate("relay-b")},
		{1, "kill -9 of the near relay", true, kill(near)},
		{1, "kill -9 of the far relay", true, kill(far)},
	}
	for i := range all {
		all[i].make = alone(all[i].make)
	}
	return s.makeAll(ctx, dice, all, 5*time.Second, 25*time.Second)
}

// rotate begins a change of a host's key, unless one goes on.
func (s *soaking) rotate(host string) func(context.Context, *rand.Rand) error {
	return func(context.Context, *rand.Rand) error {
		_, err := identity.New(s.w.keys(host)).Rotate()
		return err
	}
}

// kill ends a relay and starts it again after a time.
func (s *soaking) kill(ctx context.Context, r *relays.Process, dead time.Duration) error {
	if err := r.Kill(); err != nil {
		return err
	}
	_ = kit.Pause(ctx, dead)
	// Even if the soak ends now: flows that are under way need it.
	return s.w.startRelay(context.WithoutCancel(ctx), r)
}
