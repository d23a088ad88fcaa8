package route

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/ledger"
)

// Setting has longhaul's changes of a prefix's route.
type Setting struct {
	Prefix   netip.Prefix `json:"prefix"`
	Priority uint32       `json:"priority"` // the route's metric
	// Made: the route was added for this, from the one that covered the prefix.
	// Otherwise it existed.
	Made    bool             `json:"made"`
	Metrics map[Metric]*Done `json:"metrics"`
}

// Done is the change of one metric.
type Done struct {
	Set    Value `json:"set"`    // of the last claim
	Former Value `json:"former"` // value before the first change
	// Claims are those in the ledger, the one in force last.
	Claims []ledger.Claim `json:"claims"`
}

// Values returns the set values.
func (s Setting) Values() map[Metric]Value {
	values := map[Metric]Value{}
	for name, done := range s.Metrics {
		values[name] = done.Set
	}
	return values
}

// routeDetail identifies the route of an entry in the ledger.
type routeDetail struct {
	Priority uint32 `json:"priority"`
	Made     bool   `json:"made"`
}

func detailOf(e *ledger.Entry) routeDetail { return ledger.Decode[routeDetail](e.Detail) }

func valueOf(e *ledger.Entry) Value { return ledger.Decode[Value](e.InForce()) }

// key names a metric in the ledger.
func key(netns uint64, prefix netip.Prefix, m Metric) ledger.Key {
	return ledger.Key{Kind: ledger.Route, NetNS: netns, Name: prefix.String(), Part: string(m)}
}

// entriesOf returns the entries of a prefix.
func entriesOf(book *ledger.Book, netns uint64, prefix netip.Prefix) (found []*ledger.Entry) {
	for _, e := range book.Of(ledger.Route, netns) {
		if e.Name == prefix.String() {
			found = append(found, e)
		}
	}
	return found
}

// dropPrefix removes the entries of a prefix.
func dropPrefix(book *ledger.Book, netns uint64, prefix netip.Prefix) {
	book.Drop(func(e *ledger.Entry) bool {
		return e.Kind == ledger.Route && e.NetNS == netns && e.Name == prefix.String()
	})
}

// recordSet records the claim of one metric, whose value is now former.
func (t *Table) recordSet(book *ledger.Book, k ledger.Key, detail routeDetail, want, former Value) {
	e := book.Find(k)
	switch {
	case e == nil:
		e = book.Add(&ledger.Entry{Key: k, Label: k.Name + " " + k.Part, Detail: ledger.Encode(detail)})
		e.Former, e.FormerText = ledger.Encode(former), formerText(Metric(k.Part), former)
		if detail.Made {
			e.FormerText = "no route of its own"
		}
	case !valueOf(e).isNow(Metric(k.Part), former):
		// Another program has changed it since.
		e.Former, e.FormerText, e.Claims = ledger.Encode(former), formerText(Metric(k.Part), former), nil
	}
	claim := ledger.Claim{By: t.By, Since: time.Now(), Value: ledger.Encode(want), Text: want.Text(Metric(k.Part)), Needs: want.Name}
	e.Put(claim)
	e.Pending = ledger.Encode(former)
}

func formerText(m Metric, v Value) string {
	if !v.isSet() {
		return "none"
	}
	return v.Text(m)
}

// inherit gives a new route the claims on the route that it is a copy of. A metric that
// another program has changed there is nobody's.
func inherit(book *ledger.Book, netns uint64, from message, prefix netip.Prefix, detail routeDetail) {
	source, _ := from.destination()
	for _, e := range entriesOf(book, netns, source) {
		name := Metric(e.Part)
		if detailOf(e).Priority != from.priority() || !valueOf(e).isNow(name, from.metric(name)) {
			continue
		}
		k := key(netns, prefix, name)
		copied := book.Add(&ledger.Entry{
			Key: k, Label: k.Name + " " + k.Part, Detail: ledger.Encode(detail),
			Former: e.Former, FormerText: "no route of its own",
		})
		for _, c := range e.Claims {
			if c.Inherited == "" {
				c.Inherited = source.String()
			}
			v := ledger.Decode[Value](c.Value)
			v.RateBps = 0 // the rate of the longer prefix holds
			c.Value = ledger.Encode(v)
			copied.Claims = append(copied.Claims, c)
		}
	}
}

// withInherited also chooses claims that a route has inherited from a chosen claim.
func withInherited(choose func(ledger.Key, ledger.Claim) bool) func(ledger.Key, ledger.Claim) bool {
	return func(k ledger.Key, c ledger.Claim) bool {
		if c.Inherited == "" || choose(k, c) {
			return choose(k, c)
		}
		k.Name = c.Inherited
		return choose(k, c)
	}
}

// isNow reports whether the kernel's value is this one.
func (v Value) isNow(m Metric, now Value) bool {
	v.RateBps = 0
	return v == now || v.isGone(m, now) || now.isSet() && v.Name == now.Name && v.Number == now.Number
}

// isGone reports whether the value is an algorithm that is no longer registered. The
// kernel keeps it in the route, and does not report it.
func (v Value) isGone(m Metric, now Value) bool {
	if m != CongestionControl || v.Name == "" || now.Name != "" {
		return false
	}
	names, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	return err == nil && !slices.Contains(strings.Fields(string(names)), v.Name)
}

// Repair completes changes of this network namespace's routes that were interrupted.
func (t *Table) Repair(book *ledger.Book) error {
	netns, err := ledger.Here()
	if err != nil {
		return err
	}
	done := map[string]bool{}
	for _, e := range slices.Clone(book.Of(ledger.Route, netns)) {
		if e.Pending == nil || done[e.Name] {
			continue
		}
		done[e.Name] = true
		prefix, err := netip.ParsePrefix(e.Name)
		if err != nil {
			return err
		}
		if _, err := t.apply(book, netns, prefix); err != nil {
			return err
		}
	}
	return nil
}

// apply changes the metrics of a prefix's route whose entries are pending from the
// pending values to those in force. It drops entries without claims, and removes a route
// that was made for the last of them.
func (t *Table) apply(book *ledger.Book, netns uint64, prefix netip.Prefix) (deleted bool, err error) {
	entries := entriesOf(book, netns, prefix)
	if len(entries) == 0 {
		return false, nil
	}
	detail := detailOf(entries[0])
	claimed := slices.ContainsFunc(entries, func(e *ledger.Entry) bool {
		return slices.ContainsFunc(e.Claims, func(c ledger.Claim) bool { return c.Inherited == "" })
	})
	m, found, err := findRoute(prefix, detail.Priority)
	if err != nil {
		return false, err
	}
	switch {
	case !found:
		// Another program has deleted the route, or it was never made.
		dropPrefix(book, netns, prefix)
		return false, book.Save()
	case detail.Made && !claimed && m.header.Protocol == protocol:
		if !book.DryRun() {
			if err := change(unix.RTM_DELROUTE, 0, m); err != nil {
				return false, err
			}
		}
		dropPrefix(book, netns, prefix)
		return true, book.Save()
	}
	changed := false
	for _, e := range entries {
		if e.Pending == nil {
			continue
		}
		name, now := Metric(e.Part), m.metric(Metric(e.Part))
		target := valueOf(e)
		target.RateBps = 0
		if target.isGone(name, Value{}) {
			target = Value{} // the kernel refuses an algorithm that is no longer registered
		}
		from := ledger.Decode[Value](e.Pending)
		if from.isNow(name, now) && (now != target || from.isGone(name, now)) {
			changed = true
			if err := m.setMetric(name, target); err != nil {
				return false, err
			}
		}
	}
	if changed && !book.DryRun() {
		if err := change(unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, m); err != nil {
			return false, err
		}
	}
	for _, e := range entries {
		e.Pending = nil
	}
	book.Drop(func(e *ledger.Entry) bool { return slices.Contains(entries, e) && len(e.Claims) == 0 })
	return false, book.Save()
}

// findRoute returns the prefix's own route with a priority.
func findRoute(prefix netip.Prefix, priority uint32) (found message, ok bool, err error) {
	routes, err := dump(familyOf(prefix))
	if err != nil {
		return message{}, false, err
	}
	for _, m := range routes {
		if dst, _ := m.destination(); dst == prefix && m.priority() == priority {
			return m.clone(), true, nil
		}
	}
	return message{}, false, nil
}

// Settings returns longhaul's settings in this network namespace.
func (t *Table) Settings() ([]Setting, error) {
	book, err := ledger.Read(t.Ledger)
	if err != nil {
		return nil, err
	}
	return t.SettingsIn(book)
}

// SettingsIn returns the settings of an open ledger in this network namespace.
func (t *Table) SettingsIn(book *ledger.Book) ([]Setting, error) {
	netns, err := ledger.Here()
	if err != nil {
		return nil, err
	}
	var settings []Setting
	for _, e := range book.Of(ledger.Route, netns) {
		prefix, err := netip.ParsePrefix(e.Name)
		if err != nil || len(e.Claims) == 0 {
			continue // an interrupted undo
		}
		i := slices.IndexFunc(settings, func(s Setting) bool { return s.Prefix == prefix })
		if i < 0 {
			i = len(settings)
			detail := detailOf(e)
			settings = append(settings, Setting{prefix, detail.Priority, detail.Made, map[Metric]*Done{}})
		}
		settings[i].Metrics[Metric(e.Part)] = &Done{valueOf(e), ledger.Decode[Value](e.Former), e.Claims}
	}
	return settings, nil
}
