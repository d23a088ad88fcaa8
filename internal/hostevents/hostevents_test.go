package hostevents

import (
	"errors"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/lab/hosts"
	"longhaul/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// Each change of the host is seen as what it is, and no other is.
func TestWatch(t *testing.T) {
	nettest.RequireSandbox(t)
	host, err := hosts.New("h")
	nettest.Must(t, err)
	t.Cleanup(host.Close)
	var w *Watch
	nettest.Must(t, host.Do(func() (err error) {
		w, err = Open(Options{TablePrefix: "longhaul-"})
		return err
	}))
	t.Cleanup(w.Close)
	do := func(change func() error) {
		t.Helper()
		nettest.Must(t, host.Do(change))
	}
	// until takes what is seen until it has what holds asks for.
	until := func(what string, holds func(Seen) bool) {
		t.Helper()
		var seen Seen
		deadline := time.After(time.Minute)
		for !holds(seen) {
			select {
			case <-w.C:
				seen = w.Take()
			case <-deadline:
				t.Fatalf("%s: seen %+v", what, seen)
			}
			if seen.Lost {
				t.Fatalf("%s: %+v", what, seen)
			}
		}
	}
	table := func(name string) func() error {
		return func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name})
			return c.Flush()
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "one"}, PeerName: "two"}
	do(func() error { return netlink.LinkAdd(veth) })
	until("a link", func(s Seen) bool { return s.Links && !s.Addresses && !s.Routing && !s.Table })
	address, err := netlink.ParseAddr("10.9.9.1/24")
	nettest.Must(t, err)
	do(func() error { return netlink.AddrAdd(veth, address) })
	until("an address", func(s Seen) bool { return s.Addresses && !s.Routing && !s.Table })
	do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		to, err := netlink.ParseIPNet("10.9.7.0/24")
		if err != nil {
			return err
		}
		local := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: to, Table: 1812, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
		return errors.Join(netlink.RouteAdd(local), table("other")())
	})
	until("a local route", func(s Seen) bool { return s.Routing && !s.Table })
	do(func() error {
		rule := netlink.NewRule()
		rule.Priority, rule.Table, rule.Family = 1812, 1812, unix.AF_INET
		return netlink.RuleAdd(rule)
	})
	until("a rule", func(s Seen) bool { return s.Routing && !s.Table && !s.Addresses })
	do(table("longhaul-a"))
	until("a table", func(s Seen) bool { return s.Table && s.TableBy != "" && !s.Routing })
}
