package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DialTCP connects from the host to a literal address, within a time. The connection
// is plain TCP: Go's Multipath TCP lacks socket options and sock_diag's figures.
func (h *Host) DialTCP(ctx context.Context, to netip.AddrPort, within time.Duration) (*net.TCPConn, error) {
	return h.dial(ctx, to, within, false)
}

// DialMPTCP is DialTCP with Multipath TCP, if the other side accepts that.
func (h *Host) DialMPTCP(ctx context.Context, to netip.AddrPort, within time.Duration) (*net.TCPConn, error) {
	return h.dial(ctx, to, within, true)
}

func (h *Host) dial(ctx context.Context, to netip.AddrPort, within time.Duration, multipath bool) (conn *net.TCPConn, err error) {
	err = h.Do(func() error {
		// A literal address is dialed on the calling thread, and so from this host.
		d := net.Dialer{Timeout: within}
		d.SetMultipathTCP(multipath)
		c, err := d.DialContext(ctx, "tcp", to.String())
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	return conn, err
}

// ListenTCP listens on a port of all IPv4 addresses of the host, for plain TCP.
func (h *Host) ListenTCP(ctx context.Context, port uint16) (*net.TCPListener, error) {
	return h.listen(ctx, port, false)
}

// ListenMPTCP is ListenTCP for Multipath TCP and plain TCP.
func (h *Host) ListenMPTCP(ctx context.Context, port uint16) (*net.TCPListener, error) {
	return h.listen(ctx, port, true)
}

func (h *Host) listen(ctx context.Context, port uint16, multipath bool) (listener *net.TCPListener, err error) {
	err = h.Do(func() error {
		var lc net.ListenConfig
		lc.SetMultipathTCP(multipath)
		l, err := lc.Listen(ctx, "tcp4", fmt.Sprintf(":%d", port))
		if err == nil {
			listener = l.(*net.TCPListener)
		}
		return err
	})
	return listener, err
}

// Priorities of rules that see received packets before they are delivered. The kernel's
// own rule for delivery is the first of all, and DropTCP moves it.
const (
	dropPriority    = 1
	deliverPriority = 2
)

// DropTCP has the host silently drop the TCP packets that it receives over IPv4 from one
// port to another. Their sender does not notice, as it would if its own host dropped
// them. The host must be a router: another one answers with ICMP. Doing so again
// changes nothing.
func (h *Host) DropTCP(from, to uint16) error {
	deliver := netlink.NewRule()
	deliver.Family, deliver.Priority, deliver.Table = unix.AF_INET, deliverPriority, unix.RT_TABLE_LOCAL
	err := ignore(unix.EEXIST, h.nl.RuleAdd(deliver))
	if err == nil {
		deliver.Priority = 0
		err = ignore(unix.ENOENT, h.nl.RuleDel(deliver))
	}
	if err == nil {
		err = ignore(unix.EEXIST, h.nl.RuleAdd(dropRule(from, to)))
	}
	if err != nil {
		return fmt.Errorf("drop TCP from port %d to %d on host %s: %w", from, to, h.Name, err)
	}
	return nil
}

// DeliverTCP undoes DropTCP.
func (h *Host) DeliverTCP(from, to uint16) error {
	if err := ignore(unix.ENOENT, h.nl.RuleDel(dropRule(from, to))); err != nil {
		return fmt.Errorf("deliver TCP from port %d to %d on host %s: %w", from, to, h.Name, err)
	}
	return nil
}

func dropRule(from, to uint16) *netlink.Rule {
	drop := netlink.NewRule()
	drop.Family, drop.Priority = unix.AF_INET, dropPriority
	drop.IPProto, drop.Type = unix.IPPROTO_TCP, unix.FR_ACT_BLACKHOLE
	drop.Sport, drop.Dport = netlink.NewRulePortRange(from, from), netlink.NewRulePortRange(to, to)
	return drop
}

// ignore returns err, unless it is the expected one.
func ignore(expected, err error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}
