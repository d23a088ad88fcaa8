package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

// ErrNoRecord says that there is no record with an ID.
var ErrNoRecord = errors.New("there is no such record")

// Reader reads a history, whether or not a relay writes it. It may be used by
// several goroutines.
type Reader struct {
	path string

	mu   sync.Mutex // guards what follows
	pool *sql.DB
	file fs.FileInfo
}

// OpenReader looks at a history. That there is no file yet is an error of the
// questions, not of this.
func OpenReader(path string) (*Reader, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	return &Reader{path: path}, nil
}

// ErrDisplaced says that records of the period have made room for newer ones, and that the
// hourly summaries, which are left, do not tell relays, sites and clients apart.
var ErrDisplaced = errors.New("records of this period have made room for newer ones, and hourly summaries have no relays, sites and clients")

// Close ends the reading.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pool == nil {
		return nil
	}
	err := r.pool.Close()
	r.pool, r.file = nil, nil
	return err
}

// Path is the file's.
func (r *Reader) Path() string { return r.path }

// Name is the path.
func (r *Reader) Name() string { return r.path }

// readers is how many questions are answered at once.
const readers = 2

// open gives a pool of connections to the file that is there now.
func (r *Reader) open(ctx context.Context) (*sql.DB, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	file, err := os.Stat(r.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s", ErrNoFile, r.path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %s", ErrForbidden, r.path)
	case err != nil:
		return nil, err
	}
	if r.pool != nil && os.SameFile(file, r.file) {
		return r.pool, nil
	}
	if r.pool != nil {
		r.pool.Close() // the file was set aside
		r.pool = nil
	}
	pool, err := openReadOnly(ctx, r.path)
	if err != nil {
		return nil, err
	}
	r.pool, r.file = pool, file
	return pool, nil
}

func openReadOnly(ctx context.Context, path string) (*sql.DB, error) {
	if err := readable(path); err != nil {
		return nil, err
	}
	// A file that nobody writes may lie where nothing may be written: the lock
	// file beside it cannot be made then, and is not needed.
	ways := []string{"", "&immutable=1"}
	if _, err := os.Stat(path + "-wal"); err == nil {
		ways = ways[:1]
	}
	var err error
	for _, way := range ways {
		var pool *sql.DB
		if pool, err = sql.Open("sqlite", dsn(path, "ro", 1000, "&_pragma=query_only(1)&_pragma=cache_size(-4000)"+way)); err != nil {
			return nil, err
		}
		pool.SetMaxOpenConns(readers)
		pool.SetConnMaxIdleTime(time.Minute)
		var conn *sql.Conn
		if conn, err = pool.Conn(ctx); err == nil {
			var version int
			version, err = fileVersion(ctx, conn)
			conn.Close()
			if err == nil && version == 0 {
				err = fmt.Errorf("%w: %s is empty", ErrNoFile, path)
			}
			if err == nil {
				return pool, nil
			}
		}
		pool.Close()
		if code := resultCode(err); code != sqliteCantOpen && code != sqliteReadonly {
			break
		}
	}
	switch resultCode(err) {
	case sqliteCantOpen, sqliteReadonly, sqliteAuth:
		return nil, fmt.Errorf("%w: %s: %w", ErrForbidden, path, err)
	}
	return nil, classify(err)
}

// readable asks the system, whose answer is clearer than SQLite's. The file is
// not opened: to close it again would end the locks of this process.
func readable(path string) error {
	for _, end := range []string{"", "-wal", "-shm"} {
		if err := access(path + end); errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: %s", ErrForbidden, path+end)
		}
	}
	return nil
}

// view is the history as it is at one moment.
type view struct {
	ctx   context.Context
	tx    *sql.Tx
	words map[int64]string
	ids   map[string]int64
	has   added
}

// look calls do with a view of the history.
func (r *Reader) look(ctx context.Context, do func(*view) error) error {
	pool, err := r.open(ctx)
	if err != nil {
		return err
	}
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return classify(err)
	}
	defer func() { _ = tx.Rollback() }()
	v := &view{ctx: ctx, tx: tx, words: map[int64]string{}, ids: map[string]int64{}}
	if v.has, err = addedTo(ctx, tx); err != nil {
		return classify(err)
	}
	err = v.each("SELECT id, word FROM words", nil, func(row scanner) error {
		var id int64
		var word string
		if err := row.Scan(&id, &word); err != nil {
			return err
		}
		v.words[id], v.ids[word] = word, id
		return nil
	})
	if err == nil {
		err = do(v)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return classify(err)
}

// each calls row with every row of an answer.
func (v *view) each(query string, args []any, row func(scanner) error) error {
	rows, err := v.tx.QueryContext(v.ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// facts calls visit with the facts of every record of a selection, which are
// valid until the next one.
func (v *view) facts(selection string, args []any, visit func(*facts)) error {
	rows, err := v.tx.QueryContext(v.ctx, "SELECT "+factColumns+" FROM records "+selection, args...)
	if err != nil {
		return err
	}
	return errors.Join(eachFact(rows, visit), rows.Close())
}

// eachRecord calls visit with every record of a selection.
func (v *view) eachRecord(selection string, args []any, visit func(*monitor.Record, *facts) error) error {
	r := newRowReader(recordLen)
	return v.each("SELECT "+columnsOf(v.has)+" FROM records "+selection, args, func(row scanner) error {
		if err := r.scan(row); err != nil {
			return err
		}
		record, f, err := readRecord(r, v.words)
		if err != nil {
			return err
		}
		return visit(&record, &f)
	})
}

// id of a word; -1, which is nobody's, if it does not occur.
func (v *view) id(word string) int64 {
	if id, known := v.ids[word]; known {
		return id
	}
	return -1
}

// Get is the record with an ID.
func (r *Reader) Get(ctx context.Context, id int64) (monitor.Record, error) {
	var record monitor.Record
	err := r.look(ctx, func(v *view) error {
		err := v.eachRecord("WHERE id = ?", []any{id}, func(r *monitor.Record, _ *facts) error {
			record = *r
			return nil
		})
		if err == nil && record.ID == 0 {
			err = fmt.Errorf("%w: %d", ErrNoRecord, id)
		}
		return err
	})
	return record, err
}

// findSlack is by how much a record's times may disagree: they are kept in whole
// milliseconds, and its length is that of another clock.
const findSlack = 100 * time.Millisecond

// Find is the record of the flow with an ID that began at a time, or
// [ErrNoRecord]: IDs of flows begin anew with each process. A flow in whose life
// the clock was set is not found.
func (r *Reader) Find(ctx context.Context, flow flow.ID, start time.Time) (monitor.Record, error) {
	var found monitor.Record
	err := r.look(ctx, func(v *view) error {
		var near []candidate
		begun := start.UnixMilli()
		c := choice{span: span{begun, math.MaxInt64}}
		err := v.scan(c, func(f *facts) {
			if off := f.endMs - f.elapsedUs/1000 - begun; max(off, -off) <= findSlack.Milliseconds() {
				near = append(near, candidate{id: f.id})
			}
		}, nil)
		if err != nil {
			return err
		}
		records, err := v.records(near)
		if err != nil {
			return err
		}
		for i := range records {
			off := records[i].Start.Sub(start)
			if records[i].Flow == flow && max(off, -off) <= findSlack {
				found = records[i]
			}
		}
		if found.ID == 0 {
			return fmt.Errorf("%w: flow %d of %s", ErrNoRecord, flow, start.Format(time.RFC3339))
		}
		return nil
	})
	return found, err
}

// factsFrom are those of the first record with an ID or a later one, or
// [ErrNoRecord].
func (v *view) factsFrom(id int64) (first facts, err error) {
	err = v.facts("WHERE id >= ? ORDER BY id LIMIT 1", []any{id}, func(f *facts) { first = *f })
	if err == nil && first.id == 0 {
		err = fmt.Errorf("%w: %d", ErrNoRecord, id)
	}
	return first, err
}

// Extent is what the history holds.
func (r *Reader) Extent(ctx context.Context) (Extent, error) {
	var e Extent
	err := r.look(ctx, func(v *view) error {
		var segments, tail int64
		var oldest, newest, tailOldest, tailNewest, hours *int64
		err := v.tx.QueryRowContext(ctx, `SELECT ifnull(sum(records), 0), min(min_end_ms), max(max_end_ms), (SELECT min(at) FROM hours) FROM segments`).Scan(&segments, &oldest, &newest, &hours)
		if err != nil {
			return err
		}
		err = v.tx.QueryRowContext(ctx, `SELECT count(*), min(end_ms), max(end_ms) FROM records
			WHERE id > (SELECT ifnull(max(last), 0) FROM segments)`).Scan(&tail, &tailOldest, &tailNewest)
		if err != nil {
			return err
		}
		e.Records = segments + tail
		for _, at := range []*int64{oldest, tailOldest} {
			if at != nil && (e.Oldest.IsZero() || *at < e.Oldest.UnixMilli()) {
				e.Oldest = time.UnixMilli(*at).UTC()
			}
		}
		for _, at := range []*int64{newest, tailNewest} {
			if at != nil && (e.Newest.IsZero() || *at > e.Newest.UnixMilli()) {
				e.Newest = time.UnixMilli(*at).UTC()
			}
		}
		if hours != nil {
			e.SummariesSince = time.Unix(*hours, 0).UTC()
		}
		e.Tunnels = []string{}
		return v.each("SELECT DISTINCT tunnel FROM hours", nil, func(row scanner) error {
			var id int64
			if err := row.Scan(&id); err != nil {
				return err
			}
			e.Tunnels = append(e.Tunnels, v.words[id])
			return nil
		})
	})
	file, wal := size(r.path)
	e.Bytes = file + wal
	return e, err
}

// Health is what a history holds, and whether its file is sound.
type Health struct {
	File string `json:"file"`
	Extent
	Sound bool   `json:"sound"`
	Error string `json:"error,omitempty"` // empty if the file is sound
}

// Health looks through the whole file for damage, which takes seconds. The error,
// which the result has as text, is [ErrUnsound] if there is any.
func (r *Reader) Health(ctx context.Context) (Health, error) {
	h := Health{File: r.Path()}
	var err error
	if h.Extent, err = r.Extent(ctx); err == nil {
		err = Check(ctx, r.Path())
	}
	if h.Sound = err == nil; err != nil {
		h.Error = err.Error()
	}
	return h, err
}

// Check looks through the whole file for damage, which takes seconds. Its error
// is [ErrUnsound] if there is any.
func Check(ctx context.Context, path string) error {
	pool, err := openReadOnly(ctx, path)
	if err != nil {
		return err
	}
	defer pool.Close()
	var verdict string
	if err := pool.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return classify(err)
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", ErrUnsound, verdict)
	}
	return classify(checkRecords(ctx, pool))
}

// checkAtOnce are the segments that one transaction checks. SQLite's log cannot be
// emptied while it lasts, some tenths of a second.
const checkAtOnce = 64

// checkRecords reads every record and every digest, and compares the two.
func checkRecords(ctx context.Context, pool *sql.DB) error {
	var above int64
	for more := true; more; {
		tx, err := pool.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		v := &view{ctx: ctx, tx: tx}
		if v.has, err = addedTo(ctx, tx); err == nil {
			above, more, err = v.checkSegments(above)
		}
		if err = errors.Join(err, tx.Rollback()); err != nil {
			return err
		}
	}
	return nil
}

// checkSegments checks some segments above an ID, and the records after the last
// segment if there are no more. It returns the ID that it has reached.
func (v *view) checkSegments(above int64) (reached int64, more bool, err error) {
	var inRows, inDigest []facts
	readRows := func(last int64) error {
		inRows = inRows[:0]
		args := []any{above, last}
		err := v.eachRecord("WHERE id > ? AND id <= ? ORDER BY id", args, func(_ *monitor.Record, f *facts) error {
			inRows = append(inRows, *f)
			return nil
		})
		above = last
		return err
	}
	segments := 0
	selection := "SELECT last, digest FROM segments WHERE last > ? ORDER BY last LIMIT ?"
	err = v.each(selection, []any{above, checkAtOnce}, func(row scanner) error {
		segments++
		var last int64
		var digest sql.RawBytes
		if err := row.Scan(&last, &digest); err != nil {
			return err
		}
		inDigest = inDigest[:0]
		all := func(group) bool { return true }
		if err := readDigest(digest, all, func(f *facts) { inDigest = append(inDigest, *f) }); err != nil {
			return err
		}
		if err := readRows(last); err != nil {
			return err
		}
		if !slices.Equal(inRows, inDigest) {
			return errBlob
		}
		return nil
	})
	if err == nil && segments < checkAtOnce {
		err = readRows(math.MaxInt64)
	}
	return above, segments == checkAtOnce, err
}
