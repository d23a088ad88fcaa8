package postgres

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

//go:embed schema.sql days.sql
var files embed.FS

// steps has the file that brings the tables to each version, from 1. Files of released versions
// never change.
var steps = []string{"schema.sql", "days.sql"}

// functions may be made anew at any time: no data depends on them.
//
//go:embed functions.sql
var functions string

// functionsSum tells functions from those of another release.
func functionsSum() string {
	sum := sha256.Sum256([]byte(functions))
	return hex.EncodeToString(sum[:])
}

func makeFunctions() string {
	return functions + "UPDATE longhaul.version SET functions = '" + functionsSum() + "';\n"
}

// giveToOwner gives what another role has made, a superuser or a member of the owner, to the owner of
// the schema, whose relays could not use it else.
const giveToOwner = `DO $$
DECLARE statement text;
BEGIN
	FOR statement IN
		SELECT format('ALTER TABLE longhaul.%I OWNER TO %s', relname, nspowner::regrole) FROM pg_catalog.pg_class
			JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace
			WHERE nspname = 'longhaul' AND relkind IN ('r', 'p') AND relowner = current_user::regrole AND relowner <> nspowner
		UNION ALL
		SELECT format('ALTER FUNCTION %s OWNER TO %s', p.oid::regprocedure, nspowner::regrole) FROM pg_catalog.pg_proc AS p
			JOIN pg_catalog.pg_namespace AS n ON n.oid = pronamespace
			WHERE nspname = 'longhaul' AND prokind = 'f' AND proowner = current_user::regrole AND proowner <> nspowner
	LOOP
		EXECUTE statement;
	END LOOP;
END $$`

// SchemaOptions are what is wanted beyond the tables.
type SchemaOptions struct {
	Writer, Reader string        // roles that get rights; empty: none
	Keep           time.Duration // of records, by the end of their flow; 0: all stay
	KeepSums       time.Duration // of hours and days; 0: all stay
}

// Changes are what has been done.
type Changes struct {
	To          string    `json:"to"`
	Version     int       `json:"version"`         // of the tables, now
	Before      int       `json:"version_before"`  // 0: there were none
	Functions   bool      `json:"functions_made"`  // anew, since they were those of another release
	Granted     []string  `json:"granted"`         // roles that have got rights which they lacked
	MadeDays    []string  `json:"made_days"`       // days (UTC) whose records were in flows_other, and have a table now
	DroppedDays []string  `json:"dropped_days"`    // whole days (UTC) of records
	DroppedRows int64     `json:"dropped_records"` // records with times of their own, of clocks that were off
	DroppedSums int64     `json:"dropped_sums"`    // rows of hours and days
	KeptFrom    time.Time `json:"kept_from,omitzero"`
}

// Any is whether anything has been done.
func (c *Changes) Any() bool {
	return c.Version != c.Before || c.Functions || len(c.Granted)+len(c.MadeDays)+len(c.DroppedDays) > 0 || c.DroppedRows+c.DroppedSums > 0
}

// SchemaSQL is what [MakeSchema] runs on an empty database, as text.
func SchemaSQL(o SchemaOptions) string {
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	for _, part := range append(scriptsFrom(0), makeFunctions()) {
		b.WriteString(part)
	}
	for _, right := range o.rights() {
		b.WriteString(right.script)
	}
	b.WriteString("COMMIT;\n")
	return b.String()
}

// scriptsFrom are the texts that bring tables of a version to the last one.
func scriptsFrom(version int) (all []string) {
	for _, name := range steps[version:] {
		text, _ := files.ReadFile(name) // it is embedded
		all = append(all, string(text))
	}
	return append(all, fmt.Sprintf("UPDATE longhaul.version SET version = %d;\n", len(steps)))
}

// right is what a role gets, as statements.
type right struct{ role, script string }

func (o *SchemaOptions) rights() (all []right) {
	if o.Writer != "" {
		to := ` TO "` + o.Writer + "\";\n"
		all = append(all, right{o.Writer, "GRANT USAGE ON SCHEMA longhaul" + to + "GRANT SELECT ON longhaul.version" + to +
			"GRANT INSERT ON longhaul.flows" + to + "GRANT SELECT, INSERT ON longhaul.lines" + to +
			"GRANT SELECT, INSERT, UPDATE ON longhaul.epochs, longhaul.hours, longhaul.days" + to +
			"GRANT EXECUTE ON FUNCTION longhaul.make_day(date)" + to})
	}
	if o.Reader != "" {
		// Not of the days: who reads flows reads them.
		all = append(all, right{o.Reader, `GRANT USAGE ON SCHEMA longhaul TO "` + o.Reader + `";
DO $$
DECLARE t name;
BEGIN
	FOR t IN SELECT relname FROM pg_class
		WHERE relnamespace = 'longhaul'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition
	LOOP
		EXECUTE format('GRANT SELECT ON longhaul.%I TO "` + o.Reader + `"', t);
	END LOOP;
END $$;
`})
	}
	return all
}

// maxRoleName is the maximum length of a role's name in PostgreSQL, in bytes and so in characters.
const maxRoleName = 63

// isRoleName accepts the names that GRANT takes in quotes without escapes: letters, digits and _, and
// . @ - after the first character.
func isRoleName(s string) bool {
	for at, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '_' && (at == 0 || !strings.ContainsRune(".@-", r)) {
			return false
		}
	}
	return s != "" && utf8.RuneCountInString(s) <= maxRoleName
}

// Check returns what is wrong with the options.
func (o *SchemaOptions) Check() error {
	for _, role := range []string{o.Writer, o.Reader} {
		if role != "" && !isRoleName(role) {
			return remedy.New(fmt.Errorf("invalid name of a role %q", printable.String(role)), "use one of letters, digits and _")
		}
	}
	for _, age := range []time.Duration{o.Keep, o.KeepSums} {
		if age != 0 && age < leastKeep {
			return remedy.New(fmt.Errorf("records cannot be kept for %s only", units.FormatDuration(age)), "write days, such as 400d")
		}
	}
	return nil
}

// leastKeep is a day: records go by the day, and a number without a unit is of seconds.
const leastKeep = 24 * time.Hour

// MakeSchema makes the tables, or brings them to the version of this program; then it gives rights
// and drops what is older than wanted. Tables that are as wanted stay as they are. One runs at a time.
// Without a file the password is that of the user, as for psql.
func MakeSchema(ctx context.Context, t archive.Target, o SchemaOptions) (Changes, error) {
	c := Changes{To: t.To, Granted: []string{}, MadeDays: []string{}, DroppedDays: []string{}}
	if err := o.Check(); err != nil {
		return c, err
	}
	config, err := configOfUser(t, writing)
	if err != nil {
		return c, err
	}
	conn, err := connect(ctx, &t, config)
	if err != nil {
		return c, err
	}
	defer closeNow(conn)
	err = c.migrate(ctx, conn, &t)
	if err == nil {
		err = c.grant(ctx, conn, &o)
	}
	if err == nil {
		err = c.drop(ctx, conn, &o, time.Now())
	}
	if err == nil {
		err = c.makeDays(ctx, conn)
	}
	return c, explainSchema(err, &t)
}

// explainSchema is explain, where the remedy would not be to run the same again.
func explainSchema(err error, t *archive.Target) error {
	switch sqlState(err) {
	case "42501":
		return remedy.New(explain(err, t), "run it as the owner of the tables, and the first time as the owner of the database")
	case "42P06":
		return remedy.New(fmt.Errorf("the database has a schema longhaul that is not longhaul's"), "rename it, or name another database")
	case "42704":
		return remedy.New(explain(err, t), "make the role first: createuser --pwprompt ROLE")
	}
	return explain(err, t)
}

// lock begins a transaction that no other change of the schema goes beside. It ends with the connection.
const (
	lock       = "BEGIN; SET LOCAL lock_timeout = '30s'; SELECT pg_advisory_xact_lock(" + schemaLock + ")"
	schemaLock = "7813585268923004268"
)

func run(ctx context.Context, conn *pgconn.PgConn, statements string) ([]*pgconn.Result, error) {
	return conn.Exec(ctx, statements).ReadAll()
}

// migrate brings the tables to the last version.
func (c *Changes) migrate(ctx context.Context, conn *pgconn.PgConn, t *archive.Target) error {
	results, err := run(ctx, conn, lock+"; SELECT to_regclass('longhaul.version') IS NULL")
	if err != nil {
		return err
	}
	if none := results[len(results)-1].Rows[0][0]; string(none) != "t" {
		results, err := run(ctx, conn, "SELECT coalesce(max(version), 0) FROM longhaul.version")
		if err != nil {
			return err
		}
		if c.Before, err = strconv.Atoi(string(results[0].Rows[0][0])); err != nil {
			return err
		}
	}
	if c.Version = c.Before; c.Before > len(steps) {
		return checkVersion(ctx, conn, t)
	}
	if c.Before < len(steps) {
		for _, script := range scriptsFrom(c.Before) {
			if _, err := run(ctx, conn, script); err != nil {
				return err
			}
		}
		c.Version = len(steps)
	}
	results, err = run(ctx, conn, "SELECT FROM longhaul.version WHERE functions = '"+functionsSum()+"'")
	if err == nil && len(results[0].Rows) == 0 {
		c.Functions = c.Version == c.Before
		_, err = run(ctx, conn, makeFunctions())
	}
	if err == nil {
		_, err = run(ctx, conn, giveToOwner)
	}
	if err == nil {
		_, err = run(ctx, conn, "COMMIT")
	}
	return err
}

// grant gives the roles what they lack.
func (c *Changes) grant(ctx context.Context, conn *pgconn.PgConn, o *SchemaOptions) error {
	// What a role has already it is given again without harm; the difference shows whether it lacked some.
	const all = `SELECT md5(string_agg(acl, ' ' ORDER BY acl)) FROM (
		SELECT relname || relacl::text FROM pg_class WHERE relnamespace = 'longhaul'::regnamespace
		UNION ALL SELECT proname || proacl::text FROM pg_proc WHERE pronamespace = 'longhaul'::regnamespace
		UNION ALL SELECT nspname || nspacl::text FROM pg_namespace WHERE nspname = 'longhaul') AS every (acl)`
	for _, right := range o.rights() {
		var acls [2]string
		for i, statements := range []string{lock + "; " + all, right.script + all} {
			results, err := run(ctx, conn, statements)
			if err != nil {
				return err
			}
			acls[i] = string(results[len(results)-1].Rows[0][0])
		}
		if _, err := run(ctx, conn, "COMMIT"); err != nil {
			return err
		}
		if acls[0] != acls[1] {
			c.Granted = append(c.Granted, right.role)
		}
	}
	return nil
}

// drop drops what is older than wanted.
func (c *Changes) drop(ctx context.Context, conn *pgconn.PgConn, o *SchemaOptions, now time.Time) error {
	if o.Keep > 0 {
		c.KeptFrom = now.Add(-o.Keep).UTC().Truncate(24 * time.Hour)
		from := c.KeptFrom.Format(time.DateOnly)
		results, err := run(ctx, conn, `SELECT relname, to_date(substr(relname, 7), 'YYYYMMDD') FROM pg_inherits JOIN pg_class ON oid = inhrelid
			WHERE inhparent = 'longhaul.flows'::regclass AND relname ~ '^flows_[0-9]{8}$' AND to_date(substr(relname, 7), 'YYYYMMDD') < '`+from+`' ORDER BY 1`)
		if err != nil {
			return err
		}
		for _, row := range results[0].Rows {
			if _, err := briefly(ctx, conn, "BEGIN; SET LOCAL lock_timeout = '2s'; SELECT pg_advisory_xact_lock("+schemaLock+"); DROP TABLE IF EXISTS longhaul."+string(row[0])); err != nil {
				return err
			}
			c.DroppedDays = append(c.DroppedDays, string(row[1]))
		}
		if c.DroppedRows, err = deleted(ctx, conn, "DELETE FROM longhaul.flows_other WHERE ended < '"+from+" 00:00Z'"); err != nil {
			return err
		}
	}
	if o.KeepSums > 0 {
		from := now.Add(-o.KeepSums).UTC().Format(time.DateOnly)
		for _, statement := range []string{
			"DELETE FROM longhaul.hours WHERE hour < '" + from + " 00:00Z'", "DELETE FROM longhaul.days WHERE day < '" + from + "'",
		} {
			n, err := deleted(ctx, conn, statement)
			if err != nil {
				return err
			}
			c.DroppedSums += n
		}
	}
	// Epochs stay, a small row for each start of a relay: a missing one is of records that were lost, and
	// the relay would send them again.
	return nil
}

func deleted(ctx context.Context, conn *pgconn.PgConn, statement string) (int64, error) {
	results, err := run(ctx, conn, statement)
	if err != nil {
		return 0, err
	}
	return results[0].CommandTag.RowsAffected(), nil
}

// makeDays makes the tables of days whose rows are in flows_other: relays do so as well, but not where
// there are so many rows that they would have to wait for long.
func (c *Changes) makeDays(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := run(ctx, conn, `SELECT DISTINCT (ended AT TIME ZONE 'UTC')::date AS day FROM longhaul.flows_other
		WHERE ended >= now() - interval '401 days' AND ended < now() + interval '3 days' ORDER BY day`)
	if err != nil {
		return err
	}
	for _, row := range results[0].Rows {
		day := string(row[0])
		results, err := briefly(ctx, conn, "BEGIN; SELECT longhaul.make_day('"+day+"')")
		if err != nil {
			return err
		}
		if string(results[1].Rows[0][0]) == "t" {
			c.MadeDays = append(c.MadeDays, day)
		}
	}
	return nil
}

// briefly changes tables of days in a transaction. For a moment that locks flows, or flows_other,
// against everybody: whoever reads or writes for long makes it wait, and while it waits, others wait
// for it. So it waits briefly, often.
func briefly(ctx context.Context, conn *pgconn.PgConn, statements string) ([]*pgconn.Result, error) {
	for try := 1; ; try++ {
		results, err := run(ctx, conn, statements+"; COMMIT")
		if err == nil {
			return results, nil
		}
		if state := sqlState(err); try == 10 || state != "55P03" && state != "40P01" {
			return nil, err
		}
		if _, err := run(ctx, conn, "ROLLBACK; SELECT pg_sleep(1)"); err != nil { // others go on
			return nil, err
		}
	}
}
