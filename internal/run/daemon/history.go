package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/usable"
	"longhaul/internal/run/config"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/metrics"
)

// historyKeeper is the part that keeps the records of flows, and ships them, if configured. The log
// and status report a problem with the file or a sink. It ends neither the relay nor a reload.
type historyKeeper struct {
	historyOptions
	// earlier takes the changes of state that the first file has; nil: they are known.
	earlier func([]flow.Event)

	mu      sync.RWMutex
	store   *history.Store   // nil: records are not kept
	ships   *ship.Shippers   // of store; nil: no sinks, or another process ships
	targets []archive.Target // in force
	site    string           // likewise
	before  history.State    // counts of closed stores
	closing sync.WaitGroup   // of stores that are closing
}

type historyOptions struct {
	log          *slog.Logger
	getenv       func(string) string
	relay        string // in records
	readablePath func(string) string
	openSink     func(archive.Target) (archive.Sink, error)
}

func newHistoryKeeper(o historyOptions) *historyKeeper { return &historyKeeper{historyOptions: o} }

// History is the state of the records in a status.
type History struct {
	history.State              // of no file: records are not kept, and sinks get none
	Ship          []ship.State `json:"ship,omitempty"` // by sink
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
	h.site, h.targets = h.siteOf(c), h.targetsOf(c)
	if h.store != nil && h.store.Path() == path {
		h.store.SetLimits(int64(c.MaxSize), age)
		h.ship()
		return
	}
	old, ships := h.store, h.ships
	h.store, h.ships = nil, nil
	if path != "" {
		store, err := history.Open(path, history.Options{MaxBytes: int64(c.MaxSize), MaxAge: age, Log: h.log})
		if err != nil { // the configuration has checked the path
			h.log.Error("cannot keep records of flows", "file", path, "error", err)
		} else {
			h.store = store
			h.log.Debug("keeping records of ended flows", "file", path)
			h.ship()
		}
	} else if len(h.targets) > 0 {
		h.log.Error("records are not shipped: "+noRecords, "remedy", noRecordsRemedy)
	}
	if old != nil {
		h.closing.Go(func() { h.end(old, ships) })
	}
}

// siteOf is the relay's site: that of a configuration, or else its host.
func (h *historyKeeper) siteOf(c config.History) string {
	_, host, named := strings.Cut(h.relay, "@")
	if !named {
		host = h.relay
	}
	return cmp.Or(c.Site, host)
}

// targetsOf are the sinks of a configuration, with the paths at which their files can be read.
func (h *historyKeeper) targetsOf(c config.History) []archive.Target {
	all := slices.Clone(c.Ship)
	for i := range all {
		for _, file := range []*string{&all[i].PasswordFile, &all[i].CA, &all[i].Certificate, &all[i].Key} {
			if *file != "" {
				*file = h.readablePath(*file)
			}
		}
	}
	return all
}

// ship has the store's records go to the sinks in force.
func (h *historyKeeper) ship() {
	switch {
	case h.ships != nil:
		h.ships.SetSite(h.site)
	case len(h.targets) == 0:
		return
	default:
		h.ships = ship.New(h.store, ship.Options{Relay: h.relay, Site: h.site, Open: h.openSink, Log: h.log})
	}
	h.ships.Set(h.targets)
}

// cursorPatience bounds the wait for the disk when another process goes on shipping.
const cursorPatience = time.Second

// leaveShipping ends the shipping for a successor, which finds in the file what is left. The file keeps it.
func (h *historyKeeper) leaveShipping() {
	h.mu.Lock()
	store, ships := h.store, h.ships
	h.ships = nil
	h.mu.Unlock()
	if ships == nil {
		return
	}
	ships.Close()
	ctx, cancel := context.WithTimeout(context.Background(), cursorPatience)
	defer cancel()
	if err := store.SaveCursors(ctx); err != nil {
		h.log.Warn("the successor may ship the last records again: the history did not take in time what is shipped", "file", store.Path())
	}
}

// resumeShipping is for a successor that has failed.
func (h *historyKeeper) resumeShipping() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.store != nil {
		h.ship()
	}
}

// end closes a store, after its shippers, and adds its counts.
func (h *historyKeeper) end(s *history.Store, ships *ship.Shippers) {
	if ships != nil {
		ships.Close()
	}
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

// Why sinks get nothing from a relay without a history.
const (
	noRecords       = "this relay keeps no records of its flows"
	noRecordsRemedy = "give history a file in the configuration"
)

// status returns the same state with that of the sinks; nil without both.
func (h *historyKeeper) status() *History {
	s, ships := h.state(), h.shipping()
	switch {
	case s != nil:
		return &History{*s, ships}
	case ships != nil:
		return &History{Ship: ships}
	}
	return nil
}

// shipping returns the states of the sinks.
func (h *historyKeeper) shipping() []ship.State {
	h.mu.RLock()
	defer h.mu.RUnlock()
	switch {
	case h.ships != nil:
		return h.ships.States()
	case h.store != nil: // another process ships
		return nil
	}
	var all []ship.State
	for _, t := range h.targets {
		all = append(all, ship.State{Sink: t.Label(), Kind: t.Kind, Problem: noRecords, Remedy: noRecordsRemedy})
	}
	return all
}

// metrics returns the same for /metrics.
func (h *historyKeeper) metrics() *metrics.History {
	s := h.state()
	if s == nil {
		if ships := h.shipping(); ships != nil {
			return &metrics.History{Bytes: -1, Ship: ships}
		}
		return nil
	}
	return &metrics.History{Written: uint64(s.Written), Dropped: uint64(s.Dropped), Bytes: s.Bytes, Ship: h.shipping()}
}

// close writes the remaining records, within some seconds.
func (h *historyKeeper) close() {
	h.mu.Lock()
	last, ships := h.store, h.ships
	h.store, h.ships, h.targets = nil, nil, nil
	h.mu.Unlock()
	if last != nil {
		h.end(last, ships)
	}
	h.closing.Wait()
}
