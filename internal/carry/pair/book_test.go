package pair

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestBookIsBounded holds that a book keeps the addresses that were seen last, and that a process which
// nobody hears is forgotten.
func TestBookIsBounded(t *testing.T) {
	t.Parallel()
	var b book
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1)
	}
	for i := range 2 * maxPlaces {
		b.note("t", at(i), host{name: "b"})
	}
	if n := len(b.all()); n != maxPlaces {
		t.Errorf("%d addresses are kept", n)
	}
	if _, known := b.last("t", at(2*maxPlaces-1)); !known {
		t.Error("the latest address is not known")
	}
	for i := range uint64(2 * maxPlaces) {
		b.hear(i, time.Now().Add(-time.Hour))
	}
	if n := len(b.heard); n > maxPlaces {
		t.Errorf("%d processes are kept", n)
	}
}

// TestRefusals holds when refused attempts say that a far process is dead.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const long = 5 * time.Second
	began := time.Now()
	p, q := &wanPath{}, &wanPath{}
	one, two := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:1")
	type event struct {
		after time.Duration
		path  *wanPath
		to    netip.AddrPort
		err   error
	}
	refusing := func(p *wanPath, to netip.AddrPort, from, until time.Duration) (all []event) {
		for ; from <= until; from += time.Second {
			all = append(all, event{from, p, to, unix.ECONNREFUSED})
		}
		return all
	}
	both := func(all ...[]event) (joined []event) {
		for _, some := range all {
			joined = append(joined, some...)
		}
		return joined
	}
	for name, c := range map[string]struct {
		events []event
		acked  time.Duration
		want   bool
	}{
		"all refuse":            {events: both(refusing(p, one, 0, 6*time.Second), refusing(p, two, 0, 6*time.Second), refusing(q, one, 0, 6*time.Second)), want: true},
		"not for long":          {events: both(refusing(p, one, 0, 6*time.Second), refusing(p, two, 2*time.Second, 6*time.Second), refusing(q, one, 0, 6*time.Second))},
		"not on each path":      {events: both(refusing(p, one, 0, 6*time.Second), refusing(p, two, 0, 6*time.Second))},
		"an address answers":    {events: both(refusing(p, one, 0, 6*time.Second), refusing(p, two, 0, 3*time.Second), []event{{4 * time.Second, p, two, nil}}, refusing(p, two, 5*time.Second, 6*time.Second), refusing(q, one, 0, 6*time.Second))},
		"an address is silent":  {events: both(refusing(p, one, 0, 6*time.Second), []event{{time.Second, p, two, unix.ETIMEDOUT}}, refusing(q, one, 0, 6*time.Second))},
		"too few attempts":      {events: both(refusing(p, one, 0, 6*time.Second), []event{{0, p, two, unix.ECONNREFUSED}, {6 * time.Second, p, two, unix.ECONNREFUSED}}, refusing(q, one, 0, 6*time.Second))},
		"a lane lives":          {events: both(refusing(p, one, 0, 6*time.Second), refusing(p, two, 0, 6*time.Second), refusing(q, one, 0, 6*time.Second)), acked: 2 * time.Second},
		"no attempts meanwhile": {events: both(refusing(p, one, -20*time.Second, -10*time.Second), refusing(p, two, 0, 6*time.Second), refusing(q, one, 0, 6*time.Second))},
	} {
		var r refusals
		r.begin(p, []netip.AddrPort{one, two})
		r.begin(q, []netip.AddrPort{one})
		for _, e := range c.events {
			r.note(e.path, e.to, e.err, began.Add(e.after))
		}
		if got := r.all([]*wanPath{p, q}, began.Add(c.acked), began.Add(6*time.Second), long); got != c.want {
			t.Errorf("%s: dead is %v", name, got)
		}
	}
}
