package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/internal/watch/archive"
)

// Days of which the database has a table of their own, by the clock here; it decides itself by its
// own clock (longhaul.make_day). The rows of others are in longhaul.flows_other.
const (
	daysBack  = 400
	daysAhead = 2
	// askAgain is after a day whose table could not be made for locks, as those of pg_dump.
	askAgain = time.Hour
	// dayPatience bounds the making of one, below the patience of who delivers; by PostgreSQL's units.
	dayPatience = "10s"
)

// days are those that a sink need not ask for again.
type days struct {
	today int64 // Unix, in days
	asked map[int64]bool
	again time.Time // when to ask for all again; zero: tomorrow
}

// dateOf is a day as PostgreSQL reads it.
func dateOf(day int64) string { return time.Unix(day*86400, 0).UTC().Format(time.DateOnly) }

// make makes the tables of days of which there are rows, and that of tomorrow, so that nobody waits
// for it at midnight. It is outside of any transaction: what it locks, it locks for a moment. While
// others have locks for long, rows go to flows_other, and to their day once that is made.
func (d *days) make(ctx context.Context, conn *pgconn.PgConn, rows []archive.Row, now time.Time) error {
	today := floor(now.Unix(), 86400)
	if d.asked == nil || d.today != today || !d.again.IsZero() && now.After(d.again) {
		*d = days{today: today, asked: map[int64]bool{}}
	}
	tomorrow := d.today + 1
	needed := map[int64]bool{}
	for i := range rows {
		day := floor(bounded(rows[i].End).Unix(), 86400)
		if !d.asked[day] && day >= d.today-daysBack && day <= d.today+daysAhead {
			needed[day] = true
		}
	}
	if len(needed) == 0 && d.asked[tomorrow] {
		return nil
	}
	ask := sortedKeys(needed)
	if !needed[tomorrow] && !d.asked[tomorrow] {
		ask = append(ask, tomorrow)
	}
	var dates texts
	for _, day := range ask {
		dates.add(dateOf(day))
	}
	missing := conn.ExecParams(ctx, `SELECT day - date '1970-01-01' FROM unnest($1::date[]) AS day
		WHERE to_regclass('longhaul.flows_' || to_char(day, 'YYYYMMDD')) IS NULL ORDER BY day`, [][]byte{dates.list()}, nil, nil, nil).Read()
	if missing.Err != nil {
		return missing.Err
	}
	for _, row := range missing.Rows {
		v, err := integers(row)
		if err != nil {
			return err
		}
		// A day whose rows are in flows_other already, of clocks that were off, may take longer than a
		// delivery. More rows find room there meanwhile.
		_, err = conn.Exec(ctx, "BEGIN; SELECT set_config('statement_timeout', '"+dayPatience+"', true); SELECT longhaul.make_day('"+
			dateOf(v[0])+"'); COMMIT").ReadAll()
		switch state := sqlState(err); {
		case err == nil:
		case (state == "55P03" || state == "57014") && !conn.IsClosed():
			if _, err := conn.Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
				return err
			}
			d.again = now.Add(askAgain)
		default:
			return err
		}
	}
	for _, day := range ask {
		d.asked[day] = true
	}
	return nil
}
