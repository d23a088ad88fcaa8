package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"longhaul/internal/watch/monitor"
)

// The file is the spool of what leaves the relay. Each sink has a cursor in it:
// the last record that the sink has. Records that a sink lacks are not let go of
// for their age, only for the size.

// spoolSchema adds cursors to a file, also to one that was begun without them.
// A record's epoch is that of the last row whose first ID is not above its own, and
// never changes. Each opening for writing begins an epoch: a host that loses its
// power may lose records that a sink has already, and then gives their IDs to other
// ones. A release without epochs that writes in between continues the last one. The
// first row, that of IDs from -1, stays, and tells the file from every other one.
const spoolSchema = `
CREATE TABLE IF NOT EXISTS epochs (first INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS cursors (sink TEXT PRIMARY KEY, last INTEGER NOT NULL, lost INTEGER NOT NULL) WITHOUT ROWID;
`

// Cursor is how far a sink is in a file.
type Cursor struct {
	File int64 // as [Spool] has it: IDs of another file say nothing of this one
	Last int64 // ID of the last record that the sink has; 0: none
	Lost int64 // records that were let go of before the sink had them
}

// SetSinks names the sinks for which records are kept.
func (s *Store) SetSinks(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sinks = slices.Clone(names)
}

// Shipped notes how far a sink is. It never waits for the disk: what a kill
// leaves unwritten is shipped again. A cursor of another file is forgotten.
func (s *Store) Shipped(sink string, c Cursor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shipped == nil {
		s.shipped = map[string]Cursor{}
	}
	s.shipped[sink] = c
}

// Cursor is that of a sink as [Store.Shipped] had it, unless that is in the file: then [Reader.Cursor] has it.
func (s *Store) Cursor(sink string) Cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shipped[sink]
}

// SaveCursors returns when the cursors are in the file, where another process finds them, or with the
// error of the context.
func (s *Store) SaveCursors(ctx context.Context) error {
	s.mu.Lock()
	saved := s.saved
	if saved == nil && len(s.shipped) > 0 {
		saved = make(chan struct{})
		s.saved = saved
	}
	s.mu.Unlock()
	if saved == nil {
		return nil
	}
	select {
	case s.some <- struct{}{}: // at once
	default:
	}
	select {
	case <-saved:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Changed is closed when records have been written since the call.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// tellChanged wakes who waits for records.
func (s *Store) tellChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// beginEpoch begins one with the next record, and forgets those of records that are gone. It returns
// the first one, which is the file's.
func beginEpoch(conn *sql.Conn) (file int64, err error) {
	const last = "SELECT max(last_id, (SELECT ifnull(max(id), 0) FROM records)) FROM state"
	for _, statement := range []struct {
		text string
		args []any
	}{
		{"INSERT INTO epochs SELECT -1, ? WHERE NOT EXISTS (SELECT 1 FROM epochs)", []any{newEpoch()}},
		{"INSERT OR REPLACE INTO epochs SELECT (" + last + ") + 1, ?", []any{newEpoch()}},
		{"DELETE FROM epochs WHERE first > -1 AND first < (SELECT max(first) FROM epochs WHERE first <= (SELECT min(id) FROM records))", nil},
	} {
		if _, err := conn.ExecContext(background, statement.text, statement.args...); err != nil {
			return 0, err
		}
	}
	err = conn.QueryRowContext(background, "SELECT epoch FROM epochs ORDER BY first LIMIT 1").Scan(&file)
	return file, err
}

// newEpoch is positive: not every database has unsigned numbers.
func newEpoch() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// cursorsWaiting are those to be written next.
func (w *writer) cursorsWaiting() map[string]Cursor {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.shipped)
}

// cursorsWritten forgets those that have not moved on since.
func (w *writer) cursorsWritten(written map[string]Cursor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for sink, c := range written {
		if w.shipped[sink] == c {
			delete(w.shipped, sink)
		}
	}
	if len(w.shipped) == 0 && w.saved != nil {
		close(w.saved)
		w.saved = nil
	}
}

// writeCursors writes cursors within a transaction. None goes back: a process before may be ahead.
func (w *writer) writeCursors(all map[string]Cursor) error {
	for sink, c := range all {
		if c.File != w.db.epoch {
			continue
		}
		if _, err := w.db.conn.ExecContext(background, `INSERT INTO cursors (sink, last, lost) VALUES (?1, ?2, ?3)
			ON CONFLICT DO UPDATE SET last = max(last, ?2), lost = max(lost, ?3)`, sink, c.Last, c.Lost); err != nil {
			return err
		}
	}
	return nil
}

// shippedUpTo is the ID up to which every sink has the records.
func (w *writer) shippedUpTo() (int64, error) {
	w.mu.Lock()
	sinks := slices.Clone(w.sinks)
	w.mu.Unlock()
	least := int64(math.MaxInt64)
	for _, sink := range sinks {
		var last int64
		err := w.db.conn.QueryRowContext(background, "SELECT last FROM cursors WHERE sink = ?", sink).Scan(&last)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return 0, err
		}
		least = min(least, last)
	}
	return least, nil
}

// Spooled is a record with the epoch of its ID.
type Spooled struct {
	monitor.Record
	Epoch int64
}

// Spool is what a sink lacks, as of one moment.
type Spool struct {
	Records []Spooled // the oldest first, as many as were asked for at most
	Lacking int64     // records behind the cursor that are kept
	Gone    int64     // records behind the cursor, and before the last one here, that are not kept any more
	Oldest  time.Time // end of the oldest one that is lacking; zero: none is
	File    int64     // that this file has and no other
	// After is the ID that was asked for, or an earlier one: where the file has lost its end, IDs up to
	// that one belong to other records now.
	After int64
}

// Cursor is that of a sink. One that never had a record begins before the oldest that is kept.
func (r *Reader) Cursor(ctx context.Context, sink string) (c Cursor, err error) {
	err = r.look(ctx, func(v *view) error {
		epochs, err := v.epochs()
		if err != nil {
			return err
		}
		c.File = epochs[0].epoch
		err = v.tx.QueryRowContext(ctx, "SELECT last, lost FROM cursors WHERE sink = ?", sink).Scan(&c.Last, &c.Lost)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		var first int64
		err = v.tx.QueryRowContext(ctx, "SELECT ifnull((SELECT min(id) FROM records), (SELECT last_id FROM state) + 1)").Scan(&first)
		c.Last = first - 1
		return err
	})
	return c, err
}

// Spool is what a sink lacks that has every record up to an ID.
func (r *Reader) Spool(ctx context.Context, after int64, limit int) (Spool, error) {
	var s Spool
	err := r.look(ctx, func(v *view) error {
		var first, last int64
		epochs, err := v.epochs()
		if err != nil {
			return err
		}
		err = v.tx.QueryRowContext(ctx, "SELECT max(last_id, ifnull((SELECT max(id) FROM records), 0)) FROM state").Scan(&last)
		if err != nil {
			return err
		}
		if after > last {
			after = max(min(last, epochs[len(epochs)-1].first-1), 0)
		}
		s.File, s.After = epochs[0].epoch, after
		err = v.tx.QueryRowContext(ctx, "SELECT ifnull((SELECT min(id) FROM records WHERE id > ?), 0)", after).Scan(&first)
		if err != nil {
			return err
		}
		if first == 0 {
			s.Gone = max(last-after, 0)
			return nil
		}
		s.Gone, s.Lacking = first-after-1, last-first+1
		s.Records = make([]Spooled, 0, min(int64(limit), s.Lacking))
		if limit == 0 { // the oldest one alone, for its time
			return v.eachRecord("WHERE id = ?", []any{first}, func(r *monitor.Record, _ *facts) error {
				s.Oldest = r.End
				return nil
			})
		}
		return v.eachRecord("WHERE id > ? ORDER BY id LIMIT ?", []any{after, limit}, func(r *monitor.Record, _ *facts) error {
			if s.Oldest.IsZero() {
				s.Oldest = r.End
			}
			s.Records = append(s.Records, Spooled{*r, epochs.of(r.ID)})
			s.Gone = r.ID - after - int64(len(s.Records)) // also those between
			return nil
		})
	})
	return s, err
}

// Epoch is a stretch of IDs, of records that are kept.
type Epoch struct {
	Epoch       int64
	First, Last int64
}

// Epochs are those of the records that are kept, the oldest first.
func (r *Reader) Epochs(ctx context.Context) (kept []Epoch, err error) {
	err = r.look(ctx, func(v *view) error {
		all, err := v.epochs()
		if err != nil {
			return err
		}
		var first, last int64
		if err := v.tx.QueryRowContext(ctx, "SELECT ifnull(min(id), 0), ifnull(max(id), -1) FROM records").Scan(&first, &last); err != nil {
			return err
		}
		for i, e := range all {
			k := Epoch{e.epoch, max(e.first, first), last}
			if i+1 < len(all) {
				k.Last = min(last, all[i+1].first-1)
			}
			if k.First <= k.Last {
				kept = append(kept, k)
			}
		}
		return nil
	})
	return kept, err
}

// epoch is a stretch of IDs.
type epoch struct{ first, epoch int64 }

// epochs are in the order of their IDs.
type epochs []epoch

func (v *view) epochs() (all epochs, err error) {
	err = v.each("SELECT first, epoch FROM epochs ORDER BY first", nil, func(row scanner) error {
		var e epoch
		err := row.Scan(&e.first, &e.epoch)
		all = append(all, e)
		return err
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%w: no epoch is in it", ErrUnsound)
	}
	return all, err
}

// of is the epoch of a record.
func (all epochs) of(id int64) int64 {
	at, exact := slices.BinarySearchFunc(all, id, func(e epoch, id int64) int { return int(min(max(e.first-id, -1), 1)) })
	if !exact {
		at--
	}
	return all[max(at, 0)].epoch
}
