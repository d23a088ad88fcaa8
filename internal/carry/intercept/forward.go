package intercept

import (
	"fmt"

	"longhaul/internal/sys/netfilter"
	"longhaul/internal/words/remedy"
)

// ForwardVerdict is what the rules for forwarded packets do with the connections that a
// tunnel intercepts. The relay dials its targets itself, so these rules do not see them.
type ForwardVerdict struct {
	Tunnel string `json:"tunnel"`
	Family string `json:"family"` // "ipv4", "ipv6"
	// Meant: the tunnel is to take connections that the rules reject.
	Meant bool `json:"past_forward_rules,omitempty"`
	netfilter.Verdict
}

// Rejects reports whether the rules reject connections that the tunnel takes.
func (v ForwardVerdict) Rejects() bool {
	return v.Outcome == netfilter.PartlyRejected || v.Outcome == netfilter.Rejected
}

// Problem returns what an operator should know of a verdict, with its remedy; nil if the
// rules accept the tunnel's connections, or that is meant.
func (v ForwardVerdict) Problem() error {
	if v.Meant || v.Outcome == netfilter.Accepted {
		return nil
	}
	problem := fmt.Errorf("tunnel %s takes %s connections past this host's forward rules: %s", v.Tunnel, familyWords[v.Family], v.Verdict)
	switch {
	case v.Rejects():
		return remedy.New(problem, fmt.Sprintf("narrow from, to or ports of its intercept, or write past_forward_rules: true there; %s shows the rule", v.Show))
	case v.Show != "":
		return remedy.New(problem, v.Show+" shows the rule")
	}
	return problem
}

var familyWords = map[string]string{"ipv4": "IPv4", "ipv6": "IPv6"}

// ForwardRules evaluates the rules of the forward hook for each tunnel and each family
// that it has targets of. Nothing is changed. The interfaces must exist.
func (h *Host) ForwardRules(o Options) (all []ForwardVerdict, err error) {
	if len(o.Tunnels) == 0 {
		return nil, nil
	}
	rules, err := foreignRules()
	if err != nil {
		return nil, err
	}
	for _, t := range o.Tunnels {
		for _, f := range families {
			if !f.in(t.To) {
				continue
			}
			v, err := rules.Forward(f.number, netfilter.Flows{Interface: t.Interface, From: t.From, To: t.To, Ports: t.Ports})
			if err != nil {
				return nil, err
			}
			all = append(all, ForwardVerdict{t.Name, f.name, t.PastForwardRules, v})
		}
	}
	return all, nil
}
