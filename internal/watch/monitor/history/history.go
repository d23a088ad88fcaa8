// Package history keeps the records of ended flows in a file of SQLite, within
// a size and an age, and answers questions about them.
//
// A [Store] writes, from one goroutine, what it is handed without waiting; a
// [Reader] reads, from the same process or another one. Neither can hold up
// whoever ends flows: what the file does not take in time is dropped, counted
// and reported.
package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

// Bounds and defaults of [Options].
const (
	MinBytes     = 16 << 20
	DefaultBytes = 300 << 20
	DefaultAge   = 90 * 24 * time.Hour
	Forever      = 100 * 365 * 24 * time.Hour // no record is older

	queueLen       = 10240 // records that wait, and as many that are being written: some 16 MB at most
	batchLen       = 4096  // records that are worth a transaction at once
	batchInterval  = 400 * time.Millisecond
	closePatience  = 3 * time.Second
	reportInterval = time.Minute // between two lines about trouble that lasts
	diskPatience   = 5 * time.Second
)

// Options say what a [Store] keeps.
type Options struct {
	MaxBytes int64         // of the file and what belongs to it; 0: DefaultBytes
	MaxAge   time.Duration // 0: DefaultAge
	Log      *slog.Logger  // nil: nothing is said

	// Of tests.
	now        func() time.Time
	beforeCall func() // before each use of the file
	settle     time.Duration
	patience   time.Duration // instead of diskPatience
	closing    time.Duration // instead of closePatience
}

// Store writes a history.
type Store struct {
	path string
	log  *slog.Logger
	opts Options

	maxBytes atomic.Int64
	maxAge   atomic.Int64

	mu      sync.Mutex
	queue   []monitor.Record
	events  []flow.Event // that are not in the file yet
	sinks   []string
	shipped map[string]Cursor // that are not in the file yet
	saved   chan struct{}     // closed when none is left of them; nil: nobody waits for it
	changed chan struct{}     // nil: nobody waits for it
	closing bool
	state   State
	atFile  time.Time // since when the writer has waited for the file; zero: it does not

	some    chan struct{} // the queue has a batch
	stop    chan struct{}
	stopped chan struct{}
}

// State is how a store does.
type State struct {
	File    string `json:"file"`
	Problem string `json:"problem,omitempty"` // why nothing is being written; empty: it is
	Remedy  string `json:"remedy,omitempty"`  // of Problem
	Written int64  `json:"written"`           // records
	Dropped int64  `json:"dropped"`           // records
	Waiting int    `json:"waiting"`           // records
	Bytes   int64  `json:"bytes"`             // of the file and what belongs to it
}

// Open begins to write the file, which is made if there is none. What is wrong
// with the file or the disk is not an error: it is said in the log, and tried
// again until it works. The path must be absolute and end in ".db".
func Open(path string, opts Options) (*Store, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if opts.MaxBytes != 0 && opts.MaxBytes < MinBytes {
		return nil, fmt.Errorf("a history needs %d bytes at least, not %d", MinBytes, opts.MaxBytes)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	if opts.settle == 0 {
		opts.settle = settle
	}
	if opts.patience == 0 {
		opts.patience = diskPatience
	}
	if opts.closing == 0 {
		opts.closing = closePatience
	}
	s := &Store{
		path: path, log: opts.Log, opts: opts,
		some: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	s.state.File = path
	s.SetLimits(opts.MaxBytes, opts.MaxAge)
	go newWriter(s).loop()
	return s, nil
}

// SetLimits changes what is kept; zeros are the defaults.
func (s *Store) SetLimits(maxBytes int64, maxAge time.Duration) {
	if maxBytes <= 0 {
		maxBytes = DefaultBytes
	}
	if maxAge <= 0 {
		maxAge = DefaultAge
	}
	s.maxBytes.Store(max(maxBytes, MinBytes))
	s.maxAge.Store(int64(maxAge))
}

// Path is the file's.
func (s *Store) Path() string { return s.path }

// Add takes records and never waits for the disk. The records' slices belong to
// the store from then on.
func (s *Store) Add(records []monitor.Record) {
	s.mu.Lock()
	room := queueLen - len(s.queue)
	if s.closing {
		room = 0
	}
	taken := min(len(records), room)
	s.queue = append(s.queue, records[:taken]...)
	s.state.Dropped += int64(len(records) - taken)
	full := len(s.queue) >= batchLen
	s.mu.Unlock()
	if full {
		select {
		case s.some <- struct{}{}:
		default:
		}
	}
}

// Dropped counts the records that could not be written.
func (s *Store) Dropped() int64 { return s.State().Dropped }

// State is how the store does now.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state
	state.Waiting = len(s.queue)
	if waited := s.waited(); waited >= s.opts.patience {
		state.Problem = fmt.Sprintf("the disk has not answered for %v", waited.Round(time.Second))
	}
	return state
}

// waited is how long the writer has waited for the file.
func (s *Store) waited() time.Duration {
	if s.atFile.IsZero() {
		return 0
	}
	return time.Since(s.atFile)
}

// Close writes what waits and ends the writing, within some seconds.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	s.mu.Unlock()
	if first {
		close(s.stop)
	}
	select {
	case <-s.stopped:
		return nil
	case <-time.After(s.opts.closing + 2*time.Second):
		// The disk holds the writer up, and nobody else is to wait for it.
		return errors.New("the history could not be closed in time; records may be lost")
	}
}

// problem notes why nothing is written.
func (s *Store) problem(text, remedy string) {
	s.mu.Lock()
	s.state.Problem, s.state.Remedy = text, remedy
	s.mu.Unlock()
}

// size is that of the file and what belongs to it.
func size(path string) (file, wal int64) {
	if info, err := os.Stat(path); err == nil {
		file = info.Size()
	}
	if info, err := os.Stat(path + "-wal"); err == nil {
		wal = info.Size()
	}
	return file, wal
}

// alive is whether there is such a process.
func alive(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

var background = context.Background()
