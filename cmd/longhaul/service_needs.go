//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"longhaul/internal/cc"
	"longhaul/internal/config"
	"longhaul/internal/remedy"
	"longhaul/internal/units"
	"longhaul/packaging"
)

// The drop-ins of packaging/longhaul.service.d.
const (
	grantLowPorts = "low-ports"
	grantNetAdmin = "net-admin"
	grantLoadCC   = "load-congestion-control"
	grantCC       = "congestion-control"
	grantKeys     = "credentials"
)

var allGrants = []string{grantLowPorts, grantNetAdmin, grantLoadCC, grantCC, grantKeys}

// grant is a drop-in of the unit and what asks for it.
type grant struct {
	Name string   `json:"name"`
	Why  string   `json:"why"`
	of   []string // the algorithms or keys that it is about
}

// dropIn is the drop-in's text.
func (g grant) dropIn(program string) ([]byte, error) {
	text, err := packaging.File(unitName+".d/"+g.Name+".conf", program)
	if err != nil || len(g.of) == 0 {
		return text, err
	}
	var lines []string
	switch g.Name {
	case grantLoadCC:
		return bytes.Replace(text, []byte("cc load haul"), []byte("cc load "+strings.Join(g.of, " ")), 1), nil
	case grantKeys:
		for _, name := range g.of {
			lines = append(lines, strings.ReplaceAll("LoadCredential=NAME:/etc/longhaul/NAME", "NAME", name))
		}
		return bytes.Replace(text, []byte("LoadCredential=check.key:/etc/longhaul/check.key"), []byte(strings.Join(lines, "\n")), 1), nil
	}
	return text, nil
}

// hostLimits are what a relay without privilege may have.
type hostLimits struct {
	lowestPort       int
	sendBuffer       units.Size
	receiveBuffer    units.Size
	congestionChoice []string // free to choose
}

// usualLimits are those of a kernel of which nothing is known.
func usualLimits() hostLimits {
	return hostLimits{lowestPort: 1024, sendBuffer: 212992, receiveBuffer: 212992, congestionChoice: []string{"reno", "cubic", "bbr", "dctcp"}}
}

// readLimits asks the kernel; what it does not say is as usual.
func readLimits() hostLimits {
	l := usualLimits()
	number := func(sysctl string, usual int) int {
		b, err := os.ReadFile("/proc/sys/net/" + sysctl)
		if err != nil {
			return usual
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return usual
		}
		return n
	}
	l.lowestPort = number("ipv4/ip_unprivileged_port_start", l.lowestPort)
	l.sendBuffer = units.Size(number("core/wmem_max", int(l.sendBuffer)))
	l.receiveBuffer = units.Size(number("core/rmem_max", int(l.receiveBuffer)))
	if allowed, err := cc.Allowed(); err == nil {
		l.congestionChoice = allowed
	}
	return l
}

// findGrants says what a configuration needs beyond what everybody may do.
func findGrants(c *config.Config, l hostLimits, own []string) []grant {
	found := map[string]*grant{}
	add := func(name, format string, args ...any) *grant {
		if found[name] == nil {
			found[name] = &grant{Name: name, Why: fmt.Sprintf(format, args...)}
		}
		return found[name]
	}
	for _, a := range c.HTTPListen {
		if int(a.Port()) < l.lowestPort {
			add(grantLowPorts, "http_listen has port %d", a.Port())
		}
	}
	for _, a := range c.Dashboard.Listen {
		if int(a.Port()) < l.lowestPort {
			add(grantLowPorts, "the dashboard has port %d", a.Port())
		}
	}
	if keys := keyFiles(c); len(keys) > 0 {
		slices.Sort(keys)
		why := "only root can read the key of checks"
		if len(dashboardFiles(c)) > 0 {
			why = "only root can read the keys"
		}
		add(grantKeys, "%s", why).of = slices.Compact(keys)
	}
	for _, t := range c.Tunnels {
		for _, a := range t.Addresses() {
			if int(a.Port()) < l.lowestPort {
				add(grantLowPorts, "tunnel %s listens on port %d", t.Name, a.Port())
				break
			}
		}
		if t.Transport == config.TransportKernel {
			continue
		}
		for _, leg := range []config.Leg{t.LAN, t.WAN} {
			name := leg.CongestionControl
			switch {
			case name == "brutal":
				add(grantCC, "tunnel %s uses brutal and tells it the rate", t.Name)
			case slices.Contains(own, name):
				g := add(grantLoadCC, "tunnel %s uses %s", t.Name, name)
				if !slices.Contains(g.of, name) {
					g.of = append(g.of, name)
				}
			case name != "" && !slices.Contains(l.congestionChoice, name):
				add(grantNetAdmin, "tunnel %s uses %s, which the kernel restricts", t.Name, name)
			}
			if leg.SendBuffer > l.sendBuffer || leg.ReceiveBuffer > l.receiveBuffer {
				add(grantNetAdmin, "tunnel %s has buffers beyond net.core.wmem_max or rmem_max", t.Name)
			}
		}
	}
	var all []grant
	for _, name := range allGrants {
		if g := found[name]; g != nil {
			all = append(all, *g)
		}
	}
	return all
}

// chosenGrants are what --grant asks for: what the configuration needs, and
// more, or nothing.
func chosenGrants(words []string, needed []grant) ([]grant, error) {
	all := slices.Clone(needed)
	for _, word := range words {
		switch {
		case (word == "none" || word == "auto") && len(words) > 1:
			return nil, remedy.New(fmt.Errorf("--grant %s goes with no other", word), "leave the others out")
		case word == "auto":
		case word == "none":
			return nil, nil
		case !slices.Contains(allGrants, word):
			return nil, remedy.New(fmt.Errorf("--grant: there is no %q", word), "use auto, none, "+strings.Join(allGrants, ", "))
		case slices.ContainsFunc(all, func(g grant) bool { return g.Name == word }):
		default:
			g := grant{Name: word, Why: "asked for by --grant"}
			if word == grantLoadCC {
				g.of = []string{"haul"}
			}
			all = append(all, g)
		}
	}
	// What is in the one is in the other.
	if slices.ContainsFunc(all, func(g grant) bool { return g.Name == grantCC }) {
		all = slices.DeleteFunc(all, func(g grant) bool { return g.Name == grantLoadCC || g.Name == grantNetAdmin })
	}
	return all, nil
}
