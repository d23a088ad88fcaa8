//go:build linux

package main

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres"
	"longhaul/internal/watch/archive/postgres/pgtest"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/test/nettest"
)

// Every verb that reads a database says in one sentence, with a hint that names what can be typed,
// why it has no answer; and of an empty database that there is nothing.
func TestDatabasesThatDoNotAnswer(t *testing.T) {
	s := pgtest.Start(t)
	made := func(name, then string) string {
		url := s.Database(name)
		to, err := archive.ParseTarget(url)
		nettest.Must(t, err)
		_, err = postgres.MakeSchema(t.Context(), to, postgres.SchemaOptions{})
		nettest.Must(t, err)
		if then != "" {
			s.Exec(name, then)
		}
		return url
	}
	s.Role("stranger")
	s.Exec("postgres", "CREATE ROLE secret LOGIN PASSWORD 'secret'")
	empty := made("empty", "")
	older, newer := made("older", "UPDATE longhaul.version SET version = 0"), made("newer", "UPDATE longhaul.version SET version = 9")
	bare := s.Database("bare")
	s.Write("data/pg_hba.conf", "local all secret scram-sha-256\nlocal all all trust\n")
	s.Exec("postgres", "SELECT pg_reload_conf()")
	silent, err := net.Listen("tcp4", "127.0.0.1:0") // the kernel accepts, nobody answers
	nettest.Must(t, err)
	defer silent.Close()
	password := t.TempDir() + "/password"
	nettest.Must(t, os.WriteFile(password, []byte("wrong\n"), 0o600))
	t.Setenv("PGPASSFILE", password+".none")

	verbs := []string{"history", "history show 999", "history show 5f3a61c2-9d0e-4b7f-8a35-1c2d3e4f5a6b", "history compare --at 1h", "history export", "history matrix"}
	for _, c := range []struct {
		name, flags   string
		problem, hint string
		verbs         []string // nil: all
	}{
		{"without tables", "--db " + bare, "the database lacks longhaul's tables", "run longhaul history schema --to " + bare, nil},
		{"older", "--db " + older, "the tables have version 0, this longhaul needs 2", "run longhaul history schema --to " + older, nil},
		{"newer", "--db " + newer, "the tables have version 9, this longhaul knows 2", "install a newer longhaul", nil},
		{"without rights", "--db " + s.URL("stranger", "empty"), "lacks a right: permission denied", "--reader ROLE", nil},
		{"no database", "--db " + s.URL("postgres", "nowhere"), `"nowhere" does not exist`, "createdb", nil},
		{"no server", "--db postgres://u@127.0.0.1:1/x", "no database answers at 127.0.0.1:1: connection refused", "host and port in the URL of --db", nil},
		{"silent", "--db postgres://u@" + silent.Addr().String() + "/x?sslmode=disable&connect_timeout=1", "no answer from the database at ", "reachable", nil},
		{"no password", "--db " + s.URL("secret", "empty"), "the database asks for a password", "--password-file", verbs[:1]},
		{"wrong password", "--db " + s.URL("secret", "empty") + " --password-file " + password, "the database refuses the password", "correct it in " + password, verbs[:1]},
		{"no file", "--db " + s.URL("secret", "empty") + " --password-file none", "cannot read the password of --db: open none", "make the file", verbs[:1]},
		{"password in the URL", "--db postgres://u:secret@db/x", "the URL of --db has a password in it", "--password-file FILE", verbs[:1]},
		{"no host", "--db postgres:///x", "the URL of --db has no host", "postgres://db.example.net", verbs[:1]},
		{"no URL", "--db db.example.net", "--db is not a URL", "postgres://", verbs[:1]},
		{"another kind", "--db mysql://u@db/x", `--db has no database of longhaul's: "mysql://"`, "postgres://", verbs[:1]},
		{"no such record", "--db " + empty, "there is no such record: 999", "history --db lists records", verbs[1:2]},
		{"no such flow", "--db " + empty, "no flow 5f3a61c2", "longhaul trace", verbs[2:3]},
	} {
		if c.verbs == nil {
			c.verbs = verbs
		}
		for _, verb := range c.verbs {
			t.Run(c.name+"/"+verb, func(t *testing.T) {
				code, stdout, stderr := grammarRun(strings.Fields(verb + " " + c.flags)...)
				problem, hint, _ := strings.Cut(stderr, "\n")
				if code == 0 || stdout != "" || !strings.Contains(problem, c.problem) || !strings.Contains(hint, "hint: ") || !strings.Contains(hint, c.hint) ||
					strings.Count(stderr, "\n") != 2 || strings.Contains(stderr, "secret@") || strings.Contains(stderr, "password_file") {
					t.Errorf("status %d, %s%s", code, stdout, stderr)
				}
			})
		}
	}
	for verb, want := range map[string]string{
		"history": "no such flows; the history has 0 records\n", "history compare --at 1h": "No transfer ended in either period.",
		"history export": "", "history matrix": "no flow ended ", "history matrix --limit 0": "no flow ended ", "history --json": `"records": []`,
	} {
		if code, stdout, stderr := grammarRun(strings.Fields(verb + " --db " + empty)...); code != 0 || !strings.Contains(stdout, want) || stderr != "" {
			t.Errorf("%s of an empty database: status %d, %s%s", verb, code, stdout, stderr)
		}
	}
	t.Setenv("PGPASSWORD", "other")
	if code, _, stderr := grammarRun("history", "--db", s.URL("secret", "empty")); code == 0 || !strings.Contains(stderr, "the database refuses the password") || !strings.Contains(stderr, "correct PGPASSWORD") {
		t.Errorf("a wrong PGPASSWORD: status %d, %s", code, stderr)
	}
	if code, _, stderr := grammarRun("history", "show", "00000000-0000-0000-0000-000000000000", "--db", empty); code != exitUsage || !strings.Contains(stderr, "is no name of a flow: it stands for a missing one") {
		t.Errorf("the zero name: status %d, %s", code, stderr)
	}
}

// A client that a relay has truncated is a prefix wherever it is shown, and who asks for an address in
// it gets the prefix to ask for.
func TestTruncatedClients(t *testing.T) {
	s := pgtest.Start(t)
	url := s.Database("longhaul")
	to, err := archive.ParseTarget(url)
	nettest.Must(t, err)
	_, err = postgres.MakeSchema(t.Context(), to, postgres.SchemaOptions{})
	nettest.Must(t, err)
	sink, err := postgres.Open(to)
	nettest.Must(t, err)
	defer sink.Close()
	var rows []archive.Row
	for i, client := range []string{"10.1.2.3:4711", "[2001:db8:1:2::3]:4711", "10.1.3.4:4711"} {
		r := synthetic.NewMaker(1).Record(time.Now())
		r.ID, r.Client.AddrPort = int64(i+1), netip.MustParseAddrPort(client)
		rows = append(rows, archive.Row{Record: r, Epoch: 1, OwnSite: "site-a", Clients: []archive.Clients{archive.TruncatedClients, archive.TruncatedClients, archive.NoClients}[i]})
	}
	nettest.Must(t, sink.Deliver(t.Context(), rows))
	for words, want := range map[string][2]string{ // in what it prints, and in the hint
		"history show 1": {"client       10.1.2.0/24\n", ""}, "history show 2": {"client       2001:db8:1::/48\n", ""}, "history show 3": {"\ntarget ", ""},
		"history --json": {`"client": "10.1.2.0/24"`, ""}, "history export --csv": {",2001:db8:1::/48,", ""}, "history": {" 10.1.2.0/24", ""},
		"history --client 10.1.2.0/24":                                 {" 10.1.2.0/24", ""},
		"history --client 10.1.2.3":                                    {"no such flows", "there are also flows of truncated clients: --client 10.1.2.0/24 has them"},
		"history --client 10.1.2.0/30":                                 {"no such flows", "--client 10.1.2.0/24 has them"},
		"history --client 2001:db8:1::9":                               {"no such flows", "--client 2001:db8:1::/48 has them"},
		"history --client 10.1.9.9":                                    {"no such flows", ""},
		"history --client 10.1.3.4":                                    {"no such flows", ""},
		"history export --client 10.1.2.3":                             {"", "--client 10.1.2.0/24 has them"},
		"history compare --before 4d..2d --after 2d --client 10.1.2.3": {"No transfer ended", "--client 10.1.2.0/24 has them"},
	} {
		code, stdout, stderr := grammarRun(strings.Fields(words + " --db " + url)...)
		if code != 0 || !strings.Contains(stdout, want[0]) || !strings.Contains(stderr, want[1]) || (want[1] == "") != (stderr == "") || strings.Contains(stdout, ".0:0") {
			t.Errorf("%s: status %d, %s%s", words, code, stdout, stderr)
		}
	}
}
