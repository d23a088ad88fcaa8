package history

import (
	"errors"
	"fmt"
	"time"
)

const (
	// reserve is what is left of the size for SQLite's log beside the file, of 4
	// MiB and a batch, and for a batch before room is made for it.
	reserve = 8 << 20
	// logBound is how long that log may be while somebody's reading keeps it
	// from being taken into the file. Together with the file it is what the
	// size may be exceeded by, for as long as that lasts.
	logBound = 16 << 20
	// pruneAtOnce are the segments that one transaction lets go.
	pruneAtOnce = 16
	// shrinkPages are the pages that are given back at once.
	shrinkPages = 1024
	slackPages  = 128 // by which the file may be larger than it should
	pageBytes   = 4096
	ageInterval = time.Minute
	// settle is how long the clock must have gone on without a step before age
	// lets anything go: a clock that is wrong for a while must not cost the history.
	settle = time.Hour
)

// errLogFull says that the log beside the file cannot be taken into it.
var errLogFull = fmt.Errorf("%w: somebody has been reading the history for so long that its log is full", ErrBusy)

// roomInLog sees that SQLite's log stays within its bound.
func (w *writer) roomInLog() error {
	if _, wal := size(w.path); wal <= logBound {
		return nil
	}
	var busy, pages, done int
	if err := w.db.conn.QueryRowContext(background, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &done); err != nil {
		return err
	}
	if _, wal := size(w.path); wal > logBound {
		return errLogFull
	}
	return nil
}

// pages are those in use, and those that are free.
func (w *writer) pages() (used, free int64, err error) {
	err = w.db.conn.QueryRowContext(background, "SELECT (SELECT * FROM pragma_page_count), (SELECT * FROM pragma_freelist_count)").Scan(&used, &free)
	return used - free, free, err
}

// prune lets the oldest go, whole segments at a time, until the rest fits.
func (w *writer) prune() error {
	maxBytes := w.maxBytes.Load()
	limit := (maxBytes - reserve) / pageBytes
	w.fits = 0
	for range pruneAtOnce {
		used, _, err := w.pages()
		if err != nil {
			return err
		}
		if used <= limit {
			w.fits = maxBytes
			break
		}
		gone, err := w.dropOldest()
		if err != nil {
			return err
		}
		if !gone {
			break
		}
	}
	return w.pruneByAge()
}

// dropOldest lets go of the first segment, or of the first records if there is
// none. The last segment's worth of records always stays.
func (w *writer) dropOldest() (bool, error) {
	result, err := w.db.conn.ExecContext(background, `DELETE FROM records WHERE id <= (SELECT min(last) FROM segments)`)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, err
	}
	result, err = w.db.conn.ExecContext(background, `DELETE FROM segments WHERE last = (SELECT min(last) FROM segments)`)
	if err != nil {
		return false, err
	}
	m, err := result.RowsAffected()
	return n+m > 0, err
}

// pruneByAge lets go of what is too old, once a minute.
func (w *writer) pruneByAge() error {
	now := w.opts.now()
	if !w.clock.due(now) {
		return nil
	}
	oldest := now.Add(-time.Duration(w.maxAge.Load()))
	shipped, err := w.shippedUpTo()
	if err != nil {
		return err
	}
	for range pruneAtOnce {
		var last int64
		err := w.db.conn.QueryRowContext(background, "SELECT ifnull((SELECT last FROM segments WHERE last = (SELECT min(last) FROM segments) AND last <= ? AND max_end_ms < ?), 0)",
			shipped, oldest.UnixMilli()).Scan(&last)
		if err != nil {
			return err
		}
		if last == 0 {
			w.clock.done()
			break
		}
		if _, err := w.dropOldest(); err != nil {
			return err
		}
	}
	w.segment.last = 0 // its records may go as well
	for _, statement := range []struct {
		text string
		args []any
	}{
		{"DELETE FROM records WHERE id > (SELECT ifnull(max(last), 0) FROM segments) AND id <= ? AND end_ms < ?", []any{shipped, oldest.UnixMilli()}},
		{"DELETE FROM hours WHERE at < ?", []any{floor(oldest.Unix(), hour)}},
		{"DELETE FROM minutes WHERE at < ?", []any{now.Add(-min(minutesKept, time.Duration(w.maxAge.Load()))).Unix()}},
		{"DELETE FROM minutes WHERE at < (SELECT at FROM minutes ORDER BY at DESC LIMIT 1 OFFSET ?)", []any{maxMinutes}},
	} {
		if _, err := w.db.conn.ExecContext(background, statement.text, statement.args...); err != nil {
			return err
		}
	}
	return nil
}

// shrink gives pages back to the disk where the file is larger than it may be,
// or mostly empty. Otherwise new records use them.
func (w *writer) shrink() error {
	used, free, err := w.pages()
	if err != nil {
		return err
	}
	limit := (w.maxBytes.Load() - reserve) / pageBytes
	if free == 0 || used+free <= limit+slackPages && free <= max(used/2, shrinkPages) {
		return nil
	}
	err = w.db.transact(background, func() error {
		rows, err := w.db.conn.QueryContext(background, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", shrinkPages))
		if err != nil {
			return err
		}
		for rows.Next() {
		}
		return errors.Join(rows.Err(), rows.Close())
	})
	if err != nil {
		return err
	}
	// The file becomes shorter when the log is taken into it. Who reads just now
	// may hold that up, until the next time.
	var busy, pages, done int
	return w.db.conn.QueryRowContext(background, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &done)
}

// clockWatch compares the clock that may be set with the one that cannot.
type clockWatch struct {
	began    time.Time // since when the clock has gone on without a step; monotonic
	wall     time.Time // as it was read last, without the monotonic clock
	at       time.Time // when
	lastDone time.Time // when age was looked at; monotonic
	settle   time.Duration
}

// maxDrift between two looks at the clock is not a step.
const maxDrift = 5 * time.Second

// due is whether it is time to let go of what is too old.
func (c *clockWatch) due(now time.Time) bool {
	at, wall := time.Now(), now.Round(0)
	if !c.wall.IsZero() {
		if drift := wall.Sub(c.wall) - at.Sub(c.at); drift > maxDrift || drift < -maxDrift {
			c.began = at
		}
	}
	c.wall, c.at = wall, at
	return at.Sub(c.began) >= c.settle && at.Sub(c.lastDone) >= ageInterval
}

func (c *clockWatch) done() { c.lastDone = time.Now() }
