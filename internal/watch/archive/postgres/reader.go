package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/remedy"
)

// QuantileError is by which share of it a quantile of this database may be wrong: half a bin.
const QuantileError = 0.011

// Reader answers what a history answers, from the database of many relays. The ID of a record is
// its seq. Sums answer for whole hours, their histograms for whole days (UTC), rows for the rest.
// It may be used by several goroutines. Errors have remedies, but for the end of the context.
type Reader struct {
	target  archive.Target
	options ReaderOptions
	slots   chan struct{} // has as many values as there may be further questions at a time

	mu      sync.Mutex
	idle    []*pgconn.PgConn
	closed  bool      // questions in progress close their connections
	failure error     // of the last attempt to connect; nil: it succeeded
	failed  time.Time // when that was
}

var _ history.Source = (*Reader)(nil)

// ReaderOptions bound the questions to a database.
type ReaderOptions struct {
	// Patience is how long a question may take, the wait for its turn included.
	Patience time.Duration
	// OfUser lets PGPASSWORD, PGPASSFILE and ~/.pgpass give the password that no file gives.
	OfUser bool
}

const (
	// readers is how many questions are asked at once, and how many connections there are.
	readers = 2
	// failurePause is for how long a failure to connect answers for the next attempts, so that those
	// who ask do not queue for a database that is away.
	failurePause = 2 * time.Second
	// MaxRecords bounds the records of one list.
	MaxRecords = 100_000
)

// OpenReader makes a reader. It connects with the first question.
func OpenReader(t archive.Target, o ReaderOptions) (*Reader, error) {
	r := &Reader{target: t, options: o, slots: make(chan struct{}, readers)}
	if t.Kind != archive.Postgres {
		return nil, remedy.New(fmt.Errorf("%s is no database that longhaul reads", t.To), "name one like postgres://longhaul@db.example.net/longhaul")
	}
	if _, err := r.config(); err != nil {
		return nil, err
	}
	return r, nil
}

// Name is the database's URL, which has no secret in it.
func (r *Reader) Name() string { return r.target.To }

// Close closes the connections; those that questions use when they end.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.idle {
		closeNow(c)
	}
	r.idle, r.closed = nil, true
	return nil
}

// config is that of a connection, with the password of its user where that is wanted.
func (r *Reader) config() (*pgconn.Config, error) {
	if r.options.OfUser {
		return configOfUser(r.target, reading)
	}
	return configOf(&r.target, reading)
}

// asking is a transaction that sees the database as it is at one moment.
type asking struct {
	ctx  context.Context
	conn *pgconn.PgConn
}

// ask calls do within a transaction that only reads.
func (r *Reader) ask(ctx context.Context, do func(*asking) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.options.Patience, errSlow)
	defer cancel()
	err := r.inTurn(ctx, do)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	switch {
	case errors.Is(err, history.ErrNoRecord), errors.Is(err, history.ErrDisplaced):
		return err
	case errors.Is(err, errSlow):
		return remedy.New(fmt.Errorf("the database has not answered within %v", r.options.Patience), "ask for a shorter time, or see what it is busy with")
	}
	return explain(err, &r.target)
}

var errSlow = errors.New("no answer in time")

func (r *Reader) inTurn(ctx context.Context, do func(*asking) error) error {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.slots }()
	conn, used, err := r.take(ctx)
	if err != nil {
		return err
	}
	a := &asking{ctx, conn}
	err = a.begin(r.options.Patience)
	if err != nil && used && ctx.Err() == nil { // the server has gone and come since
		closeNow(conn)
		if a.conn, err = r.connect(ctx); err != nil {
			return err
		}
		err = a.begin(r.options.Patience)
	}
	if err == nil {
		err = do(a)
	}
	if err == nil || errors.Is(err, history.ErrNoRecord) || errors.Is(err, history.ErrDisplaced) {
		_, end := a.conn.Exec(ctx, "COMMIT").ReadAll()
		if end == nil && r.keep(a.conn) {
			return err
		}
	}
	closeNow(a.conn)
	return err
}

// keep keeps a connection for the next question, unless the reader is closed.
func (r *Reader) keep(conn *pgconn.PgConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.idle = append(r.idle, conn)
	}
	return !r.closed
}

// take is an idle connection, which the server may have closed, or a new one.
func (r *Reader) take(ctx context.Context) (conn *pgconn.PgConn, used bool, err error) {
	r.mu.Lock()
	if n := len(r.idle); n > 0 {
		conn, r.idle = r.idle[n-1], r.idle[:n-1]
	}
	r.mu.Unlock()
	if conn != nil {
		return conn, true, nil
	}
	conn, err = r.connect(ctx)
	return conn, false, err
}

func (r *Reader) connect(ctx context.Context) (*pgconn.PgConn, error) {
	r.mu.Lock()
	failure, failed := r.failure, r.failed
	r.mu.Unlock()
	if failure != nil && time.Since(failed) < failurePause {
		return nil, failure
	}
	conn, err := r.connectNow(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure = nil; err != nil && !errors.Is(err, context.Canceled) {
		r.failure, r.failed = err, time.Now()
	}
	return conn, err
}

func (r *Reader) connectNow(ctx context.Context) (*pgconn.PgConn, error) {
	config, err := r.config()
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = min(config.ConnectTimeout, r.options.Patience/2)
	conn, err := dial(ctx, &r.target, config)
	if err != nil {
		return nil, err
	}
	r2 := conn.ExecParams(ctx, "SELECT to_regclass('longhaul.version') IS NOT NULL", nil, nil, nil, nil).Read()
	if err = r2.Err; err == nil && string(r2.Rows[0][0]) != "t" {
		err = remedy.New(fmt.Errorf("the database lacks longhaul's tables"), "run longhaul history schema --to "+r.target.To)
	}
	if err == nil {
		err = checkVersion(ctx, conn, &r.target)
	}
	if err != nil {
		closeNow(conn)
		return nil, explain(err, &r.target)
	}
	return conn, nil
}

// begin begins the transaction. Its settings end with it, so PgBouncer may stand between.
func (a *asking) begin(patience time.Duration) error {
	ms := strconv.FormatInt(patience.Milliseconds(), 10)
	_, err := a.conn.Exec(a.ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = "+ms+
		"; SET LOCAL idle_in_transaction_session_timeout = "+ms+"; SET LOCAL lock_timeout = '5s'"+
		"; SET LOCAL search_path = pg_catalog; SET LOCAL TimeZone = 'UTC'; SET LOCAL bytea_output = 'hex'; SET LOCAL jit = off").ReadAll()
	return err
}

// each calls row with each row of an answer, whose texts are valid until the next one; nil is NULL.
func (a *asking) each(statement string, p *params, row func(*texted) error) error {
	rows := a.conn.ExecParams(a.ctx, statement, p.values, nil, nil, nil)
	var err error
	for err == nil && rows.NextRow() {
		t := texted{values: rows.Values()}
		if err = row(&t); err == nil {
			err = t.err
		}
	}
	_, end := rows.Close()
	return cmp.Or(err, end)
}

// params are the values of a statement.
type params struct{ values [][]byte }

// add returns the place of a value with its type.
func (p *params) add(value, ofType string) string {
	p.values = append(p.values, []byte(value))
	return "$" + strconv.Itoa(len(p.values)) + "::" + ofType
}

func (p *params) time(t time.Time) string {
	return p.add(bounded(t).Format("2006-01-02T15:04:05.999999Z"), "timestamptz")
}

func (p *params) number(v int64) string { return p.add(strconv.FormatInt(v, 10), "bigint") }

// texted reads the values of a row one after the other. It keeps the first error.
type texted struct {
	values [][]byte
	err    error
}

func (t *texted) next() []byte {
	v := t.values[0]
	t.values = t.values[1:]
	return v
}

func (t *texted) fail(v []byte) {
	if t.err == nil {
		t.err = remedy.New(fmt.Errorf("the database has %.40q where longhaul writes something else", v), "see who else writes into the schema longhaul")
	}
}

func (t *texted) text() string { return string(t.next()) }

// number reads a whole number, NULL as another one.
func (t *texted) number(null int64) int64 {
	b := t.next()
	if b == nil {
		return null
	}
	v, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		t.fail(b)
	}
	return v
}

// float reads a number, NULL as another one.
func (t *texted) float(null float64) float64 {
	b := t.next()
	if b == nil {
		return null
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		t.fail(b)
	}
	return v
}

// moment reads a time in Unix milliseconds, NULL as none.
func (t *texted) moment() time.Time {
	if t.values[0] == nil {
		t.next()
		return time.Time{}
	}
	return time.UnixMilli(t.number(0)).UTC()
}

// ms is a time of SQL in Unix milliseconds. date_part has float8, extract numeric, which takes ten
// times as long.
func ms(column string) string { return "(date_part('epoch', " + column + ") * 1000)::bigint" }

// choice is which records a question is about.
type choice struct {
	history.Selection
	// once leaves out what the far relays of pairs have, so that a flow counts once.
	once bool
}

// choose decides what a question counts: each flow through a pair once, where its client is, unless
// the selection has records of far relays alone, or names the relay.
func (a *asking) choose(of history.Selection) (choice, error) {
	c := choice{Selection: of, once: of.Relay == ""}
	if !c.once {
		return c, nil
	}
	p := &params{}
	err := a.each("SELECT EXISTS (SELECT FROM longhaul.lines WHERE true"+p.lineSelection(&c)+")", p, func(t *texted) error {
		c.once = t.text() == "t"
		return nil
	})
	return c, err
}

// selection adds the conditions on rows of longhaul.flows.
func (p *params) selection(of *choice) string {
	b := p.places(of, "coalesce(site, peer)")
	if of.Client.IsValid() {
		b += " AND client <<= " + p.add(of.Client.Masked().String(), "inet")
	}
	if of.once {
		b += " AND (client_side IS DISTINCT FROM 'wan' OR coalesce(site, peer) IS NULL)"
	}
	return b
}

// lineSelection adds the conditions on longhaul.lines, which do not tell clients apart.
func (p *params) lineSelection(of *choice) string {
	b := p.places(of, "site")
	if of.once {
		b += " AND (near OR site = '')"
	}
	return b
}

// places adds the conditions that rows and lines share. peer is the column of the peer's site.
func (p *params) places(of *choice, peer string) string {
	var b strings.Builder
	if of.Tunnel != "" {
		b.WriteString(" AND tunnel = " + p.add(clean(of.Tunnel), "text"))
	}
	if of.Relay != "" { // as lists show it: perhaps behind its site, and without its domain
		relay := clean(of.Relay)
		if site, name, has := strings.Cut(relay, "/"); has {
			b.WriteString(" AND relay_site = " + p.add(site, "text"))
			relay = name
		}
		name := p.add(relay, "text")
		b.WriteString(" AND (relay = " + name + " OR starts_with(relay, " + name + " || '.'))")
	}
	if of.Site != "" {
		site := p.add(clean(of.Site), "text")
		b.WriteString(" AND (relay_site = " + site + " OR " + peer + " = " + site + ")")
	}
	return b.String()
}

// lines is the condition on sums, empty: all.
func (p *params) lines(of *choice) string {
	condition := p.lineSelection(of)
	if condition == "" {
		return ""
	}
	return " AND line IN (SELECT line FROM longhaul.lines WHERE true" + condition + ")"
}

// ended is the condition that a flow ended in a period; zero times are no bound.
func (p *params) ended(since, until time.Time) string {
	var b strings.Builder
	if !since.IsZero() {
		b.WriteString(" AND ended >= " + p.time(since))
	}
	if !until.IsZero() {
		b.WriteString(" AND ended < " + p.time(until))
	}
	return b.String()
}

// Truncated is the prefix around an address to which relays have truncated clients, if rows have it;
// else invalid.
func (r *Reader) Truncated(ctx context.Context, client netip.Prefix) (found netip.Prefix, err error) {
	around, err := client.Addr().Prefix(flow.TruncatedBits(client.Addr()))
	if err != nil || client.Bits() <= around.Bits() {
		return found, err
	}
	err = r.ask(ctx, func(a *asking) error {
		p := &params{}
		return a.each("SELECT EXISTS (SELECT FROM longhaul.flows WHERE client = "+p.add(around.String(), "cidr")+")", p, func(t *texted) error {
			if t.text() == "t" {
				found = around
			}
			return nil
		})
	})
	return found, err
}

// Get is the record with an ID.
func (r *Reader) Get(ctx context.Context, id int64) (monitor.Record, error) {
	var found monitor.Record
	err := r.ask(ctx, func(a *asking) error {
		p := &params{}
		err := a.records("WHERE seq = "+p.number(id), p, func(r *monitor.Record) { found = *r })
		if err == nil && found.ID == 0 {
			err = fmt.Errorf("%w: %d", history.ErrNoRecord, id)
		}
		return err
	})
	return found, err
}
