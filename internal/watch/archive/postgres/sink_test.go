package postgres

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres/pgtest"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func target(t testing.TB, url string) archive.Target {
	t.Helper()
	to, err := archive.ParseTarget(url)
	nettest.Must(t, err)
	return to
}

// database makes a database with longhaul's tables and returns the target of its owner.
func database(t testing.TB, s *pgtest.Server, name string) archive.Target {
	t.Helper()
	to := target(t, s.Database(name))
	_, err := MakeSchema(context.Background(), to, SchemaOptions{})
	nettest.Must(t, err)
	return to
}

// spool is records with IDs, as a relay's history has them.
type spool struct {
	relay string
	epoch int64
	rows  []archive.Row
}

func newSpool(seed uint64, records int, end func() time.Time) *spool {
	maker := synthetic.NewMaker(seed)
	s := &spool{relay: fmt.Sprintf("relay-%d.example.net", seed), epoch: 1000 * int64(seed+1)}
	for i := range records {
		if i == records/2 {
			s.epoch++ // the relay began anew
		}
		r := archive.Row{Record: maker.Record(end()), Epoch: s.epoch, OwnSite: "site-a", Clients: archive.WholeClients}
		r.ID, r.Relay = int64(i+1), s.relay
		s.rows = append(s.rows, r)
	}
	return s
}

// recent are times of the last days.
func recent(seed uint64) func() time.Time {
	random := rand.New(rand.NewPCG(seed, 3))
	now := time.Now()
	return func() time.Time { return now.Add(-time.Duration(random.Int64N(int64(50 * time.Hour)))) }
}

func opened(t testing.TB, to archive.Target) archive.Sink {
	t.Helper()
	sink, err := Open(to)
	nettest.Must(t, err)
	t.Cleanup(func() { sink.Close() })
	return sink
}

// Sums by SQL that shares nothing with the sink.
const (
	linesOfRows = ` FROM longhaul.flows AS f JOIN longhaul.lines AS l ON (l.relay, l.relay_site, l.tunnel, l.site, l.near)
		= (f.relay, f.relay_site, f.tunnel, coalesce(f.site, f.peer, ''), coalesce(f.client_side, '') <> 'wan')`
	movedOfRow   = "bytes_up + bytes_down > 0 AND elapsed_us > 0"
	goodputOfRow = "(bytes_up + bytes_down) * 8 / (elapsed_us / 1e6::numeric)"
	timeOfRow    = "elapsed_us / 1e6::numeric"
	sumsOfRows   = "count(*), count(*) FILTER (WHERE " + movedOfRow + `), sum(bytes_up), sum(bytes_down),
		sum(coalesce(client_bytes_sent, 0) + coalesce(target_bytes_sent, 0)),
		sum(coalesce(client_bytes_retransmitted, 0) + coalesce(target_bytes_retransmitted, 0))`
	hoursOfRows = "SELECT date_trunc('hour', ended, 'UTC'), line, coalesce(cause, ''), coalesce(ended_by, ''), coalesce(reason, ''), " + sumsOfRows + `,
		count(outage_us), coalesce(sum(resumes), 0), coalesce(sum(outage_us), 0), coalesce(max(outage_us), 0)` + linesOfRows + " GROUP BY 1, 2, 3, 4, 5"
	// binsOfRows is for a quantity and its bin, see binOf.
	binsOfRows = "SELECT (ended AT TIME ZONE 'UTC')::date, line, %s, %s, count(*)" + linesOfRows + " WHERE " + movedOfRow + " GROUP BY 1, 2, 3, 4"
)

func binOf(v string) string { return "floor(32 * log(2, (" + v + ")::numeric))" }

// checkSums holds hours and days against the rows.
func checkSums(t testing.TB, s *pgtest.Server, database string, rows int) {
	t.Helper()
	if got := s.Exec(database, "SELECT count(*), count(DISTINCT (relay, epoch, id)) FROM longhaul.flows")[0]; got[0] != fmt.Sprint(rows) || got[1] != got[0] {
		t.Errorf("%s rows, %s of them different, of %d records", got[0], got[1], rows)
	}
	histogram := func(v string) string {
		return ", coalesce(sum(('1e' || 12 * (" + binOf(v) + " - 640))::numeric) FILTER (WHERE " + movedOfRow + "), 0)"
	}
	days := "SELECT (ended AT TIME ZONE 'UTC')::date, line, " + sumsOfRows + histogram(goodputOfRow) + histogram(timeOfRow) + linesOfRows + " GROUP BY 1, 2"
	for _, sums := range []struct{ table, is, want string }{
		{"hours", "SELECT * FROM longhaul.hours", hoursOfRows}, {"days", "SELECT * FROM longhaul.days", days},
	} {
		for _, diff := range [][2]string{{sums.is, sums.want}, {sums.want, sums.is}} {
			if got := s.Exec(database, fmt.Sprintf("(%s) EXCEPT (%s)", diff[0], diff[1])); len(got) > 0 {
				t.Errorf("%s differs from the rows in %d lines: %v", sums.table, len(got), got[0])
			}
		}
		if got := s.Exec(database, "SELECT count(*) FROM longhaul."+sums.table)[0][0]; rows > 0 && got == "0" {
			t.Errorf("%s is empty", sums.table)
		}
	}
}

// A row that comes again, alone or among new ones, is there once, and so are its sums.
func TestRowsComeOnce(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "once")
	spool := newSpool(1, 3000, recent(1))
	ctx := context.Background()
	one, other := opened(t, to), opened(t, to)
	for _, part := range []struct {
		sink     archive.Sink
		from, to int
	}{
		{one, 0, 1}, {one, 0, 1000}, {one, 0, 1000}, {other, 500, 2000}, {one, 1999, 2000}, {one, 1900, 3000}, {other, 0, 3000},
	} {
		nettest.Must(t, part.sink.Deliver(ctx, spool.rows[part.from:part.to]))
		if got := s.Exec("once", "SELECT max(id), count(*) FROM longhaul.flows")[0]; got[0] != got[1] {
			t.Fatalf("after rows %d to %d: %v", part.from, part.to, got)
		}
	}
	checkSums(t, s, "once", 3000)
	if got := s.Exec("once", "SELECT epoch, last FROM longhaul.epochs ORDER BY 1"); fmt.Sprint(got) != "[[2000 1500] [2001 3000]]" {
		t.Errorf("epochs %v", got)
	}
	if got := s.Exec("once", "SELECT count(*) FROM longhaul.flows_other")[0][0]; got != "0" {
		t.Errorf("%s rows have no table of their day", got)
	}
}

// Every column has what the record has.
func TestColumnsOfRows(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "columns")
	row := newSpool(1, 1, func() time.Time { return time.Now().Truncate(time.Millisecond) }).rows[0]
	row.Tunnel, row.Error, row.EndedBy = "a\tb\\N\nc\r\"{},'", "bad \xff\x00 text €", `\.`
	row.Cause, row.CauseLeg, row.CauseShare = "policer", flow.TargetLeg, 0.625
	row.Peer, row.Site, row.Resumes, row.Outage = "site-b/b1", "site-b", 2, units.Seconds(1500*time.Millisecond)
	row.Client = flow.Address{AddrPort: netip.MustParseAddrPort("10.1.2.3:40000")}
	row.Target = flow.Address{AddrPort: netip.MustParseAddrPort("[2001:db8::7]:443")}
	row.Clients = archive.TruncatedClients
	row.Goodput = monitor.Series{Step: units.Seconds(time.Second), UpBps: []float32{1, 2, 3}, DownBps: []float32{0, 0, 4}}
	unknown := archive.Row{Record: monitor.Record{ID: 2, Relay: "r", Record: flow.Record{ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}}, Epoch: row.Epoch}
	nettest.Must(t, opened(t, to).Deliver(context.Background(), []archive.Row{row, unknown}))
	for column, want := range map[string]string{
		"relay": row.Relay, "tunnel": row.Tunnel, "error": "bad ?? text €", "ended_by": `\.`, "cause": "policer", "cause_leg": "target", "cause_share": "0.625",
		"peer": "site-b/b1", "site": "site-b", "resumes": "2", "outage_us": "1500000", "client": "10.1.2.0/24", "client_port": "", "target": "2001:db8::7/128",
		"target_port": "443", "replace(name::text, '-', '')": fmt.Sprintf("%x", row.Name[:]), "elapsed_us": fmt.Sprint(row.Elapsed.Duration().Microseconds()),
		"(extract(epoch from ended) * 1000)::bigint": fmt.Sprint(row.End.UnixMilli()), "(extract(epoch from started) * 1000)::bigint": fmt.Sprint(row.Start.UnixMilli()),
		"bytes_up": fmt.Sprint(row.BytesUp), "target_congestion_control": "bbr", "client_rtt_us": "300",
		"encode(goodput, 'hex')": fmt.Sprintf("%x", history.EncodeSeries(row.Goodput)),
	} {
		if got := s.Exec("columns", "SELECT "+column+" FROM longhaul.flows WHERE id = 1")[0][0]; got != want {
			t.Errorf("%s is %q, want %q", column, got, want)
		}
	}
	if got := s.Exec("columns", "SELECT num_nulls(name, site, peer, client, client_port, target, target_port, cause, error, resumes, client_side, client_bytes_sent, goodput) FROM longhaul.flows WHERE id = 2")[0][0]; got != "13" {
		t.Errorf("%s unknown columns are NULL, want 13", got)
	}
	checkSums(t, s, "columns", 2)
}

// Clocks may be anywhere. Days that are near have a table; when a day comes near, its rows go there.
func TestDaysOfRows(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "days")
	now := time.Now().UTC()
	at := []time.Time{
		time.Unix(0, 0), time.UnixMilli(math.MinInt64 / 2), time.UnixMilli(math.MaxInt64 / 2), now.AddDate(0, 0, -500), now.AddDate(0, 0, 4), // far
		now.AddDate(0, 0, -399), now.AddDate(0, 0, -1), now, now.AddDate(0, 0, 1),
	}
	i := -1
	spool := newSpool(1, len(at), func() time.Time { i++; return at[i] })
	sink := opened(t, to)
	nettest.Must(t, sink.Deliver(context.Background(), spool.rows))
	if got := s.Exec("days", "SELECT count(*) FROM longhaul.flows_other")[0][0]; got != "5" {
		t.Errorf("%s rows of far days, want 5", got)
	}
	const tables = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'longhaul.flows'::regclass"
	if got := s.Exec("days", tables)[0][0]; got != "5" { // with flows_other
		t.Errorf("%s tables, want 5", got)
	}
	checkSums(t, s, "days", len(at))

	// Rows that came before their day had a table, as from a clock that was ahead.
	s.Exec("days", "UPDATE longhaul.flows SET ended = now() - interval '2 days' WHERE ended > now() + interval '3 days' AND ended < now() + interval '5 days'")
	if got := s.Exec("days", "SELECT longhaul.make_day(((now() AT TIME ZONE 'UTC') - interval '2 days')::date), (SELECT count(*) FROM longhaul.flows_other), (SELECT count(*) FROM longhaul.flows)")[0]; got[0] != "t" {
		t.Errorf("make_day: %v", got)
	}
	if got := s.Exec("days", "SELECT (SELECT count(*) FROM longhaul.flows_other), (SELECT count(*) FROM longhaul.flows)")[0]; fmt.Sprint(got) != "[4 9]" {
		t.Errorf("rows outside of days, and all: %v", got)
	}
	if got := s.Exec("days", "SELECT longhaul.make_day(NULL), longhaul.make_day((now() - interval '500 days')::date), longhaul.make_day('infinity')")[0]; fmt.Sprint(got) != "[f f f]" {
		t.Errorf("make_day of days that are far: %v", got)
	}
}

// 50 relays want the same days at the same moment: each day is made once, and nobody fails.
func TestDaysAreMadeOnce(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "midnight")
	var wg sync.WaitGroup
	errs := make([]error, 50)
	for i := range errs {
		wg.Go(func() {
			sink := opened(t, to)
			errs[i] = sink.Deliver(context.Background(), newSpool(uint64(i), 20, recent(uint64(i))).rows)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("relay %d: %v", i, err)
		}
	}
	if got := s.Exec("midnight", "SELECT count(*) FROM longhaul.flows_other")[0][0]; got != "0" {
		t.Errorf("%s rows have no table of their day", got)
	}
	checkSums(t, s, "midnight", 50*20)
}

// While 50 relays ship, the server and connections are killed at random moments: no record is lost,
// none is there twice, and the sums are those of the rows.
func TestKillsLoseNothing(t *testing.T) {
	const relays, records, kills = 50, 400, 20
	s := pgtest.Start(t)
	to := database(t, s, "kills")
	random := rand.New(rand.NewPCG(7, 7))
	var (
		wg       sync.WaitGroup
		attempts atomic.Int64
		failed   atomic.Int64
		tick     = make(chan struct{}, 1)
		gate     sync.RWMutex // held while the server is started
	)
	ship := func(spool *spool, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 9))
		for cursor := 0; cursor < len(spool.rows); {
			sink, err := Open(to)
			if err != nil {
				t.Error(err)
				return
			}
			for err == nil && cursor < len(spool.rows) {
				attempts.Add(1)
				select {
				case tick <- struct{}{}:
				default:
				}
				end := min(cursor+1+random.IntN(30), len(spool.rows))
				ctx, cancel := context.WithCancel(context.Background())
				if random.IntN(20) == 0 { // the relay is killed meanwhile
					time.AfterFunc(time.Duration(random.IntN(20))*time.Millisecond, cancel)
				}
				if err = sink.Deliver(ctx, spool.rows[cursor:end]); err == nil && random.IntN(10) > 0 {
					cursor = end
				} // else the relay dies before it has noted that
				cancel()
			}
			sink.Close()
			if err != nil {
				gate.RLock() // until it is there again
				failed.Add(1)
				gate.RUnlock()
			}
		}
	}
	for i := range relays {
		spool := newSpool(uint64(i), records, recent(uint64(i)))
		for seed := range 1 + i/(relays-5) { // the last ones have a successor that ships already
			wg.Go(func() { ship(spool, uint64(100*i+seed)) })
		}
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	killed := 0
	for killed < kills {
		for until := attempts.Load() + random.Int64N(60); attempts.Load() < until; {
			select {
			case <-tick:
			case <-done:
				t.Fatalf("all was delivered after %d kills", killed)
			}
		}
		gate.Lock()
		if killed++; killed%2 == 0 {
			s.Kill()
			s.Run()
		} else { // one connection's process: the server ends all others and recovers
			s.KillConnection("kills")
		}
		gate.Unlock()
	}
	<-done
	t.Logf("%d deliveries, %d of them failed", attempts.Load(), failed.Load())
	checkSums(t, s, "kills", relays*records)
}

func TestBin(t *testing.T) {
	for _, test := range []struct {
		v   float64
		bin int
	}{
		{1, 0}, {math.Nextafter(1, 0), -1}, {2, 32}, {1 << 40, 1280}, {math.Nextafter(1<<40, 0), 1279}, {0.5, -32}, {1e-6, -638}, {math.MaxFloat64, maxBin}, {math.SmallestNonzeroFloat64, minBin},
	} {
		if got := bin(test.v); got != test.bin {
			t.Errorf("the bin of %g is %d, want %d", test.v, got, test.bin)
		}
	}
	for b := -700; b < 1500; b++ {
		from, to := math.Exp2(float64(b)/32), math.Exp2(float64(b+1)/32)
		if bin(from) != b || bin(math.Sqrt(from*to)) != b || bin(math.Nextafter(to, 0)) != b {
			t.Errorf("bin %d: %d, %d, %d", b, bin(from), bin(math.Sqrt(from*to)), bin(math.Nextafter(to, 0)))
		}
	}
}

// Nothing of the service's environment changes where records go.
func TestEnvironmentIsIgnored(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "here")
	environment := map[string]string{
		"PGHOST": "192.0.2.1", "PGPORT": "1", "PGDATABASE": "other", "PGUSER": "nobody", "PGPASSWORD": "x", "PGPASSFILE": "/none",
		"PGSERVICE": "other", "PGSERVICEFILE": "/none", "PGOPTIONS": "-c default_transaction_read_only=on", "PGTZ": "Asia/Tokyo", "PGAPPNAME": "other",
		"PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/none", "PGSSLCERT": "/none", "PGSSLKEY": "/none", "PGSSLCERTMODE": "require", "PGSSLSNI": "2",
		"PGSSLNEGOTIATION": "direct", "PGSSLPASSWORD": "x", "PGTARGETSESSIONATTRS": "standby", "PGREQUIREAUTH": "gss", "PGCHANNELBINDING": "require",
		"PGMINPROTOCOLVERSION": "3.2", "PGMAXPROTOCOLVERSION": "3.0", "PGCONNECT_TIMEOUT": "x",
	}
	for name, value := range environment {
		t.Setenv(name, value)
	}
	sink := opened(t, to)
	nettest.Must(t, sink.Deliver(context.Background(), newSpool(1, 10, recent(1)).rows))
	for name := range environment { // pgtest asks by them
		os.Unsetenv(name)
	}
	s.Check("here", "SELECT application_name, usename FROM pg_stat_activity WHERE datname = 'here' AND pid <> pg_backend_pid()", "[[longhaul here]]")
	checkSums(t, s, "here", 10)
}

// A day that somebody reads goes when that ends, and relays ship meanwhile.
func TestDaysAreDroppedBesideReaders(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "drops")
	ctx := context.Background()
	old := newSpool(1, 10, func() time.Time { return time.Now().AddDate(0, 0, -100) })
	nettest.Must(t, opened(t, to).Deliver(ctx, old.rows))
	config, err := configOf(&to, reading)
	nettest.Must(t, err)
	reader, err := connect(ctx, &to, config)
	nettest.Must(t, err)
	defer closeNow(reader)
	if _, err := run(ctx, reader, "BEGIN; SELECT count(*) FROM longhaul.flows"); err != nil {
		t.Fatal(err)
	}
	var changes Changes
	dropped := make(chan error)
	go func() {
		c, err := MakeSchema(ctx, to, SchemaOptions{Keep: 30 * 24 * time.Hour})
		changes = c
		dropped <- err
	}()
	for s.Exec("drops", "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'")[0][0] == "0" {
		<-time.After(10 * time.Millisecond)
	}
	nettest.Must(t, opened(t, to).Deliver(ctx, newSpool(2, 10, time.Now).rows))
	s.Check("drops", "SELECT count(*) FROM longhaul.flows_other", "[[10]]")
	if _, err := run(ctx, reader, "COMMIT"); err != nil {
		t.Fatal(err)
	}
	nettest.Must(t, <-dropped)
	if len(changes.DroppedDays) != 1 {
		t.Errorf("%+v", changes)
	}
	nettest.Must(t, opened(t, to).Deliver(ctx, newSpool(3, 10, time.Now).rows)) // makes the day, for the other one's rows as well
	s.Check("drops", "SELECT relay, count(*) FROM longhaul.flows GROUP BY 1 ORDER BY 1", "[[relay-2.example.net 10] [relay-3.example.net 10]]")
	s.Check("drops", "SELECT count(*) FROM longhaul.flows_other", "[[0]]")
}

// A sink remembers a bounded number of lines, and adds to the right ones after it has forgotten them.
func TestLinesAreBounded(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "lines")
	opened := opened(t, to)
	const records = maxLines + 1000
	spool := newSpool(1, records, time.Now)
	for i := range spool.rows {
		spool.rows[i].Tunnel = fmt.Sprint("tunnel-", i%(records-500))
	}
	for from := 0; from < records; from += 1000 {
		nettest.Must(t, opened.Deliver(context.Background(), spool.rows[from:min(from+1000, records)]))
		if n := len(opened.(*sink).lines); n > maxLines {
			t.Fatalf("%d lines are remembered", n)
		}
	}
	checkSums(t, s, "lines", records)
}

// The statements of docs/history.md answer.
func TestStatementsOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/history.md")
	nettest.Must(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Many relays\n")
	section, _, _ = strings.Cut(section, "\n## ")
	statements := regexp.MustCompile(`(?m)^    select .*(\n      .*)*`).FindAllString(section, -1)
	if len(statements) != 2 {
		t.Fatalf("the page has the statements %q", statements)
	}
	s := pgtest.Shared(t)
	to := database(t, s, "page")
	nettest.Must(t, opened(t, to).Deliver(t.Context(), newSpool(1, 100, recent(1)).rows))
	for _, statement := range statements {
		if got := s.Exec("page", statement); len(got) == 0 {
			t.Errorf("%s: no rows", statement)
		}
	}
}

// A flow beyond the bounds of bins is in the outermost one, whether its day has ended or not.
func TestMatrixOfAnEndlessFlow(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "endless")
	end := time.Now().UTC().Truncate(24 * time.Hour).Add(-36 * time.Hour)
	rows := newSpool(1, 1, func() time.Time { return end }).rows
	r := &rows[0]
	r.BytesUp, r.BytesDown, r.Elapsed, r.ClientLeg.Side = 1, 0, units.Seconds(2*365*24*time.Hour), "lan"
	nettest.Must(t, opened(t, to).Deliver(t.Context(), rows))
	for _, since := range []time.Time{end, end.Add(-12 * time.Hour)} { // from its row, from the sums of its day
		s.Check("endless", "SELECT flows, goodput_median_bps = longhaul.middle("+fmt.Sprint(minBin)+"), time_median_s = longhaul.middle("+
			fmt.Sprint(bin(2*365*86400))+") FROM longhaul.matrix('"+since.Format(time.RFC3339)+"')", "[[1 t t]]")
	}
	s.Check("endless", "SELECT longhaul.bin(1e-300), longhaul.bin(1e300), longhaul.bin(0), longhaul.bin(-1), longhaul.bin(NULL), longhaul.bin(1)",
		fmt.Sprintf("[[%d %d    0]]", minBin, maxBin))
}

// A question in progress while its reader is closed closes its connection when it ends.
func TestReaderClosedDuringAQuestion(t *testing.T) {
	s := pgtest.Shared(t)
	r, err := OpenReader(database(t, s, "closed"), ReaderOptions{Patience: 5 * time.Minute})
	nettest.Must(t, err)
	for _, closed := range []bool{false, true} {
		var conn *pgconn.PgConn
		nettest.Must(t, r.ask(t.Context(), func(a *asking) error {
			conn = a.conn
			if closed {
				return r.Close()
			}
			return nil
		}))
		if conn.IsClosed() != closed {
			t.Errorf("reader closed: %t, its connection: %t", closed, conn.IsClosed())
		}
	}
}
