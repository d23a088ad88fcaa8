package cc

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// UnloadResult is what became of a [Host.Unload].
type UnloadResult struct {
	Outcome Outcome
	// Sockets are the connections of this network namespace that had the
	// algorithm, and keep it until they end.
	Sockets int
	// Default is what the namespace's default was set back to, empty if the
	// algorithm was not it.
	Default string
	// StillRegistered: another process holds the registration, and the
	// algorithm will be gone when that ends.
	StillRegistered bool
}

// unregisterPatience bounds the wait for the kernel to notice that a pin is
// gone, which it does after a grace period.
const unregisterPatience = 5 * time.Second

// Unload takes an algorithm out of the kernel's table, and removes its pins and
// whatever an interrupted load has left. It may be in use: connections that
// have it keep it until they end, sockets that listen with it hand it on until
// they are closed, and so does another network namespace that has it as its
// default. If it is this namespace's default, the former one is put back first.
func (h *Host) Unload(ctx context.Context, name string) (UnloadResult, error) {
	if err := checkName(name); err != nil {
		return UnloadResult{}, err
	}
	var result UnloadResult
	if !h.pins().Mounted() {
		return UnloadResult{Outcome: Nothing}, h.notOurs(name)
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
		return UnloadResult{Outcome: Nothing}, h.notOurs(name)
	}
	isPinned, err := h.pins().Exists(name, linkPin)
	if err != nil {
		return UnloadResult{}, err
	}
	if !isPinned {
		return UnloadResult{Outcome: Cleared}, h.clear(name)
	}
	if sockets, err := SocketCounts(); err == nil {
		result.Sockets = sockets[name]
	}
	if result.Default, err = h.leaveDefault(name); err != nil {
		return UnloadResult{}, err
	}
	if err := h.clear(name); err != nil {
		return UnloadResult{}, err
	}
	result.Outcome = Unloaded
	for deadline := time.Now().Add(unregisterPatience); ; {
		still, err := registered(name)
		if err != nil {
			return result, err
		}
		if !still {
			return result, nil
		}
		if time.Now().After(deadline) {
			result.StillRegistered = true
			return result, nil
		}
		select {
		case <-ctx.Done():
			result.StillRegistered = true
			return result, nil
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// notOurs is the error for unloading what longhaul has not loaded, nil if
// nobody has.
func (h *Host) notOurs(name string) error {
	is, err := registered(name)
	if err != nil {
		return err
	}
	if is {
		return fmt.Errorf("%s: %w, and longhaul has not loaded it", name, ErrTaken)
	}
	known, err := h.Names()
	if err != nil || slices.Contains(known, name) {
		return err
	}
	return fmt.Errorf("%s: %w", name, ErrUnknown)
}

// LoadedNames are the algorithms that longhaul has loaded, or has begun to.
func (h *Host) LoadedNames() ([]string, error) {
	if !h.pins().Mounted() {
		return nil, nil
	}
	return h.pins().Names()
}
