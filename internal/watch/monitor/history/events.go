package history

import (
	"context"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
)

const (
	// maxEvents bounds the changes of state in a file; the oldest go.
	maxEvents = 10000
	// maxEventsWaiting bounds those that wait for the file. Further ones are left out of it.
	maxEventsWaiting = 1000
)

// eventSchema adds changes of state to a file, also to one that was begun without them.
const eventSchema = `
CREATE TABLE IF NOT EXISTS events (
	id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL,
	kind TEXT NOT NULL, tunnel TEXT NOT NULL, subject TEXT NOT NULL,
	from_state TEXT NOT NULL, to_state TEXT NOT NULL, reason TEXT NOT NULL
);
`

// AddEvent takes a change of state and never waits for the disk.
func (s *Store) AddEvent(e flow.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing && len(s.events) < maxEventsWaiting {
		s.events = append(s.events, e)
	}
}

// eventsWaiting are those to be written next.
func (w *writer) eventsWaiting() []flow.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// eventsWritten forgets the first n.
func (w *writer) eventsWritten(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = slices.Delete(w.events, 0, n)
}

// insertEvents writes changes of state within a transaction.
func (w *writer) insertEvents(all []flow.Event) error {
	for _, e := range all {
		if _, err := w.db.conn.ExecContext(background, "INSERT INTO events (at_ms, kind, tunnel, subject, from_state, to_state, reason) VALUES (?, ?, ?, ?, ?, ?, ?)",
			e.At.UnixMilli(), e.Kind, e.Tunnel, e.Subject, e.From, e.To, e.Reason); err != nil {
			return err
		}
	}
	if len(all) == 0 {
		return nil
	}
	_, err := w.db.conn.ExecContext(background, "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", maxEvents)
	return err
}

// Events returns the latest changes of state, at most as many, the oldest first.
func (r *Reader) Events(ctx context.Context, limit int) (all []flow.Event, err error) {
	pool, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := pool.QueryContext(ctx, "SELECT at_ms, kind, tunnel, subject, from_state, to_state, reason FROM events ORDER BY id DESC LIMIT ?", limit)
	if err != nil {
		return nil, classify(err)
	}
	defer rows.Close()
	for rows.Next() {
		var e flow.Event
		var ms int64
		if err := rows.Scan(&ms, &e.Kind, &e.Tunnel, &e.Subject, &e.From, &e.To, &e.Reason); err != nil {
			return nil, classify(err)
		}
		e.At = time.UnixMilli(ms)
		all = append(all, e)
	}
	slices.Reverse(all)
	return all, classify(rows.Err())
}
