package config

import (
	"fmt"
	"net/netip"

	"longhaul/internal/words/portrange"
)

// Original has a far tunnel dial the address that the client dialed at the near relay, in
// place of a fixed target, and restricts it. The zero value means that the tunnel has
// targets of its own.
type Original struct {
	From  []netip.Prefix    // clients; empty: all
	To    []netip.Prefix    // targets
	Ports []portrange.Range // of the targets; empty: all
	// LocalTargets lets flows reach the far relay's own host.
	LocalTargets bool `json:",omitzero"`
}

// Enabled reports whether the tunnel dials what its clients dialed.
func (o Original) Enabled() bool { return len(o.To) > 0 }

// original decodes `original`.
func (d *decoder) original(n *node, o *Original) {
	before := len(d.errs)
	d.mapping(n, "original",
		into("from", &o.From, d.distinctPrefixes),
		into("to", &o.To, d.distinctPrefixes),
		into("ports", &o.Ports, d.distinctPorts),
		into("local_targets", &o.LocalTargets, d.boolean),
	)
	if n.kind != mapping {
		return
	}
	if n.lookup("to") == nil {
		d.errorf(n, "add the networks that near relays may reach, such as to: 10.20.20.0/24", "original has no to")
	}
	if len(d.errs) == before {
		d.checkFamilies(n, o.From, o.To)
	}
}

// checkOriginal finds settings that do not go with `original`.
func (d *decoder) checkOriginal(n *node, t *Tunnel) {
	at := n.lookup("original")
	if at == nil {
		return
	}
	if !t.PairFrom.Paired() {
		d.errorf(at, "add pair_from with the near relay's name, or write intercept in place of listen and original",
			"original has no effect without pair_from")
		return
	}
	if n.lookup("forward") != nil {
		d.errorf(at, "remove one", "a tunnel cannot have forward and original")
		return
	}
	d.checkOriginalHop(n, t, "original")
	if t.Source == "" {
		t.Source = SourceClient
	}
	if t.Source == SourceClient && len(t.Original.From) == 0 {
		d.errorf(at, "add from with the clients' networks, or write source: relay",
			"original has no from: with source: client a near relay could dial in anybody's name")
	}
}

// warnLocalTargets warns of a tunnel that may dial its own host from addresses of clients.
func (d *decoder) warnLocalTargets(n *node, t *Tunnel) {
	for _, key := range []string{"original", "intercept"} {
		if v := n.lookup(key).lookup("local_targets"); v != nil && v.text == "true" && t.Source == SourceClient {
			d.warnings = append(d.warnings, &Error{v.at,
				fmt.Sprintf("the tunnel %s has local_targets and source: client: this host's answers to a client's address leave by the route to the client, past the relay", t.Name),
				"write source: relay"})
		}
	}
}

// checkOriginalHop finds settings that need a common hop, and resets those that come from
// defaults.
func (d *decoder) checkOriginalHop(n *node, t *Tunnel, key string) {
	const everyFlow = "without forward, every flow leads to the address that its client dialed"
	for _, setting := range []string{"health", "balance"} {
		d.clash(n, setting, "remove "+setting+"; "+everyFlow, "%s has no effect with %s and without forward", setting, key)
	}
	t.Health, t.Balance = DefaultSettings().Health, BalanceOrdered
}
