package hostevents

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// Each change of the host is seen as what it is, and no other is.
func TestWatch(t *testing.T) {
	nettest.RequireSandbox(t)
	host, err := hosts.New("h")
	nettest.Must(t, err)
	t.Cleanup(host.Close)
	var w *Watch
	var own *nftables.Conn
	nettest.Must(t, host.Do(func() (err error) {
		var port uint32
		own, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *mdlayher.Conn) (err error) {
			port, err = portOf(c)
			return err
		}))
		if err != nil {
			return err
		}
		w, err = Open(Options{Table: "longhaul-a", Own: port})
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
	t.Cleanup(func() { nettest.Must(t, own.CloseLasting()) })
	tableBy := func(c *nftables.Conn, name string) error {
		c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name})
		return c.Flush()
	}
	table := func(name string) func() error {
		return func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			return tableBy(c, name)
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
	// Neither its own changes of the table nor one whose name begins alike.
	do(func() error {
		return errors.Join(tableBy(own, "longhaul-a"), table("longhaul-ab")(), netlink.AddrDel(veth, address))
	})
	until("an address that is gone", func(s Seen) bool { return s.Addresses && !s.Table })
	do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.AddChain(&nftables.Chain{Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: "longhaul-a"}, Name: "c"})
		return c.Flush()
	})
	until("a table", func(s Seen) bool { return s.Table && s.TableBy != "" && !s.Routing })
}

// portOf is the port that the kernel chose for a netlink socket.
func portOf(c syscall.Conn) (port uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var name unix.Sockaddr
	var failed error
	err = raw.Control(func(fd uintptr) { name, failed = unix.Getsockname(int(fd)) })
	if at, ok := name.(*unix.SockaddrNetlink); ok {
		port = at.Pid
	}
	return port, errors.Join(err, failed)
}
