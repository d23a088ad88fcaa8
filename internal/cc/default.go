package cc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"longhaul/internal/kernel"
	"longhaul/internal/undo"
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

// formerDefault records a namespace's default before longhaul's change.
type formerDefault struct {
	Former string `json:"former"`
	Now    string `json:"now"`
}

func (h *Host) defaultRecord() (string, error) {
	cookie, err := kernel.NetNSCookie()
	if err != nil {
		return "", err
	}
	return filepath.Join(h.Undo, fmt.Sprintf("default-%d.json", cookie)), nil
}

func readFormerDefault(path string) (formerDefault, error) {
	var record formerDefault
	b, err := os.ReadFile(path)
	if err != nil {
		return record, err
	}
	if err := json.Unmarshal(b, &record); err != nil {
		return record, fmt.Errorf("%s is damaged, remove it: %w", path, err)
	}
	return record, nil
}

// SetDefault makes a registered algorithm the default of the calling thread's network
// namespace. It records the previous default, which [Host.Unload] restores.
func (h *Host) SetDefault(name string) error {
	now, err := ReadDefault()
	if err != nil || now == name {
		return err
	}
	path, err := h.defaultRecord()
	if err != nil {
		return err
	}
	unlock, err := undo.Lock(h.Undo)
	if err != nil {
		return err
	}
	defer unlock()
	record, err := readFormerDefault(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A second algorithm in a row keeps the recorded default. A default that
	// somebody else has set meanwhile replaces it.
	if err != nil || record.Now != now {
		record.Former = now
	}
	record.Now = name
	b, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := undo.Write(path, b); err != nil {
		return err
	}
	return writeDefault(name)
}

// leaveDefault restores the previous default if name is the default. It returns the
// new default, empty without a change.
func (h *Host) leaveDefault(name string) (string, error) {
	now, err := ReadDefault()
	if err != nil {
		return "", err
	}
	path, err := h.defaultRecord()
	if err != nil {
		return "", err
	}
	record, err := readFormerDefault(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	known := err == nil
	if now == name {
		if now, err = backTo(record.Former, name); err != nil {
			return "", err
		}
		if err := writeDefault(now); err != nil {
			return "", err
		}
	} else {
		now = ""
	}
	if known && record.Now != name {
		return now, nil
	}
	if _, err := os.Stat(h.Undo); errors.Is(err, fs.ErrNotExist) {
		return now, nil
	}
	unlock, err := undo.Lock(h.Undo)
	if err != nil {
		return now, err
	}
	defer unlock()
	return now, undo.Remove(path)
}

// backTo chooses a default other than leaving: the previous one if the kernel still
// has it, else Linux's own.
func backTo(former, leaving string) (string, error) {
	names, err := Available()
	if err != nil {
		return "", err
	}
	for _, name := range []string{former, "cubic"} {
		if name != leaving && slices.Contains(names, name) {
			return name, nil
		}
	}
	return "reno", nil // always available
}
