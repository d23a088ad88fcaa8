package intercept

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/portrange"
)

// chains is the table of the relay by name: nft lists chains, sets and counters in the order in which they
// were made.
func (s *site) chains() string {
	s.t.Helper()
	parts := strings.Split(s.run("nft list table inet longhaul-test"), "\n\t}\n")
	for i := range parts {
		parts[i] = strings.TrimSpace(strings.TrimPrefix(parts[i], "table inet longhaul-test {"))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// learn looks at the host, which lacks nothing.
func (s *site) learn(o Options, known *Standing) {
	s.t.Helper()
	must(s.t, s.on(func(h *Host) error {
		missing, err := h.Missing(o, Look{Table: true}, known)
		if len(missing) > 0 {
			s.t.Errorf("the host lacks %v", missing)
		}
		return err
	}))
}

// another returns options that differ at random: tunnels come, go, move, pause and change.
func another(random *rand.Rand, o Options) Options {
	o.Tunnels, o.Dialers = slices.Clone(o.Tunnels), slices.Clone(o.Dialers)
	for range 1 + random.IntN(3) {
		at := random.IntN(len(o.Tunnels))
		t := &o.Tunnels[at]
		switch random.IntN(9) {
		case 0:
			t.Paused = !t.Paused
		case 1:
			t.Mirror, t.HoldPort, t.HoldPort6 = !t.Mirror, 7100, 7106
		case 2:
			t.ListenPort++
		case 3:
			t.To = prefixes(fmt.Sprintf("10.9.%d.0/24", 2+random.IntN(50)), "10.77.0.0/16")
		case 4:
			t.From = nil
		case 5:
			if len(o.Tunnels) > 1 {
				o.Tunnels = slices.Delete(o.Tunnels, at, at+1)
			}
		case 6, 7:
			next := *t
			next.Name, next.To = fmt.Sprintf("more-%d", random.IntN(1000)), []netip.Prefix{netip.MustParsePrefix("fd09:2::/64")}
			o.Tunnels = slices.Insert(o.Tunnels, at, next)
		case 8:
			o.Tunnels[0], o.Tunnels[at] = o.Tunnels[at], o.Tunnels[0]
			if o.Dialers = append(o.Dialers, dialer()); len(o.Dialers) > 1 {
				o.Dialers = nil
			}
		}
	}
	seen := map[string]bool{}
	o.Tunnels = slices.DeleteFunc(o.Tunnels, func(t Tunnel) bool { was := seen[t.Name]; seen[t.Name] = true; return was })
	return o
}

// TestUpdate: a table of which only the differences were set is as one that was set as a whole.
func TestUpdate(t *testing.T) {
	s := newSite(t)
	random := rand.New(rand.NewPCG(11, 5))
	o, known := options(), &Standing{}
	s.set(o)
	updates := 0
	for range 25 {
		s.learn(o, known)
		want := another(random, o)
		must(t, s.on(func(*Host) error {
			r := newRuleset(want)
			if err := r.update(known); err != nil {
				return fmt.Errorf("%+v after %+v: %w", want, o, err)
			}
			updates++
			return nil
		}))
		known, o = &Standing{}, want
		updated := s.chains()
		s.set(o)
		if whole := s.chains(); updated != whole {
			t.Fatalf("%+v: the table is\n%s\nand not\n%s", o, updated, whole)
		}
	}
	s.learn(o, known)
	must(t, s.on(func(h *Host) error { return h.Clear("test") }))
}

// TestUpdateOfOne: what one tunnel of many changes takes as few messages as with few, and nothing takes
// none. After a change by another program all is set anew.
func TestUpdateOfOne(t *testing.T) {
	s := newSite(t)
	o, known := many(), &Standing{}
	s.set(o)
	s.learn(o, known)
	messages := func(what string, change func(), most, least int64) {
		t.Helper()
		o.Tunnels = slices.Clone(o.Tunnels)
		change()
		before := sent.Load()
		must(t, s.on(func(h *Host) error { return h.Set(o, known) }))
		if n := sent.Load() - before; n > most || n < least {
			t.Errorf("%s takes %d messages, want %d to %d", what, n, least, most)
		}
		known = &Standing{}
		s.learn(o, known)
	}
	messages("nothing", func() {}, 0, 0)
	const ofOne = 70 // both families, each with its chains
	messages("a pause", func() { o.Tunnels[70].Paused = true }, ofOne, 1)
	messages("another port", func() { o.Tunnels[70].Ports = []portrange.Range{{First: 9, Last: 9}} }, ofOne, 1)
	messages("another name", func() { o.Tunnels[70].Name = "other" }, ofOne, 1)
	messages("one less", func() { o.Tunnels = slices.Delete(o.Tunnels, 70, 71) }, ofOne, 1)
	messages("one more", func() { o.Tunnels = slices.Insert(o.Tunnels, 9, options().Tunnels[0]); o.Tunnels[9].Name = "more" }, ofOne, 1)
	s.nft("add table inet foreign")
	messages("a change by another program", func() { o.Tunnels[3].Paused = true }, 1<<20, 1000)
	must(t, s.on(func(h *Host) error { return h.Clear("test") }))
}

// TestLookAtNothingNew: without a change of nftables, a look does not read the table.
func TestLookAtNothingNew(t *testing.T) {
	s := newSite(t)
	o, known := options(), &Standing{}
	s.set(o)
	s.learn(o, known)
	reads := func() bool {
		t.Helper()
		known.want = nil // it is made again to compare a table with it
		s.learn(o, known)
		return known.want != nil
	}
	if reads() {
		t.Error("a look at what has not changed reads the table")
	}
	s.nft("add table inet foreign")
	if !reads() {
		t.Error("after a change a look did not read the table")
	}
	if reads() {
		t.Error("the second look after it reads the table")
	}
	s.nft("delete table inet longhaul-test")
	must(t, s.on(func(h *Host) error {
		if missing, err := h.Missing(o, Look{Table: true}, known); err != nil || len(missing) != 1 {
			t.Errorf("a table that was removed: %v, %v", missing, err)
		}
		return nil
	}))
	must(t, s.on(func(h *Host) error { return h.Clear("test") }))
}

// TestSetAfterAnother: a process sets what it had set before also when another has changed the table since,
// whether it has looked meanwhile or not. No chain of another program stays in the table.
func TestSetAfterAnother(t *testing.T) {
	s := newSite(t)
	o := options()
	s.set(o)
	want := s.chains()
	theirs := options()
	theirs.Tunnels[0].ListenPort++
	look := func(h *Host, known *Standing) error { _, err := h.Missing(o, Look{Table: true}, known); return err }
	for _, c := range []struct {
		what    string
		foreign func()
		looks   bool
	}{
		{"another Set", func() { s.set(theirs) }, false},
		{"another Set and a look", func() { s.set(theirs) }, true},
		{"a removal", func() { s.nft("delete table inet longhaul-test") }, false},
		{"a removal and a look", func() { s.nft("delete table inet longhaul-test") }, true},
		{"a chain", func() { s.nft("add chain inet longhaul-test theirs; add rule inet longhaul-test theirs drop") }, false},
		{"a chain and a look", func() { s.nft("add chain inet longhaul-test theirs; add rule inet longhaul-test theirs drop") }, true},
	} {
		known := &Standing{}
		s.learn(o, known)
		c.foreign()
		must(t, s.on(func(h *Host) error {
			if c.looks {
				if err := look(h, known); err != nil {
					return err
				}
			}
			return h.Set(o, known)
		}))
		if got := s.chains(); got != want {
			t.Errorf("after %s, Set leaves\n%s\nand not\n%s", c.what, got, want)
		}
	}
	known := &Standing{}
	s.learn(o, known)
	s.set(theirs)
	must(t, s.on(func(h *Host) error {
		if err := h.Restore(o, []Missing{{Part: PartRoutingRule}}, known); err != nil {
			return err
		}
		if known.whole {
			t.Error("a process that restored a routing rule takes the table for its own")
		}
		return nil
	}))
	must(t, s.on(func(h *Host) error { return h.Clear("test") }))
}

// TestSettingsUnknown: without a descriptor the settings of the host are not known, and not well.
func TestSettingsUnknown(t *testing.T) {
	s := newSite(t)
	must(t, s.on(func(h *Host) error {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
			return err
		}
		_, err := h.Settings(options())
		if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restored != nil {
			return restored
		}
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("without a descriptor Settings says %v", err)
		}
		return nil
	}))
}
