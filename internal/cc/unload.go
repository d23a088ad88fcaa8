package cc

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
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

// Unload removes an algorithm from the kernel's table, with its pins and leftovers of
// an interrupted load. Connections keep the algorithm until they end. Listening
// sockets pass it on until they are closed, and so does another network namespace with
// it as default. If it is this namespace's default, Unload first restores the previous
// one.
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
	known, err := h.Names()
	if err != nil || slices.Contains(known, name) {
		return err
	}
	return fmt.Errorf("%s: %w", name, ErrUnknown)
}

// LoadedNames returns the algorithms that longhaul has loaded or begun to load.
func (h *Host) LoadedNames() ([]string, error) {
	if !h.pins().Mounted() {
		return nil, nil
	}
	return h.pins().Names()
}
