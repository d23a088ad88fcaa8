package ship

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// shipper moves records to one sink.
type shipper struct {
	target archive.Target
	store  *history.Store
	opts   Options
	log    *slog.Logger
	cancel context.CancelFunc
	ended  chan struct{}

	mu     sync.Mutex
	state  State
	oldest time.Time // end of the oldest record that waits

	// Of the goroutine.
	reader   *history.Reader
	file     int64        // the history's, by [history.Spool]
	sink     archive.Sink // nil: there is none
	cursor   history.Cursor
	pause    time.Duration
	reported time.Time
}

func newShipper(store *history.Store, t archive.Target, opts Options) *shipper {
	ctx, cancel := context.WithCancel(context.Background())
	s := &shipper{
		target: t, store: store, opts: opts, log: opts.Log.With("sink", t.Label()), cancel: cancel, ended: make(chan struct{}),
		state: State{Sink: t.Label(), Kind: t.Kind},
	}
	go s.run(ctx)
	return s
}

// now is the state as it is now.
func (s *shipper) now() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state
	if !s.oldest.IsZero() {
		state.Lag = units.Seconds(max(time.Since(s.oldest), 0))
	}
	return state
}

func (s *shipper) run(ctx context.Context) {
	defer close(s.ended)
	defer s.letGo()
	if !s.begin(ctx) {
		return
	}
	defer s.reader.Close()
	for ctx.Err() == nil {
		changed := s.store.Changed() // before the look, so that nothing is missed
		begun := time.Now()
		delivered, err := s.step(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.trouble(err)
			if !s.waitFor(ctx, s.pause) {
				return
			}
		case delivered == batchLen: // there is more
		case delivered > 0:
			sleep(ctx, batchInterval-time.Since(begun))
		default:
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

// begin waits until there is a history; it says itself what is wrong with its file.
func (s *shipper) begin(ctx context.Context) bool {
	for {
		reader, err := history.OpenReader(s.store.Path())
		if err == nil {
			if _, err = reader.Cursor(ctx, s.target.Label()); err == nil {
				s.reader = reader
				return true
			}
			reader.Close()
		}
		if !sleep(ctx, firstRetry) {
			return false
		}
	}
}

// step delivers what waits, up to a batch, and returns how many records that was.
func (s *shipper) step(ctx context.Context) (int, error) {
	spool, err := s.reader.Spool(ctx, s.cursor.Last, batchLen)
	if err == nil && spool.File != s.file {
		// The first look, or the file was not sound and another one has taken its place.
		lost := s.cursor.Lost
		if s.cursor, err = s.reader.Cursor(ctx, s.target.Label()); err == nil {
			s.cursor.Lost, s.file = max(s.cursor.Lost, lost), spool.File
			s.store.Shipped(s.target.Label(), s.cursor) // what is there is kept from now on
			spool, err = s.reader.Spool(ctx, s.cursor.Last, batchLen)
		}
	}
	if err != nil {
		return 0, err
	}
	s.look(spool)
	if len(spool.Records) == 0 {
		return 0, nil
	}
	if s.sink == nil {
		if s.sink, err = s.opts.Open(s.target); err != nil {
			return 0, err
		}
	}
	deliver, cancel := context.WithTimeout(ctx, deliverPatience)
	defer cancel()
	if err := s.sink.Deliver(deliver, s.rows(spool.Records)); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = remedy.New(errors.New("the sink has not answered for "+deliverPatience.String()), "see whether it is up and reachable")
		}
		return 0, err
	}
	s.moved(spool)
	return len(spool.Records), nil
}

// rows are records as the sink gets them.
func (s *shipper) rows(records []history.Spooled) []archive.Row {
	rows := make([]archive.Row, len(records))
	for i, r := range records {
		if r.Relay == "" {
			r.Relay = s.opts.Relay
		}
		rows[i] = archive.Row{Record: r.Record, Epoch: r.Epoch, OwnSite: s.opts.Site, Clients: s.target.Clients}
	}
	return rows
}

// look notes what waits.
func (s *shipper) look(spool history.Spool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Waiting, s.state.Lost, s.oldest = spool.Lacking, s.cursor.Lost+spool.Gone, spool.Oldest
}

// moved notes a delivery.
func (s *shipper) moved(spool history.Spool) {
	n := len(spool.Records)
	s.cursor = history.Cursor{Last: spool.Records[n-1].ID, Lost: s.cursor.Lost + spool.Gone}
	s.store.Shipped(s.target.Label(), s.cursor)
	s.mu.Lock()
	s.state.Shipped += int64(n)
	s.state.Waiting -= int64(n)
	s.state.LastSent = time.Now().UTC()
	was := s.state.Problem
	s.state.Problem, s.state.Remedy = "", ""
	if s.state.Waiting <= 0 {
		s.oldest = time.Time{}
	}
	waiting, lost := s.state.Waiting, s.state.Lost
	s.mu.Unlock()
	s.pause = 0
	if was != "" {
		s.log.Info("the sink takes records again", "records_waiting", waiting, "records_lost", lost)
		s.reported = time.Time{}
	}
}

// trouble notes why nothing is delivered.
func (s *shipper) trouble(err error) {
	s.letGo()
	s.pause = min(max(2*s.pause, firstRetry), lastRetry)
	s.mu.Lock()
	s.state.Problem, s.state.Remedy = err.Error(), remedy.Of(err)
	waiting, lost := s.state.Waiting, s.state.Lost
	s.mu.Unlock()
	if s.reported.IsZero() || time.Since(s.reported) >= reportInterval {
		s.reported = time.Now()
		s.log.Error("the sink does not take records, they wait in the history", "error", err, "remedy", remedy.Of(err),
			"records_waiting", waiting, "records_lost", lost)
	}
}

// waitFor waits and keeps the lag known meanwhile; false: the shipper is to end.
func (s *shipper) waitFor(ctx context.Context, d time.Duration) bool {
	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		if left <= 0 {
			return true
		}
		if !sleep(ctx, min(left, lookInterval)) {
			return false
		}
		if spool, err := s.reader.Spool(ctx, s.cursor.Last, 0); err == nil {
			s.look(spool)
		}
	}
}

// letGo closes the sink.
func (s *shipper) letGo() {
	if s.sink != nil {
		_ = s.sink.Close() // what it had not taken is delivered again
		s.sink = nil
	}
}
