package mss

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/sys/ledger"
)

// leftover is the part of the entry of a device with pins but no rules.
const leftover = "leftover"

// key names a rule in the ledger. A rule without an action stands for leftovers.
func key(a attachment, rule Rule) ledger.Key {
	k := ledger.Key{Kind: ledger.MSS, NetNS: a.namespace, Name: strconv.Itoa(a.index), Part: leftover}
	if rule.Action != "" {
		k.Part = rule.dataText()
	}
	return k
}

// dataText describes the data of a rule: "data to 203.0.113.0/24, port 5432".
func (r Rule) dataText() string {
	_, text, _ := strings.Cut(r.Text(), ": ")
	return text
}

// value is a rule as the ledger has it: its device is in the key, by its index.
func value(r *Rule) (encoded []byte) {
	if r == nil {
		return nil
	}
	plain := *r
	plain.Device = ""
	return ledger.Encode(plain)
}

// ruleOf returns a rule of the ledger, nil if the value means no rule.
func ruleOf(raw []byte, device string) *Rule {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	r := ledger.Decode[Rule](raw)
	r.Device = device
	return &r
}

func sameRule(a, b *Rule) bool { return a == b || a != nil && b != nil && *a == *b }

// actionText describes what a rule does: "clamp to 1300".
func (r Rule) actionText() string {
	text, _, _ := strings.Cut(r.Text(), ": ")
	return text
}

// ruleFor returns the rule in force for the same data, nil without one.
func (h *Host) ruleFor(a attachment, rule Rule) (*Rule, error) {
	p, err := openMaps(h.pins().Path(a.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer p.Close()
	rules, err := p.rules(a.deviceName())
	for _, n := range rules {
		if n.rule.sameData(rule) {
			return &n.rule, err
		}
	}
	return nil, err
}

// recordSet claims a rule. now is the rule in force for the same data.
func (h *Host) recordSet(book *ledger.Book, a attachment, rule Rule, now *Rule) *ledger.Entry {
	k := key(a, rule)
	e := book.Find(k)
	switch {
	case e == nil:
		e = book.Add(&ledger.Entry{Key: k, Label: rule.Device + " " + rule.dataText(), FormerText: "none"})
		if now != nil {
			e.Put(unknownClaim(*now))
		}
	case !sameRule(ruleOf(e.InForce(), rule.Device), now):
		e.Former, e.FormerText, e.Claims = value(now), "none", nil
		if now != nil {
			e.FormerText = now.actionText()
		}
	}
	e.Put(ledger.Claim{By: h.By, Since: time.Now(), Value: value(&rule), Text: rule.actionText()})
	e.Pending = []byte("null")
	if now != nil {
		e.Pending = value(now)
	}
	return e
}

func unknownClaim(r Rule) ledger.Claim {
	return ledger.Claim{By: ledger.By{Owner: ledger.Unknown, Means: ledger.Command}, Value: value(&r), Text: r.actionText()}
}

// forgetDevice drops the records of a device's rules, which ended with an earlier device
// of the same index.
func (h *Host) forgetDevice(book *ledger.Book, a attachment) {
	book.Drop(func(e *ledger.Entry) bool {
		return e.Kind == ledger.MSS && e.NetNS == a.namespace && e.Name == strconv.Itoa(a.index)
	})
}

// AdoptIn gives rules of this network namespace without a record, and leftovers of
// interrupted commands, an entry of an unknown owner.
func (h *Host) AdoptIn(book *ledger.Book) error {
	attachments, err := h.attachments(false)
	if err != nil {
		return err
	}
	for _, a := range attachments {
		name := a.deviceName()
		p, err := openMaps(h.pins().Path(a.dir))
		var rules []numbered
		if err == nil {
			rules, err = p.rules(name)
			p.Close()
		}
		if err != nil || len(rules) == 0 {
			// Made by another version, or incomplete: it can only be removed as a whole.
			if k := key(a, Rule{}); !h.isRecorded(book, a) {
				e := book.Add(&ledger.Entry{Key: k, Label: Rule{Device: name}.DeviceText() + " " + leftover, FormerText: "none", Adopted: true})
				e.Put(ledger.Claim{By: ledger.By{Owner: ledger.Unknown, Means: ledger.Command}, Text: "not in force"})
			}
			continue
		}
		for _, n := range rules {
			if k := key(a, n.rule); book.Find(k) == nil {
				e := book.Add(&ledger.Entry{Key: k, Label: Rule{Device: name}.DeviceText() + " " + n.rule.dataText(), FormerText: "none", Adopted: true})
				e.Put(unknownClaim(n.rule))
			}
		}
	}
	return nil
}

// isRecorded reports whether the ledger has a rule of a device.
func (h *Host) isRecorded(book *ledger.Book, a attachment) bool {
	return slices.ContainsFunc(book.Of(ledger.MSS, a.namespace), func(e *ledger.Entry) bool {
		return e.Name == strconv.Itoa(a.index)
	})
}

// DeviceKey returns the name of a device in the ledger.
func DeviceKey(device string) (string, error) {
	d, err := findDevice(device)
	return strconv.Itoa(d.index), err
}

// Selects reports whether a claim is on a rule with the prefixes and the port of r.
// Those that r lacks match any. Leftovers match a rule that has none.
func (r Rule) Selects(c ledger.Claim) bool {
	var of Rule
	if claimed := ruleOf(c.Value, ""); claimed != nil {
		of = *claimed
	}
	return (!r.To.IsValid() || r.To == of.To) && (!r.From.IsValid() || r.From == of.From) && (r.Port == 0 || r.Port == of.Port)
}

// Undone is the outcome of [Host.UndoIn] for one rule.
type Undone struct {
	Rule  Rule // before; without an action it stands for leftovers
	Taken []ledger.Claim
	Left  []ledger.Claim // of others, the one in force last
	Now   *Rule          // nil: none
}

// Undo takes back the chosen claims on rules of this network namespace, and removes the
// program of a device with its last rule.
func (h *Host) Undo(ctx context.Context, choose func(ledger.Key, ledger.Claim) bool) ([]Undone, error) {
	book, err := ledger.Open(h.Ledger, h.DryRun)
	if err != nil {
		return nil, err
	}
	defer book.Close()
	return h.UndoIn(ctx, book, choose)
}

// UndoRule takes back the claim of [Host.By] on a rule.
func (h *Host) UndoRule(ctx context.Context, rule Rule) error {
	d, err := findDevice(rule.Device)
	if errors.Is(err, ErrNoDevice) {
		return nil // and its rules are deleted
	}
	if err != nil {
		return err
	}
	here, err := ledger.Here()
	if err != nil {
		return err
	}
	own := key(attachment{namespace: here, index: d.index}, rule)
	_, err = h.Undo(ctx, func(k ledger.Key, c ledger.Claim) bool { return k == own && c.Same(h.By) })
	return err
}

// UndoIn is [Host.Undo] in an open ledger.
func (h *Host) UndoIn(ctx context.Context, book *ledger.Book, choose func(ledger.Key, ledger.Claim) bool) ([]Undone, error) {
	here, err := ledger.Here()
	if err != nil {
		return nil, err
	}
	attachments, err := h.attachments(false)
	if err != nil || len(attachments) == 0 && len(book.Of(ledger.MSS, here)) == 0 {
		return nil, err
	}
	if err := needPrivilege(); err != nil {
		return nil, err
	}
	if h.pins().Mounted() && !h.DryRun {
		unlock, err := h.pins().Lock(ctx)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	if err := h.repair(book); err != nil {
		return nil, err
	}
	if err := h.AdoptIn(book); err != nil {
		return nil, err
	}
	var all []Undone
	for _, e := range slices.Clone(book.Of(ledger.MSS, here)) {
		u, err := h.undo(book, e, choose)
		if err != nil {
			return all, err
		}
		if u != nil {
			all = append(all, *u)
		}
	}
	return all, book.Save()
}

// undo takes back the chosen claims of one entry; it returns nil if none is chosen.
func (h *Host) undo(book *ledger.Book, e *ledger.Entry, choose func(ledger.Key, ledger.Claim) bool) (*Undone, error) {
	a := attachmentOf(e)
	device := a.deviceName()
	was := ruleOf(e.InForce(), device)
	taken, inForce := e.Take(choose)
	if len(taken) == 0 {
		return nil, nil
	}
	u := &Undone{Rule: Rule{Device: device}, Taken: taken, Left: e.Claims, Now: ruleOf(e.InForce(), device)}
	if was != nil {
		u.Rule = *was
	}
	if !inForce {
		return u, nil
	}
	e.Pending = []byte("null")
	if was != nil {
		e.Pending = value(was)
	}
	if err := book.Save(); err != nil {
		return nil, err
	}
	return u, h.apply(book, e)
}

func attachmentOf(e *ledger.Entry) attachment {
	index, _ := strconv.Atoi(e.Name) // 0, which no device has, for an invalid one
	return attachment{dirName(e.NetNS, index), e.NetNS, index, true}
}

// repair completes changes of this network namespace's rules that were interrupted.
func (h *Host) repair(book *ledger.Book) error {
	here, err := ledger.Here()
	if err != nil {
		return err
	}
	for _, e := range slices.Clone(book.Of(ledger.MSS, here)) {
		if e.Pending != nil {
			if err := h.apply(book, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply puts the claim in force of an entry into the kernel, or removes the rule.
func (h *Host) apply(book *ledger.Book, e *ledger.Entry) error {
	a := attachmentOf(e)
	if !book.DryRun() {
		if err := h.enforce(a, e); err != nil {
			return err
		}
	}
	e.Pending = nil
	if len(e.Claims) == 0 {
		book.Drop(func(other *ledger.Entry) bool { return other == e })
	}
	return book.Save()
}

func (h *Host) enforce(a attachment, e *ledger.Entry) error {
	name := a.deviceName()
	target := ruleOf(e.InForce(), name)
	exists, err := h.pins().Exists(a.dir)
	if err != nil {
		return err
	}
	switch {
	case e.Part == leftover || name == "" || !exists && target == nil:
		return h.remove(a)
	case target != nil:
		d, err := findDevice(name)
		if err != nil {
			return err
		}
		_, err = h.install(d, a, *target)
		return err
	}
	return h.removeRule(a, ruleOf(e.Pending, name), e.Part)
}

// removeRule removes the rule for some data, and the program with the last rule.
func (h *Host) removeRule(a attachment, was *Rule, data string) error {
	p, err := openMaps(h.pins().Path(a.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return h.remove(a)
	}
	if err != nil {
		return err
	}
	defer p.Close()
	rules, err := p.rules(a.deviceName())
	if err != nil {
		return err
	}
	keep := slices.DeleteFunc(slices.Clone(rules), func(n numbered) bool {
		return n.rule.dataText() == data || was != nil && n.rule.sameData(*was)
	})
	switch {
	case len(keep) == 0:
		return h.remove(a)
	case len(keep) < len(rules):
		return p.put(keep)
	}
	return nil
}

// RemoveNamespace removes what rules have left of a network namespace that is deleted.
func (h *Host) RemoveNamespace(ctx context.Context, netns uint64) error {
	if !h.pins().Mounted() || h.DryRun {
		return nil
	}
	unlock, err := h.pins().Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	attachments, err := h.attachments(true)
	if err != nil {
		return err
	}
	for _, a := range attachments {
		if a.namespace != netns || a.here {
			continue
		}
		for _, at := range directions {
			if err := detachLink(h.pins().Path(a.dir, at.name)); err != nil {
				return fmt.Errorf("remove the program of a deleted device: %w", err)
			}
		}
		if err := os.RemoveAll(h.pins().Path(a.dir)); err != nil {
			return fmt.Errorf("remove the pins of a deleted device: %w", err)
		}
	}
	return nil
}

// Namespaces returns the network namespaces with pinned rules.
func (h *Host) Namespaces() (ids []uint64, err error) {
	attachments, err := h.attachments(true)
	for _, a := range attachments {
		if !slices.Contains(ids, a.namespace) {
			ids = append(ids, a.namespace)
		}
	}
	return ids, err
}
