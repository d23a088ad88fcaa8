// Package wan has connections between two relays fail: all at once, in one direction, or
// some of them.
package wan

import (
	"errors"
	"net/netip"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
)

// Path is the WAN between two relays, over IPv4. Near opens the connections.
type Path struct {
	Near, Far *hosts.Host
	Link      *link.Link             // Near's end is its A
	Serves    func(port uint16) bool // the far relay's ports
}

// Connection is a connection of the path.
type Connection struct{ Near, Far netip.AddrPort }

// BothWays are both directions of the path.
var BothWays = []link.Direction{link.AToB, link.BToA}

// Cut has directions of the path drop everything, or not any more.
func (p *Path) Cut(down bool, directions ...link.Direction) error {
	var errs []error
	for _, d := range directions {
		s := p.Link.Settings(d)
		s.Down = down
		errs = append(errs, p.Link.Set(d, s))
	}
	return errors.Join(errs...)
}

// Connections returns the connections that a rule picks, which sees them as the near
// host does.
func (p *Path) Connections(rule func(*tcpinfo.Connection) bool) (all []Connection, err error) {
	var diag *tcpinfo.Diag
	err = p.Near.Do(func() error {
		diag, err = tcpinfo.OpenDiag()
		return err
	})
	if err != nil {
		return nil, err
	}
	defer diag.Close()
	seen := map[Connection]bool{}
	err = diag.Each(tcpinfo.Connections, func(c *tcpinfo.Connection) {
		one := Connection{c.Local, c.Remote}
		if p.Serves(c.Remote.Port()) && !seen[one] && rule(c) {
			seen[one] = true
			all = append(all, one)
		}
	})
	return all, err
}

// Forget drops the packets of a connection in both directions, as a NAT does that has
// forgotten it.
func (p *Path) Forget(c Connection) error {
	return errors.Join(p.Near.DropTCP(c.Far.Port(), c.Near.Port()), p.Far.DropTCP(c.Near.Port(), c.Far.Port()))
}

// Remember undoes Forget.
func (p *Path) Remember(c Connection) error {
	return errors.Join(p.Near.DeliverTCP(c.Far.Port(), c.Near.Port()), p.Far.DeliverTCP(c.Near.Port(), c.Far.Port()))
}

// Reset resets a connection at the near host or at the far one. What that end has not
// sent yet, or not read, is lost.
func (p *Path) Reset(c Connection, atFar bool) error {
	if atFar {
		return p.Far.ResetTCP(c.Far, c.Near)
	}
	return p.Near.ResetTCP(c.Near, c.Far)
}
