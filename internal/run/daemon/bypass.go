package daemon

import (
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/run/config"
)

// bypass says when new connections are to pass a tunnel with when_down. The methods of nil
// are those of a tunnel without it.
type bypass struct {
	// refuses: never because the pair or every hop is down, or a limit is reached.
	// Connections that pass are not encrypted.
	refuses bool
	now     flow.Bypass
}

// bypasses are those of a configuration. One that was there goes on.
func bypasses(tunnels []config.Tunnel, before map[string]*bypass) map[string]*bypass {
	all := map[string]*bypass{}
	for _, t := range tunnels {
		if t.WhenDown == "" {
			continue
		}
		was, refuses := before[t.Name], t.WhenDown == config.WhenDownRefuse
		switch {
		case was == nil:
			was = &bypass{refuses: refuses}
		case was.refuses != refuses:
			was = &bypass{refuses: refuses, now: flow.Bypass{Total: was.now.Total}}
		}
		all[t.Name] = was
	}
	return all
}

// update reports whether new connections are to pass the relay.
func (b *bypass) update(u *flow.Usability, now time.Time) bool {
	if b == nil || b.refuses {
		return false
	}
	reason := ""
	switch {
	case u.Has(flow.ReasonPairDown):
		reason = flow.BypassPairDown
	case u.Has(flow.ReasonHopsDown, flow.ReasonHopsDrained):
		reason = flow.BypassHopsDown
	}
	if reason != b.now.Reason {
		if b.now.Reason == "" {
			b.now.Total++
		}
		if b.now.Reason, b.now.Since = reason, now; reason == "" {
			b.now.Since = time.Time{}
		}
	}
	return reason != ""
}

// reason is why new connections pass the relay; empty: they do not.
func (b *bypass) reason() string {
	if b == nil {
		return ""
	}
	return b.now.Reason
}

// atLimits reports whether new connections pass a tunnel that takes no more of them.
func (b *bypass) atLimits() bool { return b == nil || !b.refuses }

func (b *bypass) state() *flow.Bypass {
	if b == nil || b.refuses {
		return nil
	}
	now := b.now
	return &now
}

// addBypasses fills in what only the rules of interception know of tunnels.
func (i *interception) addBypasses(tunnels []flow.Tunnel) {
	v := i.view()
	for n := range tunnels {
		t := &tunnels[n]
		if t.Bypass = nil; v.bypass[t.Name] != nil {
			now := *v.bypass[t.Name]
			t.Bypass = &now
		}
	}
	i.addProblems(tunnels)
	i.forward.add(tunnels)
}

// addProblems fills in what this host lacks of what tunnels need.
func (i *interception) addProblems(tunnels []flow.Tunnel) {
	v := i.view()
	if len(v.problems) == 0 {
		return
	}
	for n := range tunnels {
		t := &tunnels[n]
		t.Host = append(t.Host, v.problems[t.Name]...)
	}
}
