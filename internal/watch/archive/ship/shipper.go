package ship

import (
	"context"
	"errors"
	"fmt"
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
	site   func() string
	log    *slog.Logger
	stop   context.CancelFunc
	ended  chan struct{}

	mu     sync.Mutex
	state  State
	oldest time.Time // end of the oldest record that waits

	// Of the goroutine.
	reader   *history.Reader
	outlet   outlet
	cursor   history.Cursor
	batch    int // records to be delivered at once
	pause    time.Duration
	reported time.Time
}

// begin begins a shipper, which waits for the end of those of its name before it.
func (all *Shippers) begin(t archive.Target, after []*shipper) *shipper {
	ctx, stop := context.WithCancel(context.Background())
	opts := all.opts
	s := &shipper{
		target: t, store: all.store, opts: opts, site: all.siteNow, log: opts.Log.With("sink", t.Label()),
		stop: stop, ended: make(chan struct{}),
		state:  State{Sink: t.Label(), Kind: t.Kind},
		outlet: outlet{open: func() (archive.Sink, error) { return opts.Open(t) }},
		batch:  MaxBatch,
	}
	go func() {
		defer close(s.ended)
		for _, old := range after {
			<-old.ended
		}
		s.run(ctx)
	}()
	return s
}

func (s *shipper) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
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

// run ships until stop ends.
func (s *shipper) run(stop context.Context) {
	reader, err := history.OpenReader(s.store.Path())
	if err != nil {
		s.trouble(err) // the store has the same path
		return
	}
	s.reader = reader
	defer reader.Close()
	defer s.outlet.close()
	began := time.Now()
	for stop.Err() == nil {
		changed := s.store.Changed() // before the look, so that nothing is missed
		begun := time.Now()
		delivered, err := s.step(stop)
		took := time.Since(begun)
		switch {
		case stop.Err() != nil:
			return
		case err != nil && s.cursor.File == 0 && time.Since(began) < startPatience: // the store is making the file
			sleep(stop, startInterval)
		case err != nil:
			s.trouble(err)
			s.waitFor(stop, s.pause)
		case delivered > 0 && s.now().Waiting > 0: // there is more
			sleep(stop, min(restShare*took, lastRest))
		case delivered > 0:
			sleep(stop, batchInterval-took)
		default:
			others := time.NewTimer(othersInterval)
			select {
			case <-changed:
			case <-others.C:
			case <-stop.Done():
			}
			others.Stop()
		}
	}
}

// step delivers what waits, up to a batch, and returns how many records that was.
func (s *shipper) step(stop context.Context) (int, error) {
	spool, err := s.read(stop, s.batch)
	if err != nil {
		return 0, unreadable(err)
	}
	if len(spool.Records) == 0 {
		s.well()
		return 0, nil
	}
	if stop.Err() != nil {
		return 0, nil // a successor may ship already
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.patience)
	defer cancel()
	// The end of the shipping leaves a delivery some time: cut off, its rows would go again.
	defer context.AfterFunc(stop, func() { time.AfterFunc(stopPatience, cancel) })()
	if back, err := s.resume(ctx); err != nil {
		return 0, err
	} else if back {
		if spool, err = s.read(stop, s.batch); err != nil {
			return 0, unreadable(err)
		}
	}
	n := len(spool.Records)
	if err := s.outlet.deliver(ctx, s.rows(spool.Records)); err != nil {
		if time.Since(begun) >= s.opts.patience/2 {
			s.batch = max(s.batch/4, minBatch) // the path or the sink may be slow, and have bounds of its own
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, errHangs) {
			err = remedy.New(errors.New("the sink has not taken the records within "+s.opts.patience.String()), "see whether it is up and reachable")
		}
		return 0, err
	}
	if time.Since(begun) < s.opts.patience/4 { // twice as many are well within it too
		s.batch = min(2*s.batch, MaxBatch)
	}
	s.moved(spool)
	return n, nil
}

func unreadable(err error) error {
	if errors.Is(err, history.ErrUnsound) {
		err = remedy.New(err, "see longhaul history check; without the damage: move the file away, and the relay begins a new one")
	}
	return fmt.Errorf("cannot read the history: %w", err)
}

// resume opens the sink where it is not open. Where its place has lost records since, it moves the
// cursor back to the last one before them.
func (s *shipper) resume(ctx context.Context) (back bool, err error) {
	if s.outlet.isOpen() {
		return false, nil
	}
	epochs, err := s.reader.Epochs(ctx)
	if err != nil {
		return false, unreadable(err)
	}
	has, err := s.outlet.begin(ctx, epochs)
	if err != nil || has == nil {
		return false, err
	}
	for _, e := range epochs {
		last, some := has[e.Epoch]
		if !some {
			last = e.First - 1
		}
		if last < min(e.Last, s.cursor.Last) {
			s.log.Warn("the sink has lost records, they are shipped again", "records", s.cursor.Last-last)
			s.cursor.Last = last
			return true, nil
		}
	}
	return false, nil
}

// read returns what the sink lacks, with records up to a limit, and notes how much that is.
func (s *shipper) read(ctx context.Context, limit int) (history.Spool, error) {
	for {
		if s.cursor.File == 0 {
			if err := s.find(ctx); err != nil {
				return history.Spool{}, err
			}
		}
		spool, err := s.reader.Spool(ctx, s.cursor.Last, limit)
		if err != nil {
			return spool, err
		}
		if spool.File == s.cursor.File {
			if spool.After < s.cursor.Last {
				s.log.Warn("the history has lost its end, its newest records are shipped again", "file", s.store.Path())
				s.cursor.Last = spool.After
			}
			s.look(spool)
			return spool, nil
		}
		// The file was not sound or was taken away, and another one is in its place.
		s.mu.Lock()
		s.cursor = history.Cursor{Lost: s.state.Lost + s.state.Waiting}
		s.state.Waiting = 0
		s.mu.Unlock()
	}
}

// find finds the sink's cursor in the file, or begins one.
func (s *shipper) find(ctx context.Context) error {
	unwritten := s.store.Cursor(s.target.Label()) // before the file's: it may be written meanwhile
	c, err := s.reader.Cursor(ctx, s.target.Label())
	if err != nil {
		return err
	}
	if unwritten.File == c.File {
		c.Last, c.Lost = max(c.Last, unwritten.Last), max(c.Lost, unwritten.Lost)
	}
	c.Lost = max(c.Lost, s.cursor.Lost)
	s.cursor = c
	s.store.Shipped(s.target.Label(), c) // what is there is kept from now on
	return nil
}

// rows are records as the sink gets them.
func (s *shipper) rows(records []history.Spooled) []archive.Row {
	rows, site := make([]archive.Row, len(records)), s.site()
	for i := range records {
		rows[i] = archive.Row{Record: records[i].Record, Epoch: records[i].Epoch, OwnSite: site, Clients: s.target.Clients}
		if rows[i].Relay == "" {
			rows[i].Relay = s.opts.Relay
		}
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
	s.cursor = history.Cursor{File: spool.File, Last: spool.Records[n-1].ID, Lost: s.cursor.Lost + spool.Gone}
	s.store.Shipped(s.target.Label(), s.cursor)
	s.mu.Lock()
	s.state.Shipped += int64(n)
	s.state.Waiting -= int64(n)
	s.state.LastSent = time.Now().UTC()
	if s.state.Waiting <= 0 {
		s.state.Waiting, s.oldest = 0, time.Time{}
	}
	s.mu.Unlock()
	s.well()
}

// well notes that nothing keeps records from the sink.
func (s *shipper) well() {
	s.mu.Lock()
	was := s.state.Problem
	s.state.Problem, s.state.Remedy = "", ""
	waiting, lost := s.state.Waiting, s.state.Lost
	s.mu.Unlock()
	s.pause = 0
	if was != "" {
		s.log.Info("records are shipped again", "records_waiting", waiting, "records_lost", lost)
		s.reported = time.Time{}
	}
}

// trouble notes why nothing is delivered.
func (s *shipper) trouble(err error) {
	s.outlet.close()
	s.pause = min(max(2*s.pause, firstRetry), lastRetry)
	s.mu.Lock()
	s.state.Problem, s.state.Remedy = err.Error(), remedy.Of(err)
	waiting, lost := s.state.Waiting, s.state.Lost
	s.mu.Unlock()
	if s.reported.IsZero() || time.Since(s.reported) >= reportInterval {
		s.reported = time.Now()
		s.log.Error("records are not shipped, they wait in the history", "error", err, "remedy", remedy.Of(err),
			"records_waiting", waiting, "records_lost", lost)
	}
}

// waitFor waits and keeps the lag known meanwhile.
func (s *shipper) waitFor(stop context.Context, d time.Duration) {
	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		if left <= 0 || !sleep(stop, min(left, lookInterval)) {
			return
		}
		_, _ = s.read(stop, 0) // an error of the file comes again in the next step
	}
}
