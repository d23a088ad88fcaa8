package cc

import (
	"context"
	"fmt"
	"os"
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
		return UnloadResult{Outcome: Nothing}, h.notOurs(ctx, name)
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
		return UnloadResult{Outcome: Nothing}, h.notOurs(ctx, name)
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
	gone, err := unregistered(ctx, name, h.unregisterPatience)
	result.StillRegistered = !gone
	return result, err
}

// unregistered waits, at most so long, until the kernel has no algorithm of the
// name, and says whether that is so.
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

// abandoned says whether an algorithm without a pin is gone in a moment: it was
// of a process that has just ended, or has just been unloaded.
func (h *Host) abandoned(ctx context.Context, name string) (bool, error) {
	patience := h.abandonedPatience
	if _, err := os.Stat("/sys/module/tcp_" + name); err == nil {
		patience = 0 // a kernel module's, which stays
	}
	return unregistered(ctx, name, patience)
}

// notOurs is the error for unloading what longhaul has not loaded, nil if
// nobody has.
func (h *Host) notOurs(ctx context.Context, name string) error {
	gone, err := h.abandoned(ctx, name)
	if err != nil {
		return err
	}
	if !gone {
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
