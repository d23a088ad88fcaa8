//go:build linux

package main

import (
	"slices"

	"longhaul/internal/find/hostcheck"
	"longhaul/internal/run/config"
	"longhaul/internal/run/service"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/ccnames"
)

// hostNeed is a part of [hostcheck.Report] that a configuration needs.
type hostNeed struct {
	feature, part string
	why           string // "tunnel main uses haul"
	// must: the configuration names the part, so that it cannot work without.
	must bool
}

// configNeeds lists the parts that a configuration needs, each once.
func configNeeds(c *config.Config) []hostNeed {
	var all []hostNeed
	add := func(n hostNeed) {
		isSame := func(other hostNeed) bool { return other.feature == n.feature && other.part == n.part }
		if !slices.ContainsFunc(all, isSame) {
			all = append(all, n)
		}
	}
	add(hostNeed{"relay", "splice", "a relay moves data by splice", true})
	for _, t := range c.Tunnels {
		if t.Transport == config.TransportKernel {
			continue
		}
		for _, leg := range []config.Leg{t.LAN, t.WAN} {
			if name := leg.CongestionControl; name != "" {
				add(hostNeed{"cc", ccnames.First(name), "tunnel " + t.Name + " uses " + name, true})
			}
			if leg.UserTimeout > 0 {
				add(hostNeed{"relay", "user timeout", "tunnel " + t.Name + " sets user_timeout", false})
			}
		}
		if t.WAN.CongestionControl == "" && t.WANSide != config.WANNone {
			add(hostNeed{"cc", "bbr", "tunnel " + t.Name + " prefers bbr on the WAN", false})
		}
	}
	return all
}

// configLacks lists what a configuration needs and this machine lacks.
func configLacks(c *config.Config) ([]service.Lack, error) {
	needs := configNeeds(c)
	report, err := hostcheck.Check(hostcheck.Options{Path: hostcheck.Paths()[usualPath], Features: []string{"relay", "cc"},
		Algorithms: c.CongestionControls(), CC: cc.NewHost(ledger.By{})})
	if err != nil {
		return nil, err
	}
	lacks := []service.Lack{}
	for _, n := range needs {
		p, ok := report.Find(n.feature, n.part)
		if !ok || p.State == hostcheck.Yes || p.State == hostcheck.Unknown {
			continue
		}
		lacks = append(lacks, service.Lack{What: n.why + ": " + p.Why, Remedy: p.Remedy, Fatal: n.must && p.State == hostcheck.No})
	}
	return lacks, nil
}

// warnOfLacks prints the lacks with which a configuration still works, and returns all.
func warnOfLacks(env *env, c *config.Config) ([]service.Lack, error) {
	lacks, err := configLacks(c)
	for _, l := range lacks {
		if !l.Fatal {
			writeWarning(env.stderr, l.What, l.Remedy)
		}
	}
	return lacks, err
}
