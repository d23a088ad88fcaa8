package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
)

// schemaVersion is the file's user_version. A process writes and reads no file of
// another one. Version 1 had records in blobs of up to 128.
const schemaVersion = 2

// applicationID marks the file as longhaul's.
const applicationID = 0x6c68_686c

// suffix of every history file: a file that is not sound is moved away, and
// that must never happen to another program's.
const suffix = ".db"

// schema is what a new file begins with. IDs of records are never used twice.
// Names that end in _id are IDs of words. NULL is unknown or none. Programs of
// users read the view flows: columns may be added to it, not removed or renamed.
// Old releases of sqlite3 must read the file: STRICT tables need 3.37.
var schema = fmt.Sprintf(`
CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE);

CREATE TABLE records (
	id INTEGER PRIMARY KEY, -- in the order of writing
	end_ms INTEGER NOT NULL, elapsed_us INTEGER NOT NULL,
	tunnel_id INTEGER, cause_id INTEGER, reason_id INTEGER, ended_by_id INTEGER,
	bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL,
	client_bytes_sent INTEGER, client_bytes_retransmitted INTEGER,
	target_bytes_sent INTEGER, target_bytes_retransmitted INTEGER,
	start_ms INTEGER NOT NULL, flow INTEGER, hop_id INTEGER,
	client TEXT, client_port INTEGER, target TEXT, target_port INTEGER,
	error TEXT, cause_leg_id INTEGER, cause_permille INTEGER,
	client_side_id INTEGER, client_congestion_control_id INTEGER,
	client_rtt_us INTEGER, client_min_rtt_us INTEGER, client_retransmits INTEGER,
	target_side_id INTEGER, target_congestion_control_id INTEGER,
	target_rtt_us INTEGER, target_min_rtt_us INTEGER, target_retransmits INTEGER,
	goodput BLOB
);

CREATE TABLE segments (
	last INTEGER PRIMARY KEY,
	records INTEGER NOT NULL, min_end_ms INTEGER NOT NULL, max_end_ms INTEGER NOT NULL,
	max_elapsed_us INTEGER NOT NULL, max_bytes INTEGER NOT NULL, min_goodput_bps REAL NOT NULL, max_retransmitted REAL NOT NULL,
	digest BLOB NOT NULL
);

CREATE TABLE minutes (
	at INTEGER NOT NULL, tunnel INTEGER NOT NULL,
	bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL,
	PRIMARY KEY (at, tunnel)
) WITHOUT ROWID;

CREATE TABLE hours (
	at INTEGER NOT NULL, tunnel INTEGER NOT NULL,
	bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, ended BLOB,
	PRIMARY KEY (at, tunnel)
) WITHOUT ROWID;

CREATE TABLE state (last_id INTEGER NOT NULL, writer INTEGER NOT NULL); -- a PID; 0: it has closed the file
INSERT INTO state VALUES (0, 0);

PRAGMA application_id = %d;
PRAGMA user_version = %d;
`, applicationID, schemaVersion)

// Columns that later releases added, to a new file and to one that was begun before. Releases that do not
// know them read and write the file all the same: they name their columns.

// pairSchema adds what is known of flows that a pair of relays carried. The index has no records but those
// of flows that were resumed.
const pairSchema = `
ALTER TABLE records ADD COLUMN resumes INTEGER;
ALTER TABLE records ADD COLUMN outage_us INTEGER;
CREATE INDEX records_resumed ON records (end_ms) WHERE outage_us IS NOT NULL;
`

// nameSchema adds names of flows, and of relays. Names are random: an index of them alone would have a
// page changed for each record. This one has the records of a segment side by side.
var nameSchema = fmt.Sprintf(`
ALTER TABLE records ADD COLUMN name BLOB;
ALTER TABLE records ADD COLUMN peer_id INTEGER;
ALTER TABLE records ADD COLUMN relay_id INTEGER;
CREATE INDEX records_named ON records (id / %d, substr(name, 1, %d)) WHERE name IS NOT NULL;
`, segmentLen, nameStart)

// nameStart is how many bytes of a name are in the index.
const nameStart = 4

// flowsView makes the view flows of all columns.
const flowsView = `
DROP VIEW IF EXISTS flows;
CREATE VIEW flows AS SELECT
	id,
	strftime('%Y-%m-%d %H:%M:%f', start_ms / 1000.0, 'unixepoch') AS started_utc,
	strftime('%Y-%m-%d %H:%M:%f', end_ms / 1000.0, 'unixepoch') AS ended_utc,
	(SELECT word FROM words WHERE words.id = tunnel_id) AS tunnel,
	client, client_port, target, target_port,
	(SELECT word FROM words WHERE words.id = hop_id) AS hop,
	elapsed_us / 1e6 AS elapsed_s, bytes_up, bytes_down,
	(bytes_up + bytes_down) * 8e6 / nullif(elapsed_us, 0) AS goodput_bps,
	(SELECT word FROM words WHERE words.id = cause_id) AS cause,
	(SELECT word FROM words WHERE words.id = cause_leg_id) AS cause_leg,
	cause_permille / 1000.0 AS cause_share,
	(SELECT word FROM words WHERE words.id = ended_by_id) AS ended_by,
	(SELECT word FROM words WHERE words.id = reason_id) AS reason, error,
	(SELECT word FROM words WHERE words.id = client_side_id) AS client_side,
	(SELECT word FROM words WHERE words.id = client_congestion_control_id) AS client_congestion_control,
	client_rtt_us, client_min_rtt_us, client_bytes_sent, client_bytes_retransmitted, client_retransmits,
	(SELECT word FROM words WHERE words.id = target_side_id) AS target_side,
	(SELECT word FROM words WHERE words.id = target_congestion_control_id) AS target_congestion_control,
	target_rtt_us, target_min_rtt_us, target_bytes_sent, target_bytes_retransmitted, target_retransmits,
	start_ms, end_ms, elapsed_us, flow,
	resumes, outage_us / 1e6 AS outage_s,
	CASE WHEN name IS NOT NULL THEN lower(substr(hex(name), 1, 8) || '-' || substr(hex(name), 9, 4) || '-'
		|| substr(hex(name), 13, 4) || '-' || substr(hex(name), 17, 4) || '-' || substr(hex(name), 21)) END AS name,
	relay, nullif(substr(peer, 1, instr(peer, '/') - (instr(peer, '/') > 0)), '') AS site, peer
FROM (SELECT *, (SELECT word FROM words WHERE words.id = relay_id) AS relay,
	(SELECT word FROM words WHERE words.id = peer_id) AS peer FROM records);
`

// added are the columns of later releases that a file has.
type added struct {
	pairs bool // of pairSchema
	names bool // of nameSchema
}

func addedTo(ctx context.Context, conn interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (a added, err error) {
	err = conn.QueryRowContext(ctx, `SELECT total(name = 'outage_us') > 0, total(name = 'relay_id') > 0
		FROM pragma_table_info('records')`).Scan(&a.pairs, &a.names)
	return a, err
}

// Errors that a caller may want to tell apart.
var (
	// ErrNewer says that a newer version of longhaul has made the file.
	ErrNewer = errors.New("the history was written by a newer version of longhaul")
	// ErrOlder says that an older version of longhaul has made the file.
	ErrOlder = errors.New("the history was written by an older version of longhaul, in another format")
	// ErrForeign says that the file belongs to another program.
	ErrForeign = errors.New("the file is the database of another program")
	// ErrUnsound says that the file is damaged.
	ErrUnsound = errors.New("the history file is not sound")
	// ErrNoFile says that there is no such file.
	ErrNoFile = errors.New("there is no history file")
	// ErrForbidden says that the file may not be read.
	ErrForbidden = errors.New("the history file may not be read by this user")
	// ErrBusy says that another program has locked the file.
	ErrBusy = errors.New("the history file is locked by another program")
)

// CheckPath says why a path cannot be a history's.
func CheckPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("the path of the history must be absolute, not %q", path)
	case filepath.Ext(path) != suffix || filepath.Base(path) == suffix:
		return fmt.Errorf("the name of the history file must end in %s, unlike %q", suffix, path)
	}
	return nil
}

// dsn is how SQLite is told of a file. busyMs is how long to wait for locks.
func dsn(path, mode string, busyMs int, more string) string {
	u := url.URL{Scheme: "file", OmitHost: true, Path: path}
	return fmt.Sprintf("%s?mode=%s&_pragma=busy_timeout(%d)%s", u.String(), mode, busyMs, more)
}

// database is the writer's connection.
type database struct {
	pool  *sql.DB
	conn  *sql.Conn
	file  fs.FileInfo // which file that is
	path  string
	epoch int64 // the file's, by beginEpoch
}

// openDatabase opens the file for writing, and makes it first if there is none.
func openDatabase(ctx context.Context, path string) (*database, error) {
	// SQLite gives the files beside it the same permissions. Addresses of
	// clients are not for everybody.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
	switch {
	case err == nil:
		f.Close()
	case !errors.Is(err, fs.ErrExist):
		return nil, err
	}
	pool, err := sql.Open("sqlite", dsn(path, "rw", 250, ""))
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(1)
	d := &database{pool: pool, path: path}
	if err := d.begin(ctx); err != nil {
		d.close()
		return nil, classify(err)
	}
	return d, nil
}

func (d *database) begin(ctx context.Context) (err error) {
	if d.file, err = os.Stat(d.path); err != nil {
		return err
	}
	if !d.file.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", d.path)
	}
	if d.conn, err = d.pool.Conn(ctx); err != nil {
		return err
	}
	if _, err := d.version(ctx); err != nil {
		return err
	}
	for _, pragma := range []string{
		"auto_vacuum = INCREMENTAL", // before the first table
		"journal_mode = WAL",
		"synchronous = NORMAL", // a kill loses nothing then; a power cut, what is not yet in the file
		"journal_size_limit = 4194304",
		"cache_size = -4000",
		"temp_store = MEMORY",
	} {
		rows, err := d.conn.QueryContext(ctx, "PRAGMA "+pragma)
		if err != nil {
			return err
		}
		for rows.Next() { // some say nothing, some say what they are now
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	return d.transact(ctx, func() error {
		// Another process may have made the tables meanwhile.
		version, err := d.version(ctx)
		if err == nil && version == 0 {
			_, err = d.conn.ExecContext(ctx, schema)
		}
		if err != nil {
			return err
		}
		has, err := addedTo(ctx, d.conn)
		if err != nil {
			return err
		}
		missing := eventSchema + spoolSchema
		if !has.pairs {
			missing += pairSchema
		}
		if !has.names {
			missing += nameSchema + flowsView
		}
		_, err = d.conn.ExecContext(ctx, missing)
		return err
	})
}

// version is that of the schema, 0 in a file that has none yet.
func (d *database) version(ctx context.Context) (int, error) { return fileVersion(ctx, d.conn) }

func fileVersion(ctx context.Context, conn *sql.Conn) (int, error) {
	var version, id, tables int
	if err := conn.QueryRowContext(ctx, "SELECT (SELECT * FROM pragma_user_version), (SELECT * FROM pragma_application_id), count(*) FROM sqlite_schema").Scan(&version, &id, &tables); err != nil {
		return 0, err
	}
	switch {
	case tables == 0:
		return 0, nil
	case id != applicationID:
		return 0, ErrForeign
	case version > schemaVersion:
		return 0, ErrNewer
	case version < schemaVersion:
		return 0, ErrOlder
	}
	return version, nil
}

// transact is a transaction that writes.
func (d *database) transact(ctx context.Context, do func() error) error {
	if _, err := d.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := do()
	if err == nil {
		_, err = d.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		// SQLite may have rolled back already, and says so then.
		_, _ = d.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	}
	return err
}

// replaced is whether another file, or none, has come into the file's place.
func (d *database) replaced() bool {
	now, err := os.Stat(d.path)
	return err != nil || !os.SameFile(now, d.file)
}

func (d *database) close() {
	if d.conn != nil {
		d.conn.Close()
	}
	d.pool.Close()
}

// Primary result codes of SQLite.
const (
	sqliteBusy       = 5
	sqliteLocked     = 6
	sqliteReadonly   = 8
	sqliteIOErr      = 10
	sqliteCorrupt    = 11
	sqliteFull       = 13
	sqliteCantOpen   = 14
	sqliteTooBig     = 18
	sqliteConstraint = 19
	sqliteMismatch   = 20
	sqliteAuth       = 23
	sqliteNotADB     = 26
)

// resultCode is SQLite's, 0 for other errors.
func resultCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// classify gives errors of SQLite a name that a reader of logs understands.
func classify(err error) error {
	switch resultCode(err) {
	case sqliteCorrupt, sqliteNotADB:
		return fmt.Errorf("%w: %w", ErrUnsound, err)
	case sqliteBusy, sqliteLocked:
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if errors.Is(err, errBlob) {
		return fmt.Errorf("%w: %w", ErrUnsound, err)
	}
	return err
}
