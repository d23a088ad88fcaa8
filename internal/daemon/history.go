package daemon

import (
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"longhaul/internal/config"
	"longhaul/internal/monitor"
	"longhaul/internal/monitor/history"
	"longhaul/internal/monitor/metrics"
)

// historyKeeper keeps the records of the daemon's flows, if they are to be kept.
// What is wrong with the file is said in the log and by status, and ends
// neither the relay nor a reload.
type historyKeeper struct {
	log    *slog.Logger
	getenv func(string) string

	mu      sync.RWMutex
	store   *history.Store // nil: records are not kept
	before  history.State  // what stores have counted that are closed
	closing sync.WaitGroup // of those
}

func newHistoryKeeper(log *slog.Logger, getenv func(string) string) *historyKeeper {
	return &historyKeeper{log: log, getenv: getenv}
}

// HistoryFile is where records are kept by a configuration; empty: nowhere.
func HistoryFile(c config.History, getenv func(string) string) string {
	switch c.File {
	case config.Off:
		return ""
	case "":
		// systemd gives a service one of its own, or several, and nobody else.
		if dir, _, _ := strings.Cut(getenv("STATE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
			return filepath.Join(dir, HistoryName)
		}
		return ""
	}
	return c.File
}

const HistoryName = "history.db"

// apply takes up a configuration. A file that is left is closed without waiting for it.
func (h *historyKeeper) apply(c config.History) {
	path := HistoryFile(c, h.getenv)
	age := c.MaxAge
	if age < 0 {
		age = history.Forever
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.store != nil && h.store.Path() == path {
		h.store.SetLimits(int64(c.MaxSize), age)
		return
	}
	old := h.store
	h.store = nil
	if path != "" {
		store, err := history.Open(path, history.Options{MaxBytes: int64(c.MaxSize), MaxAge: age, Log: h.log})
		if err != nil { // the configuration has seen to it that there is nothing wrong
			h.log.Error("records of flows are not kept", "file", path, "error", err)
		} else {
			h.store = store
			h.log.Debug("records of ended flows are kept", "file", path)
		}
	}
	if old != nil {
		h.closing.Go(func() { h.end(old) })
	}
}

// end closes a store and takes over what it counted.
func (h *historyKeeper) end(s *history.Store) {
	if err := s.Close(); err != nil {
		h.log.Error("cannot close the history", "file", s.Path(), "error", err)
	}
	h.mu.Lock()
	state := s.State()
	h.before.Written += state.Written
	h.before.Dropped += state.Dropped
	h.mu.Unlock()
}

// add is the monitor's OnRecords; it does not wait.
func (h *historyKeeper) add(records []monitor.Record) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.store != nil {
		h.store.Add(records)
	}
}

// state is nil where records are not kept.
func (h *historyKeeper) state() *history.State {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.store == nil {
		return nil
	}
	s := h.store.State()
	s.Written += h.before.Written
	s.Dropped += h.before.Dropped
	return &s
}

// metrics is the same for /metrics.
func (h *historyKeeper) metrics() *metrics.History {
	s := h.state()
	if s == nil {
		return nil
	}
	return &metrics.History{Written: uint64(s.Written), Dropped: uint64(s.Dropped), Bytes: s.Bytes}
}

// close writes what is left, within some seconds.
func (h *historyKeeper) close() {
	h.mu.Lock()
	last := h.store
	h.store = nil
	h.mu.Unlock()
	if last != nil {
		h.end(last)
	}
	h.closing.Wait()
}
