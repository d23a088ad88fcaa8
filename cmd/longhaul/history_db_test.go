//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres"
	"longhaul/internal/watch/archive/postgres/pgtest"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/test/nettest"
)

// The verbs read a database as a role that may only read, with its password from each of its places.
func TestHistoryOfDatabase(t *testing.T) {
	s := pgtest.Start(t)
	owner, err := archive.ParseTarget(s.Database("longhaul"))
	nettest.Must(t, err)
	s.Exec("longhaul", "CREATE ROLE reports LOGIN PASSWORD 'pass:word'")
	_, err = postgres.MakeSchema(t.Context(), owner, postgres.SchemaOptions{Reader: "reports"})
	nettest.Must(t, err)
	name := fillDatabase(t, owner)
	s.Write("data/pg_hba.conf", "local all reports scram-sha-256\nlocal all all trust\n")
	s.Exec("longhaul", "SELECT pg_reload_conf()")

	dir := t.TempDir()
	for file, content := range map[string]string{"password": "pass:word\n", "wrong": "other\n", "pgpass": `localhost:5432:longhaul:reports:pass\:word` + "\n"} {
		nettest.Must(t, os.WriteFile(dir+"/"+file, []byte(content), 0o600))
	}
	url := s.URL("reports", "longhaul")
	for _, c := range []struct {
		env  [2]string
		file string
		want string // in what it prints; else it succeeds
	}{
		{file: dir + "/password"},
		{env: [2]string{"PGPASSWORD", "pass:word"}},
		{env: [2]string{"PGPASSFILE", dir + "/pgpass"}},
		{file: dir + "/wrong", want: "refuses the password"},
		{env: [2]string{"PGPASSFILE", dir + "/none"}, want: "asks for a password"},
		{env: [2]string{"PGPASSWORD", "other"}, want: "password"},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			if c.env[0] != "" {
				t.Setenv(c.env[0], c.env[1])
			}
			words := []string{"history", "--db", url, "--limit", "5"}
			if c.file != "" {
				words = append(words, "--password-file", c.file)
			}
			code, stdout, stderr := grammarRun(words...)
			if ok := code == 0 && strings.Contains(stdout, "relay-"); ok != (c.want == "") || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "pass:word") {
				t.Errorf("status %d, %s%s", code, stdout, stderr)
			}
		})
	}

	t.Setenv("PGPASSWORD", "pass:word")
	ask := func(words ...string) string {
		t.Helper()
		code, stdout, stderr := grammarRun(append(words, "--db", url)...)
		if code != 0 {
			t.Fatalf("%q: status %d, %s", words, code, stderr)
		}
		for line := range strings.Lines(stdout) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && !strings.HasPrefix(line, "{") && !strings.Contains(line, ",") {
				t.Errorf("%q: %d columns: %s", words, n, line)
			}
		}
		return stdout
	}
	// A flow's records are in the order of its way, whatever the clocks say.
	shown := ask("history", "show", name)
	if near, far := strings.Index(shown, "relay        site-a/relay-a"), strings.Index(shown, "relay        site-b/relay-b"); near < 0 || far < near {
		t.Errorf("the flow has\n%s", shown)
	}
	if lines := strings.Split(strings.TrimSpace(ask("history", "export", "--csv", "--relay", "relay-b.example.net")), "\n"); len(lines) != 301 {
		t.Errorf("export has %d lines", len(lines))
	}
	if text := ask("history", "compare", "--before", "96h..48h", "--after", "48h", "--site", "site-a"); !strings.Contains(text, "right within 1.1 %") {
		t.Errorf("compare has\n%s", text)
	}
	// A flow through both relays counts once, unless it is asked of one of them, by any of its names.
	for words, want := range map[string]int{"": 300, "--site site-b": 270, "--relay relay-b": 300, "--relay site-a/relay-a.example.net": 300, "--relay site-b/relay-a": 0} {
		var c history.Comparison
		if err := json.Unmarshal([]byte(ask(append([]string{"history", "compare", "--before", "96h..95h", "--after", "7d", "--json"}, strings.Fields(words)...)...)), &c); err != nil ||
			c.After.Flows != int64(want) || c.After.PairsOnce == strings.Contains(words, "relay") {
			t.Errorf("%s: %v, %d flows, once %v; want %d", words, err, c.After.Flows, c.After.PairsOnce, want)
		}
	}
	table := ask("history", "matrix", "--since", "30d", "--limit", "1")
	if !strings.Contains(table, "FROM   TO     ") || !strings.Contains(table, "site-a site-b") || !strings.Contains(table, "1 line more with") {
		t.Errorf("the matrix is\n%s", table)
	}
	if csv := ask("history", "matrix", "--csv"); strings.Count(csv, "\n") != 3 || !strings.Contains(csv, "\nsite-a,site-b,") {
		t.Errorf("the matrix is\n%s", csv)
	}
	var got struct {
		Database string
		Records  []struct{ Relay string }
	}
	if err := json.Unmarshal([]byte(ask("history", "--json", "--limit", "0", "--site", "site-b")), &got); err != nil || got.Database != url || len(got.Records) == 0 {
		t.Errorf("%v, %q, %d records", err, got.Database, len(got.Records))
	}
}

// fillDatabase writes what two paired relays had, and returns the name of a flow that passed both.
// The clock of the first relay is a minute ahead.
func fillDatabase(t *testing.T, owner archive.Target) string {
	t.Helper()
	sink, err := postgres.Open(owner)
	nettest.Must(t, err)
	defer sink.Close()
	var name string
	for n := range 2 {
		maker := synthetic.NewMaker(1) // the same flows
		var rows []archive.Row
		for i := range 300 {
			r := maker.Record(time.Now().Add(-time.Duration(i) * 20 * time.Minute))
			r.ID, r.Relay = int64(i+1), "relay-a.example.net"
			r.Peer, r.Site = "site-b/b1", "site-b"
			if i%10 == 0 {
				r.Peer, r.Site = "", ""
			}
			if r.Start = r.Start.Add(time.Minute); n == 1 {
				r.Start, r.Relay, r.Peer, r.Site = r.Start.Add(-time.Minute), "relay-b.example.net", "site-a/a1", "site-a"
				r.ClientLeg, r.TargetLeg = r.TargetLeg, r.ClientLeg
			}
			name = r.Name.String()
			rows = append(rows, archive.Row{Record: r, Epoch: int64(n + 1), OwnSite: []string{"site-a", "site-b"}[n]})
		}
		nettest.Must(t, sink.Deliver(t.Context(), rows))
	}
	return name
}
