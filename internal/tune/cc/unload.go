package cc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"longhaul/internal/sys/ledger"
)

// UnloadResult is the result of [Host.Unload].
type UnloadResult struct {
	Outcome Outcome
	// Sockets are the connections of this network namespace that had the
	// algorithm, and keep it until they end.
	Sockets int
	// Default is the restored default of the namespace, empty if the algorithm was
	// not the default.
	Default string
	// StillRegistered: another process holds the registration, which ends with that
	// process.
	StillRegistered bool
}

// Unload removes an algorithm from the kernel's table, with its pins, its claims and
// leftovers of an interrupted load. Connections keep the algorithm until they end.
// Listening sockets pass it on until they are closed, and so does another network
// namespace with it as default. If it is this namespace's default, Unload first
// restores the previous one. Callers respect other owners: see [Host.UndoIn].
func (h *Host) Unload(ctx context.Context, name string) (UnloadResult, error) {
	if err := checkName(name); err != nil {
		return UnloadResult{}, err
	}
	if !h.pins().Mounted() {
		return UnloadResult{Outcome: Nothing}, h.notOurs(ctx, name)
	}
	book, err := ledger.Open(h.Ledger, h.DryRun)
	if err != nil {
		return UnloadResult{}, err
	}
	defer book.Close()
	return h.unloadIn(ctx, book, name)
}

func (h *Host) unloadIn(ctx context.Context, book *ledger.Book, name string) (result UnloadResult, err error) {
	forget := func() error { return forget(book, name) }
	if !h.pins().Mounted() {
		return h.unloadUnpinned(ctx, book, name)
	}
	if h.DryRun {
		return h.wouldUnload(ctx, book, name)
	}
	unlock, err := h.pins().Lock(ctx)
	if err != nil {
		return UnloadResult{}, err
	}
	defer unlock()

	names, err := h.pins().Names()
	if err != nil {
		return UnloadResult{}, err
	}
	if !slices.Contains(names, name) {
		return h.unloadUnpinned(ctx, book, name)
	}
	isPinned, err := h.holds(name)
	if err != nil {
		return UnloadResult{}, err
	}
	if !isPinned {
		if err := h.clear(name); err != nil {
			return UnloadResult{}, err
		}
		return UnloadResult{Outcome: Cleared}, forget()
	}
	if sockets, err := SocketCounts(); err == nil {
		result.Sockets = sockets[name]
	}
	if result.Default, err = h.leaveDefault(book, name); err != nil {
		return UnloadResult{}, err
	}
	if err := h.clear(name); err != nil {
		return UnloadResult{}, err
	}
	if err := forget(); err != nil {
		return UnloadResult{}, err
	}
	result.Outcome = Unloaded
	gone, err := unregistered(ctx, name, h.unregisterPatience)
	result.StillRegistered = !gone
	return result, err
}

// forget removes an algorithm from the ledger.
func forget(book *ledger.Book, name string) error {
	book.Drop(func(e *ledger.Entry) bool { return e.Key == algorithmKey(name) })
	return book.Save()
}

// unloadUnpinned unloads an algorithm without pins: one that this host has loaded may
// still be registered, without a link.
func (h *Host) unloadUnpinned(ctx context.Context, book *ledger.Book, name string) (UnloadResult, error) {
	result := UnloadResult{Outcome: Nothing}
	m, err := recordedOrphan(book, name)
	if err != nil {
		return UnloadResult{}, err
	}
	if m == nil {
		return result, errors.Join(forget(book, name), h.notOurs(ctx, name))
	}
	defer m.Close()
	result.Outcome = Cleared
	if sockets, err := SocketCounts(); err == nil {
		result.Sockets = sockets[name]
	}
	if result.Default, err = h.leaveDefault(book, name); err != nil {
		return UnloadResult{}, err
	}
	if !h.DryRun {
		if err := unregisterOps(m); err != nil {
			return UnloadResult{}, fmt.Errorf("unregister %s: %w", name, err)
		}
	}
	return result, forget(book, name)
}

// wouldUnload returns the outcome of an unload without making it.
func (h *Host) wouldUnload(ctx context.Context, book *ledger.Book, name string) (result UnloadResult, err error) {
	defer book.Drop(func(e *ledger.Entry) bool { return e.Key == algorithmKey(name) })
	isPinned, err := h.holds(name)
	if err != nil {
		return UnloadResult{}, err
	}
	exists, err := h.pins().Exists(name)
	if err != nil {
		return UnloadResult{}, err
	}
	if !exists {
		return h.unloadUnpinned(ctx, book, name)
	}
	if !isPinned {
		return UnloadResult{Outcome: Cleared}, nil
	}
	if sockets, err := SocketCounts(); err == nil {
		result.Sockets = sockets[name]
	}
	result.Outcome = Unloaded
	result.Default, err = h.leaveDefault(book, name)
	return result, err
}

// Undone is the outcome of [Host.UndoIn] for one algorithm.
type Undone struct {
	Name   string
	Taken  []ledger.Claim
	Users  []ledger.User // whose claims keep it loaded
	Result UnloadResult  // without users
}

// Undo takes back claims on algorithms, and unloads those that no claim needs any more.
func (h *Host) Undo(ctx context.Context, choose func(ledger.Key, ledger.Claim) bool) ([]Undone, error) {
	book, err := ledger.Open(h.Ledger, h.DryRun)
	if err != nil {
		return nil, err
	}
	defer book.Close()
	return h.UndoIn(ctx, book, nil, choose)
}

// ReleaseIn unloads algorithms that were loaded for claims which other claims have
// replaced.
func (h *Host) ReleaseIn(ctx context.Context, book *ledger.Book) error {
	_, err := h.UndoIn(ctx, book, nil, func(ledger.Key, ledger.Claim) bool { return false })
	return err
}

// UndoIn takes back claims on algorithms. It unloads those of them, and of released,
// that no claim needs any more.
func (h *Host) UndoIn(ctx context.Context, book *ledger.Book, released []string, choose func(ledger.Key, ledger.Claim) bool) ([]Undone, error) {
	if err := h.AdoptIn(book); err != nil {
		return nil, err
	}
	var all []Undone
	for _, e := range slices.Clone(book.Entries) {
		if e.Kind != ledger.Algorithm {
			continue
		}
		taken, _ := e.Take(choose)
		users := book.Users(e.Name)
		// An interrupted command leaves an algorithm that nobody claims or needs.
		left := len(e.Claims) == 0 && len(users) == 0
		if len(taken) > 0 || left || slices.Contains(released, e.Name) {
			all = append(all, Undone{Name: e.Name, Taken: taken, Users: users})
		}
	}
	if err := book.Save(); err != nil {
		return nil, err
	}
	var undone []Undone
	for _, u := range all {
		if len(u.Users) == 0 {
			var err error
			if u.Result, err = h.unloadIn(ctx, book, u.Name); err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrTaken) {
				return undone, err
			}
		}
		if len(u.Taken) > 0 || len(u.Users) == 0 {
			undone = append(undone, u)
		}
	}
	return undone, nil
}

// unregistered waits at most patience until the kernel has no algorithm of the name,
// and reports whether that happened.
func unregistered(ctx context.Context, name string, patience time.Duration) (bool, error) {
	for deadline := time.Now().Add(patience); ; {
		still, err := registered(name)
		if err != nil {
			return false, err
		}
		if !still || !time.Now().Before(deadline) {
			return !still, nil
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// abandoned reports whether an algorithm without a pin disappears within
// abandonedPatience: its process has just ended, or it was just unloaded.
func (h *Host) abandoned(ctx context.Context, name string) (bool, error) {
	patience := h.abandonedPatience
	if _, err := os.Stat("/sys/module/tcp_" + name); err == nil {
		patience = 0 // of a kernel module, which stays
	}
	return unregistered(ctx, name, patience)
}

// notOurs returns the error for unloading an algorithm of another owner, nil if it is
// not loaded.
func (h *Host) notOurs(ctx context.Context, name string) error {
	gone, err := h.abandoned(ctx, name)
	if err != nil {
		return err
	}
	if !gone {
		return fmt.Errorf("%s: %w, and longhaul has not loaded it", name, ErrTaken)
	}
	if h.IsOwn(name) {
		return nil
	}
	return &UnknownError{Name: name}
}

// LoadedNames returns the algorithms that longhaul has loaded or begun to load.
func (h *Host) LoadedNames() ([]string, error) {
	if !h.pins().Mounted() {
		return nil, nil
	}
	return h.pins().Names()
}
