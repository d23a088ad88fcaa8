//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"longhaul/internal/watch/archive/postgres/pgtest"
)

// TestHistorySchema makes the tables, gives rights and drops old days with a PostgreSQL that runs.
func TestHistorySchema(t *testing.T) {
	s := pgtest.Start(t)
	url := s.Database("archive")
	s.Exec("archive", "CREATE ROLE relays LOGIN; CREATE ROLE reports LOGIN")
	schema := func(wantCode int, want string, args ...string) {
		t.Helper()
		var out bytes.Buffer
		code := run(&env{ctx: t.Context(), args: append([]string{"history", "schema", "--to", url}, args...), stdin: strings.NewReader(""),
			stdout: &out, stderr: &out, getenv: func(string) string { return "" }})
		if code != wantCode || out.String() != want {
			t.Errorf("%v ends with %d:\n%s\nwant %d:\n%s", args, code, &out, wantCode, want)
		}
	}
	schema(0, "made the tables, version 2\n")
	schema(0, "nothing to do: the tables have version 2\n")
	schema(0, "granted rights to relays\ngranted rights to reports\n", "--writer", "relays", "--reader", "reports")
	schema(0, "nothing to do: the tables have version 2\n", "--writer", "relays", "--reader", "reports", "--keep", "400d", "--keep-sums", "3650d")
	s.Exec("archive", `SELECT longhaul.make_day(now()::date - 300), longhaul.make_day(now()::date - 299), longhaul.make_day(now()::date);
		INSERT INTO longhaul.flows (relay, epoch, id, started, ended, elapsed_us, relay_site, tunnel, bytes_up, bytes_down)
			VALUES ('r', 1, 1, '1970-01-01', '1970-01-01 00:00Z', 1, '', '', 0, 0), ('r', 1, 2, now(), now(), 1, '', '', 0, 0);
		INSERT INTO longhaul.epochs VALUES (1, 2, 'r', now() - interval '4000 days'), (2, 2, 'r', now())`)
	schema(0, "nothing to do: the tables have version 2\n", "--keep", "30000d")
	days := s.Exec("archive", "SELECT (now() AT TIME ZONE 'UTC')::date - 300, (now() AT TIME ZONE 'UTC')::date - 299")[0]
	schema(0, "dropped the records of 2 days, from "+days[0]+" to "+days[1]+"\ndropped 1 records from before "+
		time.Now().UTC().AddDate(0, 0, -200).Format(time.DateOnly)+" of clocks that are off\n", "--keep", "200d")
	s.Check("archive", "SELECT id FROM longhaul.flows", "[[2]]")
	s.Check("archive", "SELECT epoch FROM longhaul.epochs ORDER BY 1", "[[1] [2]]") // with sums that are kept
	schema(0, "nothing to do: the tables have version 2\n", "--keep", "200d", "--keep-sums", "3650d")
	s.Check("archive", "SELECT epoch FROM longhaul.epochs ORDER BY 1", "[[1] [2]]")
	s.Exec("archive", `INSERT INTO longhaul.flows (relay, epoch, id, started, ended, elapsed_us, relay_site, tunnel, bytes_up, bytes_down)
		VALUES ('r', 1, 3, now(), now() - interval '9 days', 1, '', '', 0, 0)`)
	day := s.Exec("archive", "SELECT (now() AT TIME ZONE 'UTC')::date - 9")[0][0]
	schema(0, "gave the records of 1 day a table of their own, from "+day+" to "+day+"\n")
	s.Exec("archive", "DROP FUNCTION longhaul.matrix; UPDATE longhaul.version SET functions = 'those of another release'")
	schema(0, "made the functions anew\n")
	s.Check("archive", "SELECT count(*) FROM longhaul.matrix()", "[[0]]")
	schema(1, "longhaul: the database refuses: role \"missing\" does not exist (42704)\n"+
		"longhaul: hint: make the role first: createuser --pwprompt ROLE\n", "--writer", "missing")

	// What somebody else has made under the name stays.
	url = s.Database("other")
	s.Exec("other", "CREATE SCHEMA longhaul AUTHORIZATION other")
	schema(1, "longhaul: the database has a schema longhaul that is not longhaul's\nlonghaul: hint: rename it, or name another database\n")
	url = s.URL("relays", "archive")
	schema(1, "longhaul: the database's role lacks a right: permission denied for table flows_other\n"+
		"longhaul: hint: run it as the owner of the tables, and the first time as the owner of the database\n", "--keep", "400d")

	// What it prints makes the same.
	var printed bytes.Buffer
	code := run(&env{ctx: t.Context(), args: []string{"history", "schema", "--to", url, "--print", "--writer", "relays", "--reader", "reports"},
		stdin: strings.NewReader(""), stdout: &printed, stderr: &printed, getenv: func(string) string { return "" }})
	s.Exec("other", "DROP SCHEMA longhaul; "+printed.String())
	s.Check("other", "SET ROLE reports; SELECT version FROM longhaul.version", "[[2]]")
	if code != 0 {
		t.Errorf("--print ends with %d", code)
	}
}
