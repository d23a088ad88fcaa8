package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// schemaVersion is that of the tables that this program writes and reads.
const schemaVersion = 2

// sink writes rows into PostgreSQL: each delivery is one transaction, of rows, sums and how far
// their epochs are. So whatever dies when, a row is there with its share of the sums, or neither is.
type sink struct {
	target archive.Target
	conn   *pgconn.PgConn  // nil: not connected
	lines  map[line]int64  // IDs of those that the database has
	last   map[int64]int64 // IDs of the last rows of the epochs of the last delivery
	days   days
}

// Open makes a sink. It connects with the first delivery.
func Open(t archive.Target) (archive.Sink, error) {
	if _, err := configOf(&t, writing); err != nil {
		return nil, err
	}
	return &sink{target: t}, nil
}

// Close closes the connection. What the server has not committed is not there.
func (s *sink) Close() error {
	if s.conn != nil {
		closeNow(s.conn)
		s.conn = nil
	}
	return nil
}

// Deliver writes the rows that the database lacks.
func (s *sink) Deliver(ctx context.Context, rows []archive.Row) error {
	if len(rows) == 0 {
		return nil
	}
	err := s.deliver(ctx, rows)
	if err != nil {
		s.Close()
	}
	return explain(err, &s.target)
}

// Last says how far the database is, see [archive.Resumer].
func (s *sink) Last(ctx context.Context, epochs []int64) (map[int64]int64, error) {
	last := map[int64]int64{}
	err := s.connect(ctx)
	if err == nil {
		var asked numbers
		for _, epoch := range epochs {
			asked.add(epoch)
		}
		r := s.conn.ExecParams(ctx, "SELECT epoch, last FROM longhaul.epochs WHERE epoch = ANY ($1::bigint[])", [][]byte{asked.list()}, nil, nil, nil).Read()
		err = addLast(last, r.Rows, r.Err)
	}
	if err != nil {
		s.Close()
	}
	return last, explain(err, &s.target)
}

// addLast adds rows of an epoch and its last ID.
func addLast(last map[int64]int64, rows [][][]byte, err error) error {
	for _, row := range rows {
		v, bad := integers(row)
		if bad != nil {
			return bad
		}
		last[v[0]] = v[1]
	}
	return err
}

// connect connects where there is no connection.
func (s *sink) connect(ctx context.Context) error {
	if s.conn != nil {
		return nil
	}
	config, err := configOf(&s.target, writing)
	if err != nil {
		return err
	}
	if s.conn, err = connect(ctx, &s.target, config); err != nil {
		return err
	}
	s.lines, s.last, s.days = map[line]int64{}, nil, days{}
	return checkVersion(ctx, s.conn, &s.target)
}

func (s *sink) deliver(ctx context.Context, rows []archive.Row) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	if err := s.days.make(ctx, s.conn, rows, time.Now()); err != nil {
		return err
	}
	last, err := s.begin(ctx, rows)
	if err != nil {
		return err
	}
	for epoch, id := range last {
		if id < s.last[epoch] { // behind PgBouncer
			return remedy.New(errors.New("the database has lost records under this connection"), "nothing: they are sent again")
		}
	}
	lacking := make([]*archive.Row, 0, len(rows))
	for i := range rows {
		if r := &rows[i]; r.ID > last[r.Epoch] {
			lacking = append(lacking, r)
			last[r.Epoch] = r.ID
		}
	}
	if len(lacking) == 0 {
		_, err := s.conn.Exec(ctx, "ROLLBACK").ReadAll()
		return err
	}
	if _, err := s.conn.CopyFrom(ctx, &rowReader{rows: lacking}, copyRows); err != nil {
		return err
	}
	sums := sumsOf(lacking)
	if err := s.findLines(ctx, sums); err != nil {
		return err
	}
	return s.finish(ctx, sums, last)
}

// checkVersion refuses tables that this program does not know.
func checkVersion(ctx context.Context, conn *pgconn.PgConn, t *archive.Target) error {
	r := conn.ExecParams(ctx, "SELECT max(version) FROM longhaul.version", nil, nil, nil, nil).Read()
	if r.Err != nil {
		return r.Err
	}
	version, err := strconv.Atoi(string(r.Rows[0][0]))
	switch {
	case err != nil:
		return remedy.New(fmt.Errorf("the table longhaul.version is empty"), "drop the schema longhaul, and run longhaul history schema --to "+t.To)
	case version < schemaVersion:
		return remedy.New(fmt.Errorf("the tables have version %d, this longhaul needs %d", version, schemaVersion), "run longhaul history schema --to "+t.To)
	case version > schemaVersion:
		return remedy.New(fmt.Errorf("the tables have version %d, this longhaul knows %d", version, schemaVersion), "install a newer longhaul here")
	}
	return nil
}

// settings bound what a transaction waits for, and what others wait for a relay that has gone: its
// locks go with it. They are below the patience of who delivers. They last as long as the
// transaction, so PgBouncer may stand between.
const settings = `SELECT set_config('lock_timeout', '10s', true), set_config('statement_timeout', '25s', true),
	set_config('idle_in_transaction_session_timeout', '25s', true)`

// begin begins the transaction and locks the rows' epochs. It returns the last IDs that are there.
func (s *sink) begin(ctx context.Context, rows []archive.Row) (map[int64]int64, error) {
	relays := map[int64]string{}
	for i := range rows {
		relays[rows[i].Epoch] = clean(rows[i].Relay)
	}
	var epochs numbers
	var names texts
	for _, epoch := range sortedKeys(relays) {
		epochs.add(epoch)
		names.add(relays[epoch])
	}
	var b pgconn.Batch
	add(&b, "BEGIN")
	add(&b, settings)
	add(&b, `INSERT INTO longhaul.epochs (epoch, last, relay) SELECT epoch, 0, relay
		FROM unnest($1::bigint[], $2::text[]) AS new (epoch, relay) ON CONFLICT DO NOTHING`, epochs.list(), names.list())
	add(&b, "SELECT epoch, last FROM longhaul.epochs WHERE epoch = ANY ($1::bigint[]) ORDER BY epoch FOR UPDATE", epochs.list())
	results, err := s.conn.ExecBatch(ctx, &b).ReadAll()
	if err != nil {
		return nil, err
	}
	last := map[int64]int64{}
	return last, addLast(last, results[len(results)-1].Rows, nil)
}

// findLines gives each line its ID.
func (s *sink) findLines(ctx context.Context, sums *sums) error {
	missing := map[line]bool{}
	for l := range sums.lines() {
		if _, has := s.lines[l]; !has {
			missing[l] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if len(s.lines)+len(missing) > maxLines {
		s.lines, missing = map[line]int64{}, map[line]bool{}
		for l := range sums.lines() {
			missing[l] = true
		}
	}
	all := make([]line, 0, len(missing))
	for l := range missing {
		all = append(all, l)
	}
	sorted.By(all, line.compare)
	var relays, relaySites, tunnels, sites texts
	var near numbers
	for _, l := range all {
		relays.add(l.relay)
		relaySites.add(l.relaySite)
		tunnels.add(l.tunnel)
		sites.add(l.site)
		near.add(truth(l.near))
	}
	const asked = ` FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[]) WITH ORDINALITY
		AS new (relay, relay_site, tunnel, site, near, place)`
	args := [][]byte{relays.list(), relaySites.list(), tunnels.list(), sites.list(), near.list()}
	var b pgconn.Batch
	add(&b, `INSERT INTO longhaul.lines (relay, relay_site, tunnel, site, near)
		SELECT relay, relay_site, tunnel, site, near = 1`+asked+` WHERE NOT EXISTS (SELECT 1 FROM longhaul.lines AS l
			WHERE (l.relay, l.relay_site, l.tunnel, l.site, l.near) = (new.relay, new.relay_site, new.tunnel, new.site, new.near = 1))
		ORDER BY place ON CONFLICT DO NOTHING`, args...)
	add(&b, `SELECT place, line`+asked+` JOIN longhaul.lines AS l
		ON (l.relay, l.relay_site, l.tunnel, l.site, l.near) = (new.relay, new.relay_site, new.tunnel, new.site, new.near = 1)`, args...)
	results, err := s.conn.ExecBatch(ctx, &b).ReadAll()
	if err != nil {
		return err
	}
	for _, row := range results[1].Rows {
		v, err := integers(row)
		if err != nil {
			return err
		}
		s.lines[all[v[0]-1]] = v[1]
	}
	return nil
}

// finish adds the sums, notes how far the epochs are, and commits.
func (s *sink) finish(ctx context.Context, sums *sums, last map[int64]int64) error {
	var b pgconn.Batch
	add(&b, addSums, append(sums.hourLists(s.lines), sums.binLists(s.lines)...)...)
	var epochs, ids numbers
	for _, epoch := range sortedKeys(last) {
		epochs.add(epoch)
		ids.add(last[epoch])
	}
	add(&b, `UPDATE longhaul.epochs AS e SET last = new.last, at = now()
		FROM unnest($1::bigint[], $2::bigint[]) AS new (epoch, last) WHERE e.epoch = new.epoch AND e.last < new.last`, epochs.list(), ids.list())
	add(&b, "COMMIT")
	results, err := s.conn.ExecBatch(ctx, &b).ReadAll()
	if err != nil {
		return err
	}
	if tag := results[len(results)-1].CommandTag.String(); tag != "COMMIT" {
		return fmt.Errorf("the transaction ended with %s", tag)
	}
	s.last = last
	return nil
}

// add adds a statement to a batch.
func add(b *pgconn.Batch, statement string, args ...[]byte) {
	b.ExecParams(statement, args, nil, nil, nil)
}
