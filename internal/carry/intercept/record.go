package intercept

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/sys/netfilter"
	"longhaul/internal/words/sorted"
)

func (h *Host) key(relay string) (ledger.Key, error) {
	here, err := ledger.Here()
	return ledger.Key{Kind: ledger.Intercept, NetNS: here, Name: relay}, err
}

// HasRecord reports whether a relay of that name intercepts here, or was killed while it did.
func (h *Host) HasRecord(relay string) (bool, error) {
	key, err := h.key(relay)
	if err != nil {
		return false, err
	}
	book, err := ledger.Read(h.Ledger)
	if err != nil {
		return false, err
	}
	return book.Find(key) != nil, nil
}

// Set has the host intercept exactly what o says, in place of what the relay of that
// name intercepted. The rules change in one atomic step: call it again with another
// Tunnel.Paused to take a tunnel out, or back. It completes or replaces what an
// interrupted Set left. was is what [Host.Missing] has found of the rules in force, so that those which
// stay need not be set again; the zero value: nothing is known.
func (h *Host) Set(o Options, was *Standing) error {
	if o.IsEmpty() {
		return h.Clear(o.Relay)
	}
	for _, t := range o.Tunnels {
		for _, f := range families {
			if f.in(t.To) && (f.port(t) == 0 || t.Mirror && f.holdPort(t) == 0) {
				return fmt.Errorf("tunnel %s has no listener for %s", t.Name, f.name)
			}
		}
	}
	if h.DryRun {
		return nil
	}
	if err := needPrivilege(); err != nil {
		return err
	}
	book, err := ledger.Open(h.Ledger, false)
	if err != nil {
		return err
	}
	defer book.Close()
	key, err := h.key(o.Relay)
	if err != nil {
		return err
	}
	restore := book.Snapshot()
	e := book.Find(key)
	if e == nil {
		e = book.Add(&ledger.Entry{Key: key, Label: "relay " + o.Relay, FormerText: "none"})
	}
	before := ledger.Decode[[]delivery](e.Detail)
	e.Put(ledger.Claim{By: h.By, Since: time.Now(), Value: ledger.Encode(o), Text: o.summary()})
	wanted := deliveries(o)
	e.Pending = []byte("null")
	e.Detail = ledger.Encode(union(before, wanted))
	if err := book.Save(); err != nil {
		return err
	}
	if err := h.install(o, wanted, was); err != nil {
		if len(before) == 0 {
			err = errors.Join(err, h.remove(book, e))
			restore()
			return errors.Join(err, book.Save())
		}
		return err // the next Set or Clear completes the change
	}
	e.Detail = ledger.Encode(wanted)
	if err := h.removeUnused(book, before); err != nil {
		return err
	}
	e.Pending = nil
	return book.Save()
}

func (h *Host) install(o Options, wanted []delivery, was *Standing) error {
	for _, d := range wanted {
		if err := d.add(); err != nil {
			return err
		}
	}
	r := newRuleset(o)
	if was.whole && was.want.table == r.table && r.update(was) == nil {
		return nil
	}
	if err := r.replace(); err != nil {
		return fmt.Errorf("set the nftables rules of %s: %w", r.table, lacks(err))
	}
	return nil
}

type neededModule struct{ name, option string }

// neededModules are the kernel's modules that the rules need, and their options in its
// configuration.
var neededModules = []neededModule{
	{"nf_tables", "CONFIG_NF_TABLES_INET"}, {"nft_tproxy", "CONFIG_NFT_TPROXY"}, {"nft_socket", "CONFIG_NFT_SOCKET"},
	{"nft_fib_inet", "CONFIG_NFT_FIB_INET"}, {"nft_ct", "CONFIG_NFT_CT"},
}

// lacks names the module without which the kernel refused the rules.
func lacks(err error) error {
	// Linux 6.1 and 5.10 have what named counters need in modules of their own.
	older := []neededModule{{"nft_counter", "CONFIG_NFT_COUNTER"}, {"nft_objref", "CONFIG_NFT_OBJREF"}}
	m, found := missingModule(slices.Concat(neededModules, older))
	if !found {
		m = neededModule{"nft_tproxy", "CONFIG_NFT_TPROXY"}
	}
	return kernel.LacksModule(err, feature, m.name, m.option)
}

// missingModule returns the first of the modules that the kernel cannot load.
func missingModule(modules []neededModule) (m neededModule, found bool) {
	for _, m := range modules {
		if state := (kernel.Modules{}).State(m.name); state == kernel.ModuleMissing || state == kernel.ModuleBarred {
			return m, true
		}
	}
	return m, false
}

const feature = "taking connections out of the routed path"

func needPrivilege() error {
	missing, err := kernel.Missing(kernel.NetAdmin)
	if err == nil && len(missing) > 0 {
		err = &kernel.ErrUnsupported{Feature: feature, Needs: kernel.List(missing) + ": run it as root, or grant it"}
	}
	return err
}

func union(a, b []delivery) []delivery {
	all := slices.Clone(a)
	for _, d := range b {
		if !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// removeUnused removes the deliveries that no relay of this network namespace needs.
// Relays share them.
func (h *Host) removeUnused(book *ledger.Book, all []delivery) error {
	here, err := ledger.Here()
	if err != nil {
		return err
	}
	for _, d := range all {
		needed := slices.ContainsFunc(book.Of(ledger.Intercept, here), func(e *ledger.Entry) bool {
			return slices.Contains(ledger.Decode[[]delivery](e.Detail), d)
		})
		if !needed {
			if err := d.remove(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Clear takes back what the relay of that name set. It is no error if there is nothing.
func (h *Host) Clear(relay string) error {
	key, err := h.key(relay)
	if err != nil {
		return err
	}
	_, err = h.Undo(func(k ledger.Key, _ ledger.Claim) bool { return k == key })
	return err
}

// Undone is what [Host.Undo] took back.
type Undone struct {
	Relay string
	Taken []ledger.Claim
}

// Undo takes back the interception of the relays that are chosen, in this network
// namespace.
func (h *Host) Undo(choose func(ledger.Key, ledger.Claim) bool) ([]Undone, error) {
	if h.IsClean() {
		return nil, nil
	}
	book, err := ledger.Open(h.Ledger, h.DryRun)
	if err != nil {
		return nil, err
	}
	defer book.Close()
	return h.UndoIn(book, choose)
}

// IsClean reports whether there is nothing to undo in this network namespace, for which
// no privilege is needed.
func (h *Host) IsClean() bool {
	book, err := ledger.Read(h.Ledger)
	if err != nil {
		return false
	}
	here, err := ledger.Here()
	if err != nil || len(book.Of(ledger.Intercept, here)) > 0 {
		return false
	}
	names, err := tables()
	return err == nil && len(names) == 0
}

// UndoIn is [Host.Undo] in an open ledger.
func (h *Host) UndoIn(book *ledger.Book, choose func(ledger.Key, ledger.Claim) bool) (undone []Undone, err error) {
	here, err := ledger.Here()
	if err != nil {
		return nil, err
	}
	if err := h.AdoptIn(book); err != nil {
		return nil, err
	}
	if len(book.Of(ledger.Intercept, here)) == 0 {
		return nil, nil
	}
	if err := needPrivilege(); err != nil {
		return nil, err
	}
	for _, e := range slices.Clone(book.Of(ledger.Intercept, here)) {
		taken, _ := e.Take(choose)
		if len(taken) == 0 {
			continue
		}
		undone = append(undone, Undone{e.Name, taken})
		// A relay has one interception: a claim below is of an ended process.
		if err := h.remove(book, e); err != nil {
			return undone, err
		}
	}
	return undone, book.Save()
}

// remove takes away what an entry stands for, and the entry.
func (h *Host) remove(book *ledger.Book, e *ledger.Entry) error {
	if book.DryRun() {
		book.Drop(func(other *ledger.Entry) bool { return other == e })
		return nil
	}
	if err := deleteTable(tablePrefix + e.Name); err != nil {
		return fmt.Errorf("delete the nftables table %s%s: %w", tablePrefix, e.Name, err)
	}
	book.Drop(func(other *ledger.Entry) bool { return other == e })
	return h.removeUnused(book, ledger.Decode[[]delivery](e.Detail))
}

// AdoptIn gives tables of this network namespace without a record an entry of an unknown
// owner.
func (h *Host) AdoptIn(book *ledger.Book) error {
	names, err := tables()
	if err != nil {
		return err
	}
	for _, name := range names {
		relay := strings.TrimPrefix(name, tablePrefix)
		key, err := h.key(relay)
		if err != nil {
			return err
		}
		if book.Find(key) != nil {
			continue
		}
		found, err := unrecorded(name)
		if err != nil {
			return err
		}
		e := book.Add(&ledger.Entry{Key: key, Label: "relay " + relay, FormerText: "none", Detail: ledger.Encode(found), Adopted: true})
		e.Put(ledger.Claim{By: ledger.By{Owner: ledger.Unknown, Means: ledger.Relay}, Text: "without a record"})
	}
	return nil
}

// tables returns the names of longhaul's tables. Without privilege it sees none.
func tables() (names []string, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if errors.Is(err, unix.EPERM) || netfilter.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables: %w", err)
	}
	for _, t := range all {
		if strings.HasPrefix(t.Name, tablePrefix) {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// counters returns the counters of a table by name; none if there is no such table.
func counters(table string) (map[string]expr.Counter, error) {
	names, err := tables()
	if err != nil || !slices.Contains(names, table) {
		return nil, err
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	objects, err := conn.GetNamedObjects(&nftables.Table{Family: nftables.TableFamilyINet, Name: table})
	if err != nil {
		return nil, fmt.Errorf("read the counters of %s: %w", table, err)
	}
	found := map[string]expr.Counter{}
	for _, o := range objects {
		if named, ok := o.(*nftables.NamedObj); ok {
			if c, ok := named.Obj.(*expr.Counter); ok {
				found[named.Name] = *c
			}
		}
	}
	return found, nil
}

// Show returns what stands in this network namespace, by relay.
func (h *Host) Show() ([]Status, error) {
	if err := needPrivilege(); err != nil {
		return nil, err
	}
	book, err := ledger.Read(h.Ledger)
	if err != nil {
		return nil, err
	}
	if err := h.AdoptIn(book); err != nil {
		return nil, err
	}
	here, err := ledger.Here()
	if err != nil {
		return nil, err
	}
	var all []Status
	for _, e := range book.Of(ledger.Intercept, here) {
		s, err := statusOf(e)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	sorted.By(all, func(a, b Status) int { return strings.Compare(a.Relay, b.Relay) })
	return all, nil
}

func statusOf(e *ledger.Entry) (Status, error) {
	o := ledger.Decode[Options](e.InForce())
	s := Status{Relay: e.Name, Mark: o.mark(), Table: o.table(), Claims: e.Claims}
	counts, err := counters(tablePrefix + e.Name)
	if err != nil {
		return s, err
	}
	for _, t := range o.Tunnels {
		s.Tunnels = append(s.Tunnels, TunnelStatus{
			t, counts[counterName(t.Name)].Packets, counts[bypassCounter(t.Name)].Packets, counts[signedCounter(t.Name)].Packets,
		})
	}
	for _, d := range o.Dialers {
		s.Dialers = append(s.Dialers, DialerStatus{d, counts[counterName(d.Name)].Packets})
	}
	if s.Missing, err = missingOf(e, o); err != nil {
		return s, err
	}
	if len(s.Missing) > 0 {
		s.Problem = Describe(s.Missing)
	}
	switch {
	case e.Pending != nil:
		s.Problem = "interrupted: the next start of the relay completes it, longhaul intercept clear takes it back"
	case e.Adopted:
		s.Problem = "without a record: longhaul intercept clear " + s.Relay + " --yes takes it back"
	}
	return s, nil
}

// missingOf returns the parts of what Set set that another program has removed.
func missingOf(e *ledger.Entry, o Options) (all []Missing, err error) {
	table, err := netfilter.ReadTable(tablePrefix + e.Name)
	if err != nil {
		return nil, fmt.Errorf("read the nftables table %s%s: %w", tablePrefix, e.Name, err)
	}
	if !e.Adopted { // else nobody knows what the table should have
		if missing := newRuleset(o).missing(table, &Standing{}); missing != nil {
			all = append(all, *missing)
		}
	}
	routing, err := missingDeliveries(ledger.Decode[[]delivery](e.Detail))
	return append(all, routing...), err
}

// HasEnded reports whether the relay has ended, so that new connections pass directly.
func (s Status) HasEnded() bool {
	return !slices.ContainsFunc(s.Claims, func(c ledger.Claim) bool { return !c.Ended() })
}

func (o Options) summary() string {
	var names []string
	for _, t := range o.Tunnels {
		name := t.Name
		if t.Paused {
			name += " (paused)"
		}
		names = append(names, name)
	}
	for _, d := range o.Dialers {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}
