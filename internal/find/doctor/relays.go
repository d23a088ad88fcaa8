package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// relayed are the causes that a relay at each site removes from the long leg.
func relayed() []Cause {
	var all []Cause
	for _, entry := range causes {
		if entry.relayed {
			all = append(all, entry.cause)
		}
	}
	return all
}

// relays returns the outlook of a relay at each site, whether it is worth it or not.
func (c *patient) relays(findings []Finding) *Outlook {
	switch {
	case c.o.Pair != nil:
		return nil // there are relays at both sites
	case c.stands():
		return nil // full packets vanish, also those of the relays
	case findings[0].Cause == Unexplained || findings[0].Cause == Congestion:
		return nil // the limit, or the share of others, is unknown
	case c.readerInDoubt(findings):
		return &Outlook{Unknown: "whether the program or its host's buffer limits"}
	}
	o := c.outlook(findings, relayed())
	return &o
}

// relayPair returns the remedy of a relay at each site; nil if none of the findings is
// a cause that it removes, or it brings less than a fifth.
func (c *patient) relayPair(findings []Finding) *Remedy {
	outlook := c.relays(findings)
	if outlook == nil || findings[0].Cause.IsNone() || outlook.Gain > 0 && outlook.Gain < Worthwhile {
		return nil
	}
	target := c.service()
	near := fmt.Sprintf("longhaul relay --listen :%d --forward FAR-RELAY:6000", target.Port())
	r := Remedy{
		Action:  "split the connection with a longhaul relay at each site, without a change to the hosts",
		Place:   BothSites,
		Command: "longhaul relay --listen :6000 --forward " + target.String(),
		Others:  []string{"that is the relay beside the server; beside its clients: " + near},
		Outlook: *outlook,
	}
	windowed := false
	for _, finding := range findings {
		if finding.Cause.entry().relayed {
			r.Causes = append(r.Causes, finding.Cause)
		}
		windowed = windowed || slices.Contains([]Cause{ReceiverWindow, WindowScaling, SendBuffer}, finding.Cause)
	}
	if len(r.Causes) == 0 {
		return nil
	}
	if windowed {
		r.Notes = []string{c.shortLeg(*outlook)}
	}
	return &r
}

// shortLeg returns the condition of windows and buffers that keep their size: they
// bound the legs between a host and its relay.
func (c *patient) shortLeg(o Outlook) string {
	if o.Gain == 0 {
		return "the hosts keep their windows, so each relay must be near its host"
	}
	farthest := time.Duration(float64(c.f.MinRTT) / o.Gain)
	return fmt.Sprintf("the hosts keep their windows, which suffice up to %s between a host and its relay",
		milliseconds(farthest))
}

// service returns the end that other hosts connect to: the receiver, unless only the
// sender's port is below the usual ports of clients.
func (c *patient) service() netip.AddrPort {
	const clients = 32768 // the lowest port that Linux gives to clients
	if c.o.Remote.Port() >= clients && c.o.Local.Port() < clients && c.o.Local.Port() > 0 {
		return c.o.Local
	}
	return c.o.Remote
}
