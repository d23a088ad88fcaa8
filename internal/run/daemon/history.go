package daemon

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/usable"
	"longhaul/internal/run/config"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/metrics"
)

// historyKeeper is the part that keeps the records of flows, if configured. The log and
// status report a problem with the file. It ends neither the relay nor a reload.
type historyKeeper struct {
	log    *slog.Logger
	getenv func(string) string
	// earlier takes the changes of state that the first file has; nil: they are known.
	earlier func([]flow.Event)

	mu      sync.RWMutex
	store   *history.Store // nil: records are not kept
	before  history.State  // counts of closed stores
	closing sync.WaitGroup // of stores that are closing
}

func newHistoryKeeper(log *slog.Logger, getenv func(string) string) *historyKeeper {
	return &historyKeeper{log: log, getenv: getenv}
}

func (h *historyKeeper) Prepare(_ context.Context, p *plan) (Change, error) {
	return setting(func() {
		first := h.state() == nil
		h.apply(p.History)
		if first && h.earlier != nil {
			h.closing.Go(func() { h.earlier(h.events(usable.MaxEvents)) }) // the disk may be slow
		}
	}), nil
}

// HistoryFile returns a configuration's history file; empty: no history.
func HistoryFile(c config.History, getenv func(string) string) string {
	switch c.File {
	case config.Off:
		return ""
	case "":
		if dir := stateDirectory(getenv); dir != "" {
			return filepath.Join(dir, HistoryName)
		}
		return ""
	}
	return c.File
}

// stateDirectory is where the service keeps its files; empty: only a service of systemd has
// one, or several.
func stateDirectory(getenv func(string) string) string {
	dir, _, _ := strings.Cut(getenv("STATE_DIRECTORY"), ":")
	if !filepath.IsAbs(dir) {
		return ""
	}
	return dir
}

const HistoryName = "history.db"

// apply applies a configuration. It closes a replaced file without waiting for it.
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
		if err != nil { // the configuration has checked the path
			h.log.Error("cannot keep records of flows", "file", path, "error", err)
		} else {
			h.store = store
			h.log.Debug("keeping records of ended flows", "file", path)
		}
	}
	if old != nil {
		h.closing.Go(func() { h.end(old) })
	}
}

// end closes a store and adds its counts.
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

// addEvent takes a change of state; it does not wait.
func (h *historyKeeper) addEvent(e flow.Event) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.store != nil {
		h.store.AddEvent(e)
	}
}

// eventsPatience bounds reading the changes of state of a process before.
const eventsPatience = 5 * time.Second

// events returns the changes of state that a file has; nil without a history, or if it cannot
// be read.
func (h *historyKeeper) events(limit int) []flow.Event {
	s := h.state()
	if s == nil {
		return nil
	}
	r, err := history.OpenReader(s.File)
	if err != nil {
		return nil
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), eventsPatience)
	defer cancel()
	all, err := r.Events(ctx, limit)
	if err != nil {
		h.log.Debug("cannot read earlier changes of state", "file", s.File, "error", err)
	}
	return all
}

// state returns nil without a history.
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

// metrics returns the same state for /metrics.
func (h *historyKeeper) metrics() *metrics.History {
	s := h.state()
	if s == nil {
		return nil
	}
	return &metrics.History{Written: uint64(s.Written), Dropped: uint64(s.Dropped), Bytes: s.Bytes}
}

// close writes the remaining records, within some seconds.
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
