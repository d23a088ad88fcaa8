package intercept

import (
	"longhaul/internal/netfilter"
)

// ForwardVerdict is what the rules for forwarded packets do with the connections that a
// tunnel intercepts. The relay dials its targets itself, so these rules do not see them.
type ForwardVerdict struct {
	Tunnel string `json:"tunnel"`
	Family string `json:"family"` // "ipv4", "ipv6"
	netfilter.Verdict
}

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
			all = append(all, ForwardVerdict{t.Name, f.name, v})
		}
	}
	return all, nil
}
