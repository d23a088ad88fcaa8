package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres/pgtest"
	"longhaul/test/nettest"
)

// Tables of version 1 keep their rows and rights, and their sums are those of the rows.
func TestTablesOfVersionOne(t *testing.T) {
	s := pgtest.Shared(t)
	s.Role("first_writer")
	to := target(t, s.Database("first"))
	ctx := context.Background()
	conn := versionOne(t, &to)
	spool := newSpool(1, 2000, recent(1))
	rows := make([]*archive.Row, len(spool.rows))
	for i := range rows {
		rows[i] = &spool.rows[i]
	}
	_, err := conn.CopyFrom(ctx, &rowReader{rows: rows}, copyRows)
	nettest.Must(t, err)
	_, err = run(ctx, conn, `INSERT INTO longhaul.lines (relay, relay_site, tunnel, site, near)
			SELECT DISTINCT relay, relay_site, tunnel, coalesce(site, peer, ''), coalesce(client_side, '') <> 'wan' FROM longhaul.flows;
		INSERT INTO longhaul.epochs SELECT epoch, max(id), min(relay) FROM longhaul.flows GROUP BY 1;
		INSERT INTO longhaul.hours `+hoursOfRows+";INSERT INTO longhaul.bins "+fmt.Sprintf(binsOfRows, `'g'::"char"`, binOf(goodputOfRow))+
		";INSERT INTO longhaul.bins "+fmt.Sprintf(binsOfRows, `'t'::"char"`, binOf(timeOfRow))+
		`;GRANT USAGE ON SCHEMA longhaul TO first_writer; GRANT SELECT, INSERT, UPDATE ON longhaul.bins, longhaul.hours, longhaul.epochs TO first_writer;
		GRANT SELECT ON longhaul.version TO first_writer; GRANT INSERT ON longhaul.flows TO first_writer;
		GRANT SELECT, INSERT ON longhaul.lines TO first_writer; GRANT EXECUTE ON FUNCTION longhaul.make_day TO first_writer`)
	nettest.Must(t, err)
	refuses(t, to, "the tables have version 1, this longhaul needs 2", "run longhaul history schema")

	c, err := MakeSchema(ctx, to, SchemaOptions{})
	if err != nil || c.Before != 1 || c.Version != 2 || len(c.Granted) != 0 || len(c.MadeDays) == 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	checkSums(t, s, "first", 2000)
	c, err = MakeSchema(ctx, to, SchemaOptions{Writer: "first_writer"})
	if err != nil || c.Any() {
		t.Errorf("the writer lacked rights: %+v, %v", c, err)
	}
	more := newSpool(2, 500, recent(2))
	writer := target(t, s.URL("first_writer", "first"))
	nettest.Must(t, opened(t, writer).Deliver(ctx, spool.rows)) // they are there
	nettest.Must(t, opened(t, writer).Deliver(ctx, more.rows))
	checkSums(t, s, "first", 2500)
}

// versionOne makes the tables of version 1, and returns the connection of their owner.
func versionOne(t *testing.T, to *archive.Target) *pgconn.PgConn {
	t.Helper()
	config, err := configOf(to, writing)
	nettest.Must(t, err)
	conn, err := connect(t.Context(), to, config)
	nettest.Must(t, err)
	t.Cleanup(func() { closeNow(conn) })
	_, err = run(t.Context(), conn, scriptsFrom(0)[0]+"UPDATE longhaul.version SET version = 1")
	nettest.Must(t, err)
	return conn
}

// What a superuser or a member of the owner's role migrates belongs to the owner, who ships and
// migrates on.
func TestOthersMigrateForTheOwner(t *testing.T) {
	s := pgtest.Shared(t)
	s.Role("member")
	for _, role := range []string{"postgres", "member"} {
		t.Run(role, func(t *testing.T) {
			s := pgtest.Shared(t)
			to := target(t, s.Database("given"))
			s.Exec("given", "GRANT given TO member")
			versionOne(t, &to)
			c, err := MakeSchema(t.Context(), target(t, s.URL(role, "given")), SchemaOptions{})
			if err != nil || c.Before != 1 {
				t.Fatalf("%+v, %v", c, err)
			}
			s.Check("given", `SELECT relowner::regrole FROM pg_class WHERE relnamespace = 'longhaul'::regnamespace
				UNION SELECT proowner::regrole FROM pg_proc WHERE pronamespace = 'longhaul'::regnamespace`, "[[given]]")
			delivers(t, to)
			checkSums(t, s, "given", 10)
			s.Exec("given", "UPDATE longhaul.version SET functions = 'those of another release'")
			c, err = MakeSchema(t.Context(), to, SchemaOptions{})
			if err != nil || !c.Functions {
				t.Errorf("the owner: %+v, %v", c, err)
			}
		})
	}
}

// Of several that run at the same time one makes the tables, and the others find nothing to do.
func TestSchemaIsMadeOnce(t *testing.T) {
	s := pgtest.Shared(t)
	s.Role("made_writer")
	s.Role("made_reader")
	to := target(t, s.Database("made"))
	var all sync.WaitGroup
	var mu sync.Mutex
	var made, granted int
	for range 8 {
		all.Go(func() {
			c, err := MakeSchema(context.Background(), to, SchemaOptions{Writer: "made_writer", Reader: "made_reader", Keep: 400 * leastKeep})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if c.Before == 0 {
				made++
			}
			granted += len(c.Granted)
		})
	}
	all.Wait()
	if made != 1 || granted != 2 {
		t.Errorf("made %d times, %d roles got rights", made, granted)
	}
	delivers(t, target(t, s.URL("made_writer", "made")))
	// The same for old days.
	s.Exec("made", "SELECT longhaul.make_day(now()::date - 300), longhaul.make_day(now()::date - 299)")
	for range 4 {
		all.Go(func() {
			if _, err := MakeSchema(context.Background(), to, SchemaOptions{Keep: 200 * leastKeep}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	checkSums(t, s, "made", 10)
}

// A relay that connects again after old rows and sums have gone sends nothing of them again.
func TestDroppedDaysStayDropped(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "stay")
	ctx := context.Background()
	old := newSpool(1, 10, func() time.Time { return time.Now().AddDate(0, 0, -100) })
	nettest.Must(t, opened(t, to).Deliver(ctx, old.rows))
	s.Exec("stay", "UPDATE longhaul.epochs SET at = now() - interval '100 days'")
	c, err := MakeSchema(ctx, to, SchemaOptions{Keep: 30 * leastKeep, KeepSums: 60 * leastKeep})
	if err != nil || len(c.DroppedDays) == 0 || c.DroppedSums == 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	again := opened(t, to)
	last, err := again.(archive.Resumer).Last(ctx, []int64{2000, 2001})
	if err != nil || fmt.Sprint(last) != "map[2000:5 2001:10]" {
		t.Errorf("the database says that it has %v, %v", last, err)
	}
	nettest.Must(t, again.Deliver(ctx, old.rows))
	for _, table := range []string{"flows", "hours", "days"} {
		s.Check("stay", "SELECT count(*) FROM longhaul."+table, "[[0]]")
	}
}
