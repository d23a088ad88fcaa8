package service

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"longhaul/internal/run/config"
	"longhaul/internal/words/ccnames"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
	"longhaul/packaging"
)

// The drop-ins of packaging/longhaul.service.d.
const (
	LowPorts    = "low-ports"
	NetAdmin    = "net-admin"
	LoadCC      = "load-congestion-control"
	UseCC       = "congestion-control"
	Intercept   = "interception"
	Mirror      = "interception-mirror"
	Credentials = "credentials"
)

// DropInNames lists the names of all drop-ins.
func DropInNames() []string {
	return []string{LowPorts, NetAdmin, LoadCC, UseCC, Intercept, Mirror, Credentials}
}

// DropIn is a drop-in of the unit, and the reason for it.
type DropIn struct {
	Name string `json:"name"`
	Why  string `json:"why"`
	// arguments are the algorithms to load or the credentials to pass.
	arguments []string
}

// path returns the drop-in's file.
func (d DropIn) path() string { return dropInPath(d.Name) }

func dropInPath(name string) string { return dropInDir + "/" + name + ".conf" }

// text returns the content of the drop-in's file, for a program at a path.
func (d DropIn) text(program string) ([]byte, error) {
	text, err := packaging.File(UnitName+".d/"+d.Name+".conf", program)
	if err != nil || len(d.arguments) == 0 {
		return text, err
	}
	switch d.Name {
	case LoadCC:
		return bytes.Replace(text, []byte("cc load haul"), []byte("cc load "+strings.Join(d.arguments, " ")), 1), nil
	case Credentials:
		var lines []string
		for _, name := range d.arguments {
			lines = append(lines, "LoadCredential="+name+":/etc/longhaul/"+name)
		}
		return bytes.Replace(text, []byte("LoadCredential=check.key:/etc/longhaul/check.key"), []byte(strings.Join(lines, "\n")), 1), nil
	}
	return text, nil
}

// limits are the kernel's bounds for a process without privilege.
type limits struct {
	lowestPort         int
	sendBuffer         units.Size
	receiveBuffer      units.Size
	congestionControls []string // allowed ones
}

// defaultLimits are the limits of an unconfigured kernel.
func defaultLimits() limits {
	return limits{lowestPort: 1024, sendBuffer: 212992, receiveBuffer: 212992, congestionControls: []string{"reno", "cubic", "bbr", "dctcp"}}
}

// readLimits reads the sysctls of this machine. An unreadable bound has its default,
// and so have the allowed congestion controls if there are none.
func readLimits(allowedCC []string) limits {
	l := defaultLimits()
	number := func(sysctl string, fallback int) int {
		b, err := os.ReadFile("/proc/sys/net/" + sysctl)
		if err != nil {
			return fallback
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return fallback
		}
		return n
	}
	l.lowestPort = number("ipv4/ip_unprivileged_port_start", l.lowestPort)
	l.sendBuffer = units.Size(number("core/wmem_max", int(l.sendBuffer)))
	l.receiveBuffer = units.Size(number("core/rmem_max", int(l.receiveBuffer)))
	if len(allowedCC) > 0 {
		l.congestionControls = allowedCC
	}
	return l
}

// neededDropIns lists the drop-ins that a configuration needs, in the order of
// [DropInNames]. ownCC are the congestion controls that longhaul can load.
func neededDropIns(c *config.Config, l limits, ownCC []string) []DropIn {
	found := map[string]*DropIn{}
	add := func(name, format string, args ...any) *DropIn {
		if found[name] == nil {
			found[name] = &DropIn{Name: name, Why: fmt.Sprintf(format, args...)}
		}
		return found[name]
	}
	for _, a := range c.HTTPListen {
		if int(a.Port()) < l.lowestPort {
			add(LowPorts, "http_listen has port %d", a.Port())
		}
	}
	for _, a := range c.HealthListen {
		if int(a.Port()) < l.lowestPort {
			add(LowPorts, "health_listen has port %d", a.Port())
		}
	}
	for _, a := range c.Dashboard.Listen {
		if int(a.Port()) < l.lowestPort {
			add(LowPorts, "the dashboard has port %d", a.Port())
		}
	}
	if names := credentials(c); len(names) > 0 {
		slices.Sort(names)
		why := "only root can read the key of checks"
		if len(dashboardCredentials(c))+len(webCredentials(c))+len(shipCredentials(c)) > 0 {
			why = "only root can read the keys"
		}
		add(Credentials, "%s", why).arguments = slices.Compact(names)
	}
	for _, t := range c.Tunnels {
		for _, a := range t.Addresses() {
			if int(a.Port()) < l.lowestPort {
				add(LowPorts, "tunnel %s listens on port %d", t.Name, a.Port())
				break
			}
		}
		if t.Intercept.Enabled() {
			add(Intercept, "tunnel %s intercepts connections", t.Name)
		} else if t.Source == config.SourceClient {
			add(Intercept, "tunnel %s dials from its clients' addresses", t.Name)
		}
		if t.Refuse == config.RefuseMirror {
			add(Mirror, "tunnel %s has refuse: mirror", t.Name)
		}
		if t.Transport == config.TransportKernel {
			continue
		}
		for _, leg := range []config.Leg{t.LAN, t.WAN} {
			name := leg.CongestionControl
			switch {
			case ccnames.First(name) == "brutal":
				add(UseCC, "tunnel %s sets a rate for %s", t.Name, name)
			case slices.Contains(ownCC, name):
				d := add(LoadCC, "tunnel %s uses %s", t.Name, name)
				if !slices.Contains(d.arguments, name) {
					d.arguments = append(d.arguments, name)
				}
			case name != "" && !slices.Contains(l.congestionControls, name):
				add(NetAdmin, "tunnel %s uses %s, which the kernel restricts", t.Name, name)
			}
			if leg.SendBuffer > l.sendBuffer || leg.ReceiveBuffer > l.receiveBuffer {
				add(NetAdmin, "tunnel %s has buffers beyond net.core.wmem_max or rmem_max", t.Name)
			}
		}
	}
	var all []DropIn
	for _, name := range DropInNames() {
		if d := found[name]; d != nil {
			all = append(all, *d)
		}
	}
	return all
}

// CheckDropIns checks a choice of drop-ins: "none", "auto", or names to add to the
// configuration's drop-ins. The error has a remedy.
func CheckDropIns(words []string) error {
	for _, word := range words {
		switch {
		case word == "none" || word == "auto":
			if len(words) > 1 {
				return remedy.New(fmt.Errorf("--grant %s goes with no other", word), "leave the others out")
			}
		case !slices.Contains(DropInNames(), word):
			return remedy.New(fmt.Errorf("--grant: unknown drop-in %q", word),
				"use auto, none, "+strings.Join(DropInNames(), ", "))
		}
	}
	return nil
}

// chooseDropIns applies a valid choice to the needed drop-ins.
func chooseDropIns(words []string, needed []DropIn) ([]DropIn, error) {
	if err := CheckDropIns(words); err != nil {
		return nil, err
	}
	if slices.Contains(words, "none") {
		return nil, nil
	}
	all := slices.Clone(needed)
	has := func(name string) bool {
		return slices.ContainsFunc(all, func(d DropIn) bool { return d.Name == name })
	}
	for _, word := range words {
		if word == "auto" || has(word) {
			continue
		}
		d := DropIn{Name: word, Why: "asked for by --grant"}
		if word == LoadCC {
			d.arguments = []string{"haul"}
		}
		all = append(all, d)
	}
	if has(UseCC) { // it includes the other two
		all = slices.DeleteFunc(all, func(d DropIn) bool { return d.Name == LoadCC || d.Name == NetAdmin })
	}
	return all, nil
}

// loadedCC lists the congestion controls that the service will load with these
// drop-ins.
func loadedCC(dropIns []DropIn, c *config.Config) (names []string) {
	for _, d := range dropIns {
		switch d.Name {
		case LoadCC:
			names = append(names, d.arguments...)
		case UseCC:
			names = append(names, c.CongestionControls()...)
		}
	}
	return names
}
