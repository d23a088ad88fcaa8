package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"longhaul/internal/carry/relay/names"
	"longhaul/internal/words/remedy"
)

// Bounds of hops.
const (
	MaxHops     = 64 // of a tunnel
	MaxWeight   = 1000
	maxPriority = 100
	maxInRow    = 1000
)

// forwards decodes the hops of a tunnel and returns the node of each. A hop is
// an address, or a mapping with the address in `to`. One mapping with `srv` stands
// for the hops that a service has.
func (d *decoder) forwards(n *node) (all []Forward, service string, places []*node) {
	items := n.items
	if n.kind != list {
		items = []*node{n}
	} else if len(items) == 0 {
		d.errorf(n, "add one, or remove the line", "forward is an empty list")
	}
	for _, item := range items {
		if item.lookup("srv") != nil {
			if len(items) > 1 {
				d.errorf(item, "make it the only entry; its records give the hops, their priorities and weights", "srv stands beside other hops")
			}
			d.mapping(item, "a service of forward", into("srv", &service, d.service))
			continue
		}
		f, ok := d.forward(item)
		if !ok {
			continue
		}
		same := func(o Forward) bool { return o.String() == f.String() }
		if slices.ContainsFunc(all, same) {
			d.errorf(item, "remove one; for a greater share write {to: "+f.String()+", weight: 2}", "forward has %s twice", f)
			continue
		}
		all = append(all, f)
		places = append(places, item)
	}
	if len(all) > MaxHops {
		d.errorf(n, "use a name with several addresses, or a second tunnel", "forward has %d hops, and at most %d are allowed", len(all), MaxHops)
	}
	return all, service, places
}

// service decodes the name of a service. It is kept in lower case without a final dot.
func (d *decoder) service(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return "", false
	}
	if err := names.CheckService(s); err != nil {
		d.errorf(n, remedy.Of(err), "%s is not the name of a service: %q", key, s)
		return "", false
	}
	return strings.ToLower(strings.TrimSuffix(s, ".")), true
}

func (d *decoder) forward(n *node) (f Forward, ok bool) {
	address := n
	weight, priority := 1, 1
	before := len(d.errs)
	if n.kind == mapping {
		address = nil
		d.mapping(n, "a hop of forward",
			field{"to", func(n *node) { address = n }},
			into("weight", &weight, d.integer(1, MaxWeight)),
			into("priority", &priority, d.integer(1, maxPriority)),
		)
		if address == nil && n.lookup("to") == nil {
			d.errorf(n, "add where it leads, such as to: relay-b:6000", "the hop has no to")
		}
		if len(d.errs) > before {
			return f, false
		}
	}
	text, ok := d.text(address, "forward")
	if !ok {
		return f, false
	}
	f, bad := parseForward(text)
	if bad != nil {
		d.mistake(address, bad)
		return f, false
	}
	f.Weight, f.Priority = weight, priority
	return f, true
}

// health decodes the `health` mapping.
func (d *decoder) health(n *node, h *Health) {
	if n.kind == scalar && n.text == Off {
		*h = Health{Check: HealthOff, EjectAfter: -1}
		return
	}
	if n.kind == scalar {
		d.errorf(n, "write off, or a mapping such as {check: connect, interval: 2s}", "health cannot be %q", n.text)
		return
	}
	atOnce := time.Duration(-1)
	d.mapping(n, "health",
		into("check", &h.Check, oneOf(d, HealthOff, HealthConnect, HealthEndToEnd)),
		into("interval", &h.Interval, d.duration(100*time.Millisecond, time.Hour, nil)),
		into("timeout", &h.Timeout, d.duration(10*time.Millisecond, time.Minute, nil)),
		into("rise", &h.Rise, d.integer(1, maxInRow)),
		into("fall", &h.Fall, d.integer(1, maxInRow)),
		into("eject_after", &h.EjectAfter, d.offOr(-1, d.integer(1, maxInRow))),
		into("eject_for", &h.EjectFor, d.duration(100*time.Millisecond, 24*time.Hour, nil)),
		into("slow_return", &h.SlowReturn, d.duration(time.Second, time.Hour, &atOnce)),
	)
}

// checkRise finds rise and fall of a health mapping without a check. The relay watches the far relays of
// a pair without one; there checkPair finds them.
func (d *decoder) checkRise(n *node, h Health) {
	if h.Check != HealthOff {
		return
	}
	for _, key := range []string{"rise", "fall"} {
		if v := n.lookup("health").lookup(key); v != nil {
			d.errorf(v, fmt.Sprintf("add check: connect, or remove %s", key), "%s has no effect without a check", key)
		}
	}
}

// checkHealth finds an end-to-end check without a key or a relay.
func (d *decoder) checkHealth(n *node, s Settings) {
	if s.Health.Check != HealthEndToEnd || s.Check.Enabled && s.Check.Next == CheckNextRelay && s.Check.KeyFile != "" {
		return
	}
	at := n // both may come from defaults
	if v := n.lookup("health"); v != nil {
		at = v
	}
	d.errorf(at, "add check: {key_file: /etc/longhaul/check.key, next: relay}, or use check: connect",
		"an end-to-end health check needs a check with next: relay and a key_file")
}

// offOr decodes "off" as a given value, and everything else with read.
func (d *decoder) offOr(off int, read func(*node, string) (int, bool)) func(*node, string) (int, bool) {
	return func(n *node, key string) (int, bool) {
		if n.kind == scalar && n.text == Off {
			return off, true
		}
		return read(n, key)
	}
}
