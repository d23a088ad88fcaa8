package jsonrows

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
)

// table is where ClickHouse keeps the rows.
type table struct {
	database string // empty: the user's own
	name     string
}

func (t table) named(name string) string {
	if t.database == "" {
		return name
	}
	return t.database + "." + name
}

func (t table) String() string { return t.named(t.name) }

const identifier = `[A-Za-z_][A-Za-z0-9_]*`

var insertQuery = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^\s*INSERT\s+INTO\s+(?:TABLE\s+)?(?:(` + identifier + `)\.)?(` + identifier + `)\s+FORMAT\s+JSONEachRow\s*;?\s*$`)
})

var plainName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^` + identifier + `$`)
})

// tableOf finds the table of a URL's query.
func tableOf(query url.Values, p archive.Place) (table, error) {
	found := insertQuery().FindStringSubmatch(query.Get("query"))
	if found == nil {
		return table{}, remedy.New(errors.New("the query in "+p.URL()+" inserts no JSON rows"),
			"write it like https://ch.example.net:8443/?query=INSERT INTO flows FORMAT JSONEachRow")
	}
	t := table{found[1], found[2]}
	if t.database == "" {
		t.database = query.Get("database")
	}
	if t.database != "" && !plainName().MatchString(t.database) {
		return table{}, remedy.New(errors.New("invalid name of a database in "+p.URL()), "use letters, digits and underscores")
	}
	return t, nil
}

// SchemaOptions are what may be chosen of the tables.
type SchemaOptions struct {
	Keep  time.Duration // records that ended longer ago go, in whole days; 0: none does, or as it was
	Print bool          // the server is not asked, and stays as it is
}

// Schema makes what ClickHouse needs for the rows of a target, or brings it up to date: the table,
// the view TABLE_once, which has each row once, and the view TABLE_matrix, site by site, of the last
// day. It returns the statements. With Print they are those for ClickHouse 21 and later.
//
// A statement that fails leaves those before it done; the next call does the rest.
func Schema(ctx context.Context, t archive.Target, options SchemaOptions) ([]string, error) {
	u, query, err := parse(&t)
	if err != nil {
		return nil, err
	}
	if t.Kind != archive.JSONRows || !query.Has("query") {
		return nil, remedy.New(errors.New("only ClickHouse and PostgreSQL need tables for the records"),
			"name it like https://ch.example.net:8443/?query=INSERT INTO flows FORMAT JSONEachRow")
	}
	to, err := tableOf(query, t.Place)
	if err != nil {
		return nil, err
	}
	s := schema{table: to, days: int64(options.Keep / (24 * time.Hour)), present: true}
	if options.Keep != 0 && s.days < 1 {
		return nil, remedy.New(fmt.Errorf("invalid time to keep: %v", options.Keep), "keep records for a day at least")
	}
	if options.Print {
		return s.statements(), nil
	}
	for _, own := range []string{"query", "database", "async_insert", waitSetting, "input_format_skip_unknown_fields"} {
		query.Del(own)
	}
	query.Set("wait_end_of_query", "1")
	u.RawQuery = query.Encode()
	e, err := newEndpoint(t, u)
	if err != nil {
		return nil, err
	}
	defer e.close()
	if err := s.look(ctx, e); err != nil {
		return nil, err
	}
	statements := s.statements()
	for i, one := range statements {
		if _, err := e.execute(ctx, one); err != nil {
			return statements[:i], err
		}
	}
	return statements, nil
}

// execute has one statement executed, and returns the answer as text.
func (e *endpoint) execute(ctx context.Context, statement string) (string, error) {
	response, err := e.post(ctx, http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, []byte(statement))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := e.read(response)
	if r := (*refusal)(nil); errors.As(err, &r) {
		fix := r.remedy()
		if r.code == 497 {
			fix = "grant the user CREATE, ALTER, DROP VIEW and SELECT there, or name another user"
		}
		return "", remedy.New(fmt.Errorf("%s does not change its tables: %s", r.host, quoted(r.status, r.line)), fix)
	}
	return string(text), err
}

// schema is what is to be made, by what there is.
type schema struct {
	table
	present  bool     // the server has the types of version 21
	days     int64    // 0: as it is
	database bool     // the database is there
	has      []string // columns of the table; none: it is not there
}

// look asks the server for its version and for what is there.
func (s *schema) look(ctx context.Context, e *endpoint) error {
	version, err := e.execute(ctx, "SELECT version()")
	if err != nil {
		return err
	}
	version = e.line(version)
	first, _, _ := strings.Cut(version, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return remedy.New(fmt.Errorf("%s is not ClickHouse: its version is %q", e.url.Host, version), "correct the address of "+e.target.Place.URL())
	}
	s.present = major >= 21
	if !s.present && s.days > 0 {
		return remedy.New(fmt.Errorf("ClickHouse %s lets no rows go by their age", version),
			fmt.Sprintf("leave the time to keep out, and drop old months by ALTER TABLE %v DROP PARTITION 202601", s.table))
	}
	current := "currentDatabase()"
	if s.table.database != "" {
		current = "'" + s.table.database + "'"
		there, err := e.execute(ctx, "SELECT count() FROM system.databases WHERE name = "+current)
		if err != nil {
			return err
		}
		s.database = strings.TrimSpace(there) != "0"
	}
	names, err := e.execute(ctx, "SELECT name FROM system.columns WHERE database = "+current+" AND table = '"+s.name+"'")
	if err != nil {
		return err
	}
	s.has = strings.Fields(names)
	engines, err := e.execute(ctx, "SELECT name, engine FROM system.tables WHERE database = "+current)
	if err != nil {
		return err
	}
	return s.own(engines)
}

// own is an error if another program has a table by one of the names, by lines of names and engines.
func (s *schema) own(engines string) error {
	for line := range strings.Lines(engines) {
		name, engine, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch name {
		case s.name:
			own := strings.HasSuffix(engine, "ReplacingMergeTree")
			for _, key := range []string{"relay", "epoch", "id", "ended_ms"} {
				own = own && slices.Contains(s.has, key)
			}
			if own {
				continue
			}
		case s.name + "_once", s.name + "_matrix":
			if engine == "View" {
				continue
			}
		default:
			continue
		}
		return remedy.New(fmt.Errorf("the database has another table %s, with the engine %s", printable.String(name), printable.String(engine)),
			"name another table in "+archive.ToFlag.URL()+", or rename that one")
	}
	return nil
}

// types are those of the columns, for present versions and for old ones; empty: the same. Those that
// may be unknown or none are nullable. The times are made of the milliseconds.
var types = map[string]struct{ present, old string }{
	"relay":                      {"LowCardinality(String)", "String"},
	"epoch":                      {"Int64", ""},
	"id":                         {"Int64", ""},
	"started":                    {"DateTime64(3, 'UTC') MATERIALIZED fromUnixTimestamp64Milli(started_ms, 'UTC')", "DateTime('UTC') MATERIALIZED toDateTime(intDiv(started_ms, 1000), 'UTC')"},
	"ended":                      {"DateTime64(3, 'UTC') MATERIALIZED fromUnixTimestamp64Milli(ended_ms, 'UTC')", "DateTime('UTC') MATERIALIZED toDateTime(intDiv(ended_ms, 1000), 'UTC')"},
	"elapsed_us":                 {"Int64", ""},
	"name":                       {"Nullable(UUID)", ""},
	"relay_site":                 {"LowCardinality(String)", "String"},
	"tunnel":                     {"LowCardinality(String)", "String"},
	"site":                       {word, oldWord},
	"peer":                       {word, oldWord},
	"hop":                        {word, oldWord},
	"client":                     {"Nullable(String)", ""},
	"client_port":                {"Nullable(UInt16)", ""},
	"target":                     {"Nullable(String)", ""},
	"target_port":                {"Nullable(UInt16)", ""},
	"bytes_up":                   {"Int64", ""},
	"bytes_down":                 {"Int64", ""},
	"cause":                      {word, oldWord},
	"cause_leg":                  {word, oldWord},
	"cause_share":                {"Nullable(Float64)", ""},
	"ended_by":                   {word, oldWord},
	"reason":                     {word, oldWord},
	"error":                      {"Nullable(String)", ""},
	"resumes":                    {number, ""},
	"outage_us":                  {number, ""},
	"client_side":                {word, oldWord},
	"client_congestion_control":  {word, oldWord},
	"client_rtt_us":              {number, ""},
	"client_min_rtt_us":          {number, ""},
	"client_bytes_sent":          {number, ""},
	"client_bytes_retransmitted": {number, ""},
	"client_retransmits":         {number, ""},
	"target_side":                {word, oldWord},
	"target_congestion_control":  {word, oldWord},
	"target_rtt_us":              {number, ""},
	"target_min_rtt_us":          {number, ""},
	"target_bytes_sent":          {number, ""},
	"target_bytes_retransmitted": {number, ""},
	"target_retransmits":         {number, ""},
}

const (
	word    = "LowCardinality(Nullable(String))"
	oldWord = "Nullable(String)"
	number  = "Nullable(Int64)"
)

// definitions are the table's columns with their types, in order.
func (s *schema) definitions() (all [][2]string) {
	for _, c := range archive.Columns() {
		definition := types[c.Name].present
		if old := types[c.Name].old; old != "" && !s.present {
			definition = old
		}
		if strings.Contains(definition, " MATERIALIZED ") {
			all = append(all, [2]string{c.Name + millisecondSuffix, "Int64"})
		}
		all = append(all, [2]string{c.Name, definition})
	}
	return all
}

// statements make the missing tables, views and columns.
//
// The key of a row is in the sorting key, so that rows that came twice become one. The hour before it
// lets a query over a time read that time only. A record's end never changes, unlike the names of its
// sites, which must not be in the key. Partitions of days would be too many for the rows of one
// request, where a relay ships months.
func (s *schema) statements() (all []string) {
	if s.table.database != "" && !s.database {
		all = append(all, "CREATE DATABASE IF NOT EXISTS "+s.table.database)
	}
	if len(s.has) == 0 {
		all = append(all, s.create())
	} else {
		all = append(all, s.missing()...)
		if s.days > 0 {
			all = append(all, fmt.Sprintf("ALTER TABLE %v MODIFY TTL %s", s.table, s.ttl()))
		}
	}
	for _, view := range []struct{ name, query string }{{s.name + "_once", s.once()}, {s.name + "_matrix", s.matrix()}} {
		name := s.named(view.name)
		if s.present {
			all = append(all, "CREATE OR REPLACE VIEW "+name+" AS\n"+view.query)
		} else {
			all = append(all, "DROP TABLE IF EXISTS "+name, "CREATE VIEW "+name+" AS\n"+view.query)
		}
	}
	return all
}

func (s *schema) create() string {
	var text strings.Builder
	fmt.Fprintf(&text, "CREATE TABLE IF NOT EXISTS %v (\n", s.table)
	for i, c := range s.definitions() {
		if i > 0 {
			text.WriteString(",\n")
		}
		text.WriteString("    " + c[0] + " " + c[1])
	}
	if s.present {
		text.WriteString(",\n    INDEX by_client client TYPE bloom_filter GRANULARITY 1")
		text.WriteString(",\n    INDEX by_name name TYPE bloom_filter GRANULARITY 1")
	}
	text.WriteString("\n) ENGINE = ReplacingMergeTree\nPARTITION BY toYYYYMM(ended)\nORDER BY (toStartOfHour(ended), relay, epoch, id)")
	if s.days > 0 {
		text.WriteString("\nTTL " + s.ttl())
	}
	return text.String()
}

func (s *schema) ttl() string { return fmt.Sprintf("toDateTime(ended) + INTERVAL %d DAY", s.days) }

// missing adds columns that a table of an earlier version does not have.
func (s *schema) missing() (all []string) {
	for _, c := range s.definitions() {
		if !slices.Contains(s.has, c[0]) {
			all = append(all, fmt.Sprintf("ALTER TABLE %v ADD COLUMN %s %s", s.table, c[0], c[1]))
		}
	}
	return all
}

// from reads each row once. No row is in two months, so each month can be looked at by itself.
func (s *schema) from() string { return "FROM " + s.table.String() + " FINAL" }

func (s *schema) settings() string {
	if s.present {
		return "\nSETTINGS do_not_merge_across_partitions_select_final = 1"
	}
	return ""
}

func (s *schema) once() string {
	var names []string
	for _, c := range s.definitions() {
		names = append(names, c[0])
	}
	return "SELECT " + strings.Join(names, ", ") + "\n" + s.from() + s.settings()
}

// matrixQuery has what flows between sites did, by the relay near to the client.
//
//go:embed matrix.sql
var matrixQuery string

func (s *schema) matrix() string {
	return strings.TrimSpace(strings.ReplaceAll(matrixQuery, "FROM flows FINAL", s.from())) + s.settings()
}
