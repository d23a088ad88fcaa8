package cc

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"longhaul/internal/sys/ledger"
)

// defaultSysctl is the algorithm of sockets that do not choose one. Each
// network namespace has its own.
const defaultSysctl = sysctls + "tcp_congestion_control"

// ReadDefault returns the default algorithm of the calling thread's network namespace.
func ReadDefault() (string, error) {
	b, err := os.ReadFile(defaultSysctl)
	if err != nil {
		return "", fmt.Errorf("read the default congestion control: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func writeDefault(name string) error {
	if err := os.WriteFile(defaultSysctl, []byte(name), 0); err != nil {
		return fmt.Errorf("make %s the default congestion control: %w", name, err)
	}
	return nil
}

// defaultKey names the default of the calling thread's network namespace.
func defaultKey() (ledger.Key, error) {
	here, err := ledger.Here()
	return ledger.Key{Kind: ledger.Default, NetNS: here}, err
}

// SetDefault makes a registered algorithm the default of the calling thread's network
// namespace, and claims it. The claim keeps the algorithm loaded.
func (h *Host) SetDefault(ctx context.Context, name string) error {
	book, err := ledger.Open(h.Ledger, h.DryRun)
	if err != nil {
		return err
	}
	defer book.Close()
	if err := h.SetDefaultIn(book, name); err != nil {
		return err
	}
	return h.ReleaseIn(ctx, book)
}

// SetDefaultIn is [Host.SetDefault] in an open ledger.
func (h *Host) SetDefaultIn(book *ledger.Book, name string) error {
	if err := h.RepairDefault(book); err != nil {
		return err
	}
	now, err := ReadDefault()
	if err != nil {
		return err
	}
	key, err := defaultKey()
	if err != nil {
		return err
	}
	restore := book.Snapshot()
	e := book.Find(key)
	if e == nil {
		e = book.Add(&ledger.Entry{Key: key, Label: "default"})
		e.Former, e.FormerText = ledger.Encode(now), now
	} else if ledger.Decode[string](e.InForce()) != now {
		// Somebody else has set another default meanwhile.
		e.Former, e.FormerText, e.Claims = ledger.Encode(now), now, nil
	}
	e.Put(ledger.Claim{By: h.By, Since: time.Now(), Value: ledger.Encode(name), Text: name, Needs: name})
	e.Pending = ledger.Encode(now)
	if err := book.Save(); err != nil {
		return err
	}
	if now != name && !book.DryRun() {
		if err := writeDefault(name); err != nil {
			restore()
			if saveErr := book.Save(); saveErr != nil {
				return saveErr
			}
			return err
		}
	}
	e.Pending = nil
	return book.Save()
}

// RepairDefault completes a change of the default that was interrupted.
func (h *Host) RepairDefault(book *ledger.Book) error {
	key, err := defaultKey()
	if err != nil {
		return err
	}
	if e := book.Find(key); e != nil && e.Pending != nil {
		_, err := h.applyDefault(book, e, ledger.Decode[string](e.Pending))
		return err
	}
	return nil
}

// UndoneDefault is the outcome of [Host.UndoDefaultIn].
type UndoneDefault struct {
	Taken []ledger.Claim
	Left  []ledger.Claim // of others
	Now   string         // the default
	// Restored: it changed. Kept: another program has set it since, so it stays.
	Restored, Kept bool
}

// UndoDefaultIn takes back claims on the default of the calling thread's network
// namespace. It returns nil if choose takes none.
func (h *Host) UndoDefaultIn(book *ledger.Book, choose func(ledger.Key, ledger.Claim) bool) (*UndoneDefault, error) {
	if err := h.RepairDefault(book); err != nil {
		return nil, err
	}
	key, err := defaultKey()
	if err != nil {
		return nil, err
	}
	e := book.Find(key)
	if e == nil {
		return nil, nil
	}
	before := ledger.Decode[string](e.InForce())
	taken, inForce := e.Take(choose)
	if len(taken) == 0 {
		return nil, nil
	}
	undone := &UndoneDefault{Taken: taken, Left: e.Claims}
	if undone.Now, err = ReadDefault(); err != nil {
		return nil, err
	}
	undone.Kept = inForce && undone.Now != before
	from := undone.Now
	if inForce && !undone.Kept {
		if undone.Now, err = h.applyDefault(book, e, from); err != nil {
			return nil, err
		}
		undone.Restored = undone.Now != from
		return undone, nil
	}
	if len(e.Claims) == 0 {
		book.Drop(func(other *ledger.Entry) bool { return other == e })
	}
	return undone, book.Save()
}

// applyDefault brings the kernel from a default to the one in force. It drops an entry
// without claims.
func (h *Host) applyDefault(book *ledger.Book, e *ledger.Entry, from string) (now string, err error) {
	target := ledger.Decode[string](e.InForce())
	if !IsAvailable(target) {
		if target, err = backTo("", target); err != nil {
			return "", err
		}
	}
	e.Pending = ledger.Encode(from)
	if err := book.Save(); err != nil {
		return "", err
	}
	if now, err = ReadDefault(); err != nil {
		return "", err
	}
	if now == from && now != target && !book.DryRun() {
		if err := writeDefault(target); err != nil {
			return "", err
		}
	}
	if now == from {
		now = target
	}
	e.Pending = nil
	if len(e.Claims) == 0 {
		book.Drop(func(other *ledger.Entry) bool { return other == e })
	}
	return now, book.Save()
}

// leaveDefault restores another default if name is the default of the calling thread's
// network namespace. It returns the new default, empty without a change.
func (h *Host) leaveDefault(book *ledger.Book, name string) (string, error) {
	undone, err := h.UndoDefaultIn(book, func(_ ledger.Key, c ledger.Claim) bool { return c.Needs == name })
	if err != nil {
		return "", err
	}
	if undone != nil && undone.Restored {
		return undone.Now, nil
	}
	now, err := ReadDefault()
	if err != nil || now != name {
		return "", err
	}
	if now, err = backTo("", name); err != nil || book.DryRun() {
		return now, err
	}
	return now, writeDefault(now)
}

// backTo chooses a default other than leaving: the wanted one if the kernel has it,
// else one that every namespace may have.
func backTo(wanted, leaving string) (string, error) {
	available, err := Available()
	if err != nil {
		return "", err
	}
	if wanted != leaving && slices.Contains(available, wanted) {
		return wanted, nil
	}
	allowed, err := Allowed()
	if leaving != "cubic" && err == nil && slices.Contains(allowed, "cubic") {
		return "cubic", nil
	}
	return "reno", nil // always available
}
