// Package hostchanges lists longhaul's changes of this host, with their owners, and
// takes claims on them back.
//
// It puts [destination], [mss] and [intercept] together, in all network namespaces that
// it finds.
package hostchanges

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"longhaul/internal/carry/intercept"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/tune/destination"
	"longhaul/internal/tune/mss"
	"longhaul/internal/words/sorted"
)

// Host is this machine, in the calling thread's network namespace.
type Host struct {
	Destinations *destination.Host
	MSS          *mss.Host
	Intercept    *intercept.Host
}

// NewHost returns this machine. by is who lists or takes back.
func NewHost(by ledger.By) *Host {
	return &Host{destination.NewHost(by), mss.NewHost(by), intercept.NewHost(by)}
}

// DryRun makes the host only say what would change.
func (h *Host) DryRun() {
	h.Destinations.DryRun()
	h.MSS.DryRun = true
	h.Intercept.DryRun = true
}

func (h *Host) open() (*ledger.Book, error) { return ledger.Open(h.MSS.Ledger, h.MSS.DryRun) }

// Change is a thing that longhaul has changed.
type Change struct {
	Kind ledger.Kind `json:"kind"`
	What string      `json:"what"`
	// NetNS describes the network namespace; empty for this one and for things of the
	// whole machine.
	NetNS   string `json:"netns,omitempty"`
	Deleted bool   `json:"namespace_deleted,omitempty"`
	Value   string `json:"value"`
	Former  string `json:"former,omitempty"`
	// Interrupted: a command ended before its change was complete. The next command
	// completes it.
	Interrupted bool `json:"interrupted,omitempty"`
	// Claims have the one in force last.
	Claims []ledger.Claim `json:"claims"`
	UsedBy []string       `json:"used_by,omitempty"`

	key ledger.Key
}

// Key names the changed thing.
func (c Change) Key() ledger.Key { return c.key }

// Selection chooses claims.
type Selection struct {
	Choose func(ledger.Key, ledger.Claim) bool
	// Everywhere includes other network namespaces.
	Everywhere bool
}

// List returns the changes with a chosen claim. Without privilege it leaves out
// changes that no owner has recorded.
func (h *Host) List(s Selection) ([]Change, error) {
	book, err := ledger.Read(h.MSS.Ledger)
	if err != nil {
		return nil, err
	}
	h.adopt(book)
	here, err := ledger.Here()
	if err != nil {
		return nil, err
	}
	others, complete := h.others(book, here)
	defer closeAll(others)
	sockets, _ := cc.SocketCounts() // unknown counts are left out
	var changes []Change
	for _, e := range book.Entries {
		chosen := slices.ContainsFunc(e.Claims, func(c ledger.Claim) bool { return s.Choose(e.Key, c) })
		elsewhere := e.NetNS != 0 && e.NetNS != here
		if !chosen && !(s.Everywhere && len(e.Claims) == 0) || elsewhere && !s.Everywhere {
			continue
		}
		c := Change{
			Kind: e.Kind, What: e.Label, Former: e.FormerText, Interrupted: e.Pending != nil,
			Claims: e.Claims, key: e.Key,
		}
		if n := len(e.Claims); n > 0 {
			c.Value = e.Claims[n-1].Text
		}
		if ns, ok := others[e.NetNS]; elsewhere && ok {
			c.NetNS = ns.name
		} else if elsewhere {
			c.NetNS, c.Deleted = fmt.Sprint("number ", e.NetNS), complete
		}
		if e.Kind == ledger.Algorithm {
			c.UsedBy = usersOf(book, e.Name)
			if n := sockets[e.Name]; n > 0 {
				c.UsedBy = append(c.UsedBy, fmt.Sprintf("connections here: %d", n))
			}
			if len(e.Claims) == 0 {
				c.Value = "loaded"
			}
		}
		changes = append(changes, c)
	}
	sorted.By(changes, func(a, b Change) int {
		return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind)
	})
	return changes, nil
}

// kinds is the order of lists.
var kinds = []ledger.Kind{ledger.Algorithm, ledger.Default, ledger.Route, ledger.MSS, ledger.Intercept}

// usersOf describes the claims that keep an algorithm loaded, without those on the
// algorithm itself.
func usersOf(book *ledger.Book, algorithm string) (texts []string) {
	for _, u := range book.Users(algorithm) {
		switch u.Entry.Kind {
		case ledger.Default:
			texts = append(texts, fmt.Sprintf("default (%s)", u.Claim.Owner))
		case ledger.Route:
			texts = append(texts, fmt.Sprintf("route %s (%s)", u.Entry.Name, u.Claim.Owner))
		}
	}
	return texts
}

// adopt adds what the kernel has without a record. Without privilege it cannot look.
func (h *Host) adopt(book *ledger.Book) {
	_ = h.Destinations.CC.AdoptIn(book)
	_ = h.MSS.AdoptIn(book)
	_ = h.Intercept.AdoptIn(book)
}

// others finds the network namespaces of entries and of pinned rules.
func (h *Host) others(book *ledger.Book, here uint64) (found map[uint64]namespace, complete bool) {
	wanted, _ := h.MSS.Namespaces()
	for _, e := range book.Entries {
		wanted = append(wanted, e.NetNS)
	}
	wanted = slices.DeleteFunc(wanted, func(c uint64) bool { return c == 0 || c == here })
	if len(wanted) == 0 {
		return nil, true
	}
	return namespaces(wanted)
}

func closeAll(all map[uint64]namespace) {
	for _, ns := range all {
		ns.file.Close()
	}
}

// Outcome is the outcome of [Host.Undo].
type Outcome struct {
	Places     []Place
	Algorithms []cc.Undone
	// Forgotten are changes of network namespaces that are deleted.
	Forgotten []string
	// Unreachable are changes of namespaces that this process could not find.
	Unreachable []string
	// Unseen is why this process did not look for programs in the kernel.
	Unseen error
}

// Place has the outcome in one network namespace.
type Place struct {
	NetNS string // empty for the calling thread's
	destination.Undone
	MSS       []mss.Undone
	Intercept []intercept.Undone
}

// Undo takes back the chosen claims. A thing gets the value of the last claim left, or
// the one from before longhaul. Algorithms that no claim needs are unloaded.
func (h *Host) Undo(ctx context.Context, s Selection) (o Outcome, err error) {
	if h.nothing() {
		return o, nil
	}
	book, err := h.open()
	if err != nil {
		return o, err
	}
	defer book.Close()
	here, err := ledger.Here()
	if err != nil {
		return o, err
	}
	others, complete := h.others(book, here)
	defer closeAll(others)
	o.Unseen = h.blind(book)
	if complete {
		if err := h.forgetDeleted(ctx, book, here, others, &o); err != nil {
			return o, err
		}
	}
	var released []string
	place, some, err := h.undoHere(ctx, book, s.Choose)
	released = append(released, some...)
	o.add(place)
	if err != nil {
		return o, err
	}
	if s.Everywhere {
		some, err := h.undoElsewhere(ctx, book, here, others, s, &o)
		released = append(released, some...)
		if err != nil {
			return o, err
		}
	}
	if o.Unseen != nil {
		return o, nil
	}
	o.Algorithms, err = h.Destinations.CC.UndoIn(ctx, book, released, s.Choose)
	if err != nil {
		err = &destination.AlgorithmError{Err: err}
	}
	return o, err
}

// nothing reports whether this host has no change of longhaul's, so that undo needs no
// privilege.
func (h *Host) nothing() bool {
	book, err := ledger.Read(h.MSS.Ledger)
	if err != nil || len(book.Entries) > 0 {
		return false
	}
	names, err := h.Destinations.CC.LoadedNames()
	if err != nil || len(names) > 0 {
		return false
	}
	ids, err := h.MSS.Namespaces()
	return err == nil && len(ids) == 0 && h.Intercept.IsClean()
}

// blind returns why this process cannot look for longhaul's programs in the kernel; nil
// elsewhere than in a user namespace, which may hide them, and can have loaded none.
func (h *Host) blind(book *ledger.Book) error {
	if kernel.InitialUserNamespace() || slices.ContainsFunc(book.Entries, ofPrograms) {
		return nil
	}
	_, err := h.MSS.Namespaces()
	return err
}

func ofPrograms(e *ledger.Entry) bool { return e.Kind == ledger.MSS || e.Kind == ledger.Algorithm }

func (h *Host) undoHere(ctx context.Context, book *ledger.Book, choose func(ledger.Key, ledger.Claim) bool) (p Place, released []string, err error) {
	p.Undone, released, err = h.Destinations.UndoIn(book, choose)
	if err != nil {
		return p, released, err
	}
	if h.blind(book) == nil {
		if p.MSS, err = h.MSS.UndoIn(ctx, book, choose); err != nil {
			return p, released, err
		}
	}
	p.Intercept, err = h.Intercept.UndoIn(book, choose)
	return p, released, err
}

// undoElsewhere takes back claims in other network namespaces.
func (h *Host) undoElsewhere(ctx context.Context, book *ledger.Book, here uint64, others map[uint64]namespace, s Selection, o *Outcome) (released []string, err error) {
	for id, ns := range others {
		if id == here {
			continue
		}
		err := inNamespace(ns.file, func() error {
			place, some, err := h.undoHere(ctx, book, s.Choose)
			released = append(released, some...)
			place.NetNS = ns.name
			o.add(place)
			return err
		})
		if err != nil {
			return released, fmt.Errorf("network namespace %s: %w", ns.name, err)
		}
	}
	for _, e := range book.Entries {
		if _, found := others[e.NetNS]; e.NetNS == 0 || e.NetNS == here || found {
			continue
		}
		if slices.ContainsFunc(e.Claims, func(c ledger.Claim) bool { return s.Choose(e.Key, c) }) {
			o.Unreachable = append(o.Unreachable, e.Label)
		}
	}
	return released, nil
}

// forgetDeleted drops the entries of network namespaces that are deleted.
func (h *Host) forgetDeleted(ctx context.Context, book *ledger.Book, here uint64, others map[uint64]namespace, o *Outcome) error {
	isDeleted := func(id uint64) bool {
		_, found := others[id]
		return id != 0 && id != here && !found
	}
	ids, err := h.MSS.Namespaces()
	if o.Unseen != nil {
		err = nil
	}
	for _, e := range book.Entries {
		if isDeleted(e.NetNS) {
			o.Forgotten = append(o.Forgotten, e.Label)
			ids = append(ids, e.NetNS)
		}
	}
	for _, id := range ids {
		if isDeleted(id) {
			err = errors.Join(err, h.MSS.RemoveNamespace(ctx, id))
		}
	}
	book.Drop(func(e *ledger.Entry) bool { return isDeleted(e.NetNS) })
	return errors.Join(err, book.Save())
}

func (o *Outcome) add(p Place) {
	if len(p.Routes) > 0 || p.Default != nil || len(p.MSS) > 0 || len(p.Intercept) > 0 {
		o.Places = append(o.Places, p)
	}
}

// IsEmpty reports whether nothing was taken back.
func (o Outcome) IsEmpty() bool {
	return len(o.Places) == 0 && len(o.Algorithms) == 0 && len(o.Forgotten) == 0 && len(o.Unreachable) == 0
}
