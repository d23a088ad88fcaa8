package postgres

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres/pgtest"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// refuses delivers, and checks the sentence and its remedy.
func refuses(t *testing.T, to archive.Target, problem, fix string) {
	t.Helper()
	sink, err := Open(to)
	if err == nil {
		err = sink.Deliver(context.Background(), newSpool(1, 10, recent(1)).rows)
		sink.Close()
	}
	if err == nil {
		t.Errorf("delivered, want %q", problem)
		return
	}
	t.Log(remedy.Line(err))
	if !strings.Contains(err.Error(), problem) || !strings.Contains(remedy.Of(err), fix) || strings.ContainsAny(err.Error(), "\n") || len(remedy.Line(err)) > 500 {
		t.Errorf("%s\nremedy %s\nwant %q and %q", err, remedy.Of(err), problem, fix)
	}
}

func delivers(t *testing.T, to archive.Target) {
	t.Helper()
	if err := opened(t, to).Deliver(context.Background(), newSpool(1, 10, recent(1)).rows); err != nil {
		t.Errorf("%s: %s", to.To, remedy.Line(err))
	}
}

// What the server refuses is one sentence with a remedy, and records go on once it is mended.
func TestServerRefuses(t *testing.T) {
	s := pgtest.Shared(t)
	s.Role("pgwriter")
	s.Role("pgreader")
	url := s.Database("trouble")
	to := target(t, url)
	refuses(t, to, "the database lacks longhaul's tables", "run longhaul history schema --to "+url)
	refuses(t, target(t, s.URL("trouble", "nowhere")), `no such database: database "nowhere" does not exist`, "createdb")
	refuses(t, target(t, s.URL("stranger", "trouble")), `role "stranger" does not exist`, "make the role")
	_, err := MakeSchema(context.Background(), to, SchemaOptions{})
	nettest.Must(t, err)
	for statements, want := range map[string][2]string{
		"UPDATE longhaul.version SET version = 3": {"the tables have version 3, this longhaul knows 2", "install a newer longhaul"},
		"UPDATE longhaul.version SET version = 1": {"the tables have version 1, this longhaul needs 2", "run longhaul history schema"},
		"DELETE FROM longhaul.version":            {"the table longhaul.version is empty", "longhaul history schema"},
	} {
		s.Exec("trouble", statements)
		refuses(t, to, want[0], want[1])
		s.Exec("trouble", "DELETE FROM longhaul.version; INSERT INTO longhaul.version VALUES (2)")
	}

	// A role without rights; then with those of a writer, and no more.
	writer := target(t, s.URL("pgwriter", "trouble"))
	refuses(t, writer, "the database's role lacks a right: permission denied for schema longhaul", "--writer ROLE")
	_, err = MakeSchema(context.Background(), to, SchemaOptions{Writer: "pgwriter", Reader: "pgreader"})
	nettest.Must(t, err)
	delivers(t, writer)
	checkSums(t, s, "trouble", 10)
	s.Check("trouble", "SET ROLE pgreader; SELECT count(*) FROM longhaul.flows", "[[10]]")
	for role, statements := range map[string][]string{
		"pgwriter": {"DELETE FROM longhaul.flows", "SELECT * FROM longhaul.flows", "TRUNCATE longhaul.epochs", "CREATE TABLE longhaul.x ()", "DROP TABLE longhaul.flows_other", "UPDATE longhaul.version SET version = 3"},
		"pgreader": {"DELETE FROM longhaul.flows", "SELECT longhaul.make_day(now()::date - 9)", "INSERT INTO longhaul.version VALUES (3)"},
	} {
		for _, statement := range statements {
			if _, err := s.Try("trouble", "SET ROLE "+role+"; "+statement); sqlState(err) != "42501" {
				t.Errorf("%s may %s: %v", role, statement, err)
			}
		}
	}
	refuses(t, target(t, s.URL("pgreader", "trouble")), "lacks a right: permission denied", "--writer ROLE")

	s.Exec("postgres", "ALTER ROLE pgwriter SET default_transaction_read_only = on")
	refuses(t, writer, "is read-only, such as a standby is", "name the primary")
	s.Exec("postgres", "ALTER ROLE pgwriter RESET default_transaction_read_only; ALTER ROLE pgwriter CONNECTION LIMIT 0")
	refuses(t, writer, "the database has no connection left", "max_connections")
	s.Exec("postgres", "ALTER ROLE pgwriter CONNECTION LIMIT -1")
	delivers(t, writer)

	s.Exec("postgres", "CREATE DATABASE latin OWNER trouble ENCODING 'LATIN1' TEMPLATE template0")
	t.Cleanup(func() { s.Exec("postgres", "DROP DATABASE latin") })
	refuses(t, target(t, s.URL("trouble", "latin")), "the database latin has the encoding LATIN1", "--encoding UTF8")

	refuses(t, target(t, "postgres://u@h/db?sslmode=never"), "cannot use postgres://u@h/db?sslmode=never", "correct the sink's URL")
}

// On a standby, and with the primary behind it in the URL.
func TestStandby(t *testing.T) {
	s := pgtest.Start(t)
	url := s.Database("primary")
	to := target(t, url)
	_, err := MakeSchema(context.Background(), to, SchemaOptions{})
	nettest.Must(t, err)
	standby := pgtest.Standby(t, s)
	refuses(t, target(t, standby.URL("primary", "primary")), "is read-only, such as a standby is", "name the primary")
	_, err = MakeSchema(context.Background(), target(t, standby.URL("primary", "primary")), SchemaOptions{})
	if err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("the standby's schema: %v", err)
	}
	both := target(t, "postgres:///primary?user=primary&host="+standby.Dir+","+s.Dir)
	delivers(t, both)
	checkSums(t, s, "primary", 10)
	s.Stop()
	refuses(t, to, "no database answers at "+s.Dir, "start the server")
}

// The database's disk is full: nothing of the delivery is there, and all of it once there is room.
func TestFullDisk(t *testing.T) {
	nettest.RequireRoot(t)
	s := pgtest.Start(t)
	to := database(t, s, "full")
	dir := filepath.Join(s.Dir, "small")
	nettest.Must(t, os.Mkdir(dir, 0o755))
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=4M,mode=777", "longhaul", dir).CombinedOutput(); err != nil {
		t.Skipf("needs to mount: %s", out)
	}
	t.Cleanup(func() {
		s.Kill()
		nettest.Must(t, exec.Command("umount", dir).Run())
	})
	nettest.Must(t, os.Mkdir(dir+"/t", 0o777))
	nettest.Must(t, exec.Command("chown", "postgres", dir+"/t").Run())
	s.Exec("full", "CREATE TABLESPACE small LOCATION '"+dir+"/t'")
	s.Exec("full", "ALTER TABLE longhaul.days SET TABLESPACE small")
	nettest.Must(t, os.WriteFile(dir+"/fill", make([]byte, 4<<20-64<<10), 0o600))
	spool := newSpool(1, 5000, recent(1))
	err := opened(t, to).Deliver(context.Background(), spool.rows)
	if err == nil || !strings.HasPrefix(err.Error(), "the database's disk is full: ") || !strings.Contains(remedy.Of(err), "make room") {
		t.Fatalf("%v; %s", err, remedy.Of(err))
	}
	checkSums(t, s, "full", 0)
	nettest.Must(t, os.Remove(dir+"/fill"))
	nettest.Must(t, opened(t, to).Deliver(context.Background(), spool.rows))
	checkSums(t, s, "full", 5000)
}

// Passwords and certificates over TCP.
func TestTLSAndPasswords(t *testing.T) {
	port := freePort(t)
	s := pgtest.New(t, "-h", "127.0.0.1", "-p", port)
	authority, stranger := newAuthority(t, "one"), newAuthority(t, "other")
	s.Run()
	s.Database("secure")
	s.Exec("postgres", "ALTER ROLE secure PASSWORD 'right one'; CREATE ROLE certified LOGIN IN ROLE secure; SET password_encryption = md5; CREATE ROLE plain LOGIN PASSWORD 'right one' IN ROLE secure")
	s.Stop()
	s.Write("data/pg_hba.conf", "local all all trust\nhostssl all certified all cert\nhostssl all plain all password\nhost all all all scram-sha-256\n")
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		nettest.Must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	plain := "postgres://secure@127.0.0.1:" + port + "/secure"
	s.Run()
	_, err := MakeSchema(context.Background(), target(t, s.URL("secure", "secure")), SchemaOptions{})
	nettest.Must(t, err)
	to := target(t, plain)
	refuses(t, to, "the database asks for a password", "password_file")
	to.PasswordFile = filepath.Join(dir, "none")
	refuses(t, to, "cannot read the password of the sink", "make the file")
	to.PasswordFile = file("empty", "\nx")
	refuses(t, to, "no password in ", "first line")
	to.PasswordFile = file("password", "wrong one\n")
	refuses(t, to, "the database refuses the password", "correct it in "+to.PasswordFile)
	sink := opened(t, to)
	if err := sink.Deliver(context.Background(), newSpool(1, 10, recent(1)).rows); err == nil || strings.Contains(err.Error(), "wrong one") {
		t.Error(err)
	}
	file("password", "right one\n") // it is read for each connection
	nettest.Must(t, sink.Deliver(context.Background(), newSpool(1, 10, recent(1)).rows))
	// Who asks at a shell may have it where psql takes it from; a relay takes it from its file alone.
	for name, value := range map[string]string{"PGPASSWORD": "right one", "PGPASSFILE": file("pgpass", "127.0.0.1:*:*:secure:right one\n")} {
		t.Setenv(name, value)
		refuses(t, target(t, plain), "the database asks for a password", "password_file")
		if _, err := MakeSchema(context.Background(), target(t, plain), SchemaOptions{}); err != nil {
			t.Errorf("with %s: %s", name, remedy.Line(err))
		}
		os.Unsetenv(name)
	}
	to.To = plain + "?sslmode=require"
	refuses(t, to, "has no TLS", "ssl = on")

	s.Stop()
	cert, key := authority.issue(t, "db.example.net", net.IPv4(127, 0, 0, 1))
	s.With("-c", "ssl=on", "-c", "ssl_cert_file="+s.Write("server.crt", cert), "-c", "ssl_key_file="+s.Write("server.key", key), "-c", "ssl_ca_file="+s.Write("ca.crt", authority.pem))
	s.Run()
	delivers(t, to)
	to.To = plain + "?sslmode=verify-full"
	refuses(t, to, "is not trusted: x509: certificate signed by unknown authority", "name the authority's file")
	to.CA = file("stranger.crt", stranger.pem)
	refuses(t, to, "is not trusted: x509: certificate signed by unknown authority", "name the authority's file")
	to.CA = file("none.crt", "none")
	refuses(t, to, "cannot use "+to.To, "correct the sink's URL or its files")
	to.CA = file("ca.crt", authority.pem)
	delivers(t, to)
	for _, mode := range []string{"disable", "allow", "prefer"} {
		unheld := to
		unheld.To = plain + "?sslmode=" + mode
		refuses(t, unheld, "with sslmode="+mode+" the server's certificate is not held against "+to.CA, "leave out either sslmode or ca")
	}
	to.CA, to.To = "", to.To+"&sslrootcert="+filepath.Join(dir, "ca.crt")
	delivers(t, to)
	if got := s.Exec("postgres", "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND usename = 'secure'")[0][0]; got == "0" {
		t.Error("no connection has TLS")
	}
	to.To = strings.Replace(to.To, "127.0.0.1", "localhost", 1)
	refuses(t, to, "has the certificate of another host", "name the host as its certificate does")

	mutual := to
	mutual.PasswordFile, mutual.CA = "", filepath.Join(dir, "ca.crt")
	mutual.To = "postgres://certified@127.0.0.1:" + port + "/secure?sslmode=verify-full"
	refuses(t, mutual, "connection requires a valid client certificate", "name one that it trusts")
	cert, key = authority.issue(t, "certified")
	mutual.Certificate, mutual.Key = file("client.crt", cert), file("client.key", key)
	delivers(t, mutual)
	// It is gone at the next connection, and comes again.
	nettest.Must(t, os.Rename(mutual.Certificate, mutual.Certificate+".old"))
	refuses(t, mutual, "client.crt: no such file or directory", "correct the sink's URL or its files")
	nettest.Must(t, os.Rename(mutual.Certificate+".old", mutual.Certificate))
	delivers(t, mutual)
	cert, key = stranger.issue(t, "certified")
	mutual.Certificate, mutual.Key = file("client.crt", cert), file("client.key", key)
	refuses(t, mutual, "connection requires a valid client certificate", "name one that it trusts")
}

// Without sslmode a server elsewhere must show its certificate, and none gets the password in plain text
// over a connection that is not verified.
func TestUsualTLS(t *testing.T) {
	for to, want := range map[string]string{
		"postgres://u@db.example.net/d":                 "verify-full",
		"postgres://u@10.0.0.1:6432/d":                  "verify-full",
		"postgres://u@127.0.0.1,db.example.net/d":       "verify-full",
		"postgres://u@db.example.net/d?sslmode=require": "require !password",
		"postgres://u@127.0.0.1:6432/d":                 "prefer",
		"postgres://u@[::1]:6432/d":                     "prefer",
		"postgres:///d?host=/run/postgresql":            "prefer",
		"postgres://u@db/d?host=/run/postgresql":        "prefer",
	} {
		target := target(t, to)
		full, err := complete(&target, writing)
		nettest.Must(t, err)
		parsed, err := url.Parse(full)
		nettest.Must(t, err)
		u := parsed.Query()
		if got := strings.TrimSpace(u.Get("sslmode") + " " + u.Get("require_auth")); got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	a.key, a.pem, _ = a.sign(t, a.cert)
	return a
}

func (a *authority) sign(t *testing.T, cert *x509.Certificate) (*ecdsa.PrivateKey, string, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	nettest.Must(t, err)
	by := a.key
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, by)
	nettest.Must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	nettest.Must(t, err)
	block := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return key, block("CERTIFICATE", der), block("PRIVATE KEY", private)
}

func (a *authority) issue(t *testing.T, name string, addresses ...net.IP) (cert, key string) {
	t.Helper()
	_, cert, key = a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: addresses,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	return cert, key
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	nettest.Must(t, err)
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

// A standby that is promoted without the last rows gets them again, also those from before the relay
// began anew, and so does a database that is restored from a backup.
func TestPromotedStandbyLacksRows(t *testing.T) {
	s := pgtest.Start(t)
	database(t, s, "promoted")
	standby := pgtest.Standby(t, s)
	to := target(t, "postgres:///promoted?user=promoted&host="+s.Dir+","+standby.Dir)
	to.Name = "database"
	path := filepath.Join(t.TempDir(), "history.db")
	maker := synthetic.NewMaker(1)
	all := 0
	var store *history.Store
	var ships *ship.Shippers
	begin := func() {
		var err error
		store, err = history.Open(path, history.Options{})
		nettest.Must(t, err)
		ships = ship.New(store, ship.Options{Relay: "relay-a", Site: "site-a", Open: Open})
		ships.Set([]archive.Target{to})
	}
	end := func() {
		ships.Close()
		nettest.Must(t, store.Close())
	}
	ended := func(n int) {
		var records []monitor.Record
		for range n {
			records = append(records, maker.Record(time.Now()))
		}
		store.Add(records)
		all += n
	}
	has := func(s *pgtest.Server) {
		t.Helper()
		nettest.Eventually(t, time.Minute, func() bool {
			rows, err := s.Try("promoted", "SELECT count(*) FROM longhaul.flows")
			return err == nil && rows[0][0] == fmt.Sprint(all)
		}, func() string { return fmt.Sprintf("%+v", ships.States()) })
	}
	begin()
	ended(300)
	has(s)
	has(standby)
	standby.Exec("postgres", "ALTER SYSTEM SET primary_conninfo = ''")
	standby.Exec("postgres", "SELECT pg_reload_conf()")
	nettest.Eventually(t, time.Minute, func() bool { return s.Exec("postgres", "SELECT count(*) FROM pg_stat_replication")[0][0] == "0" },
		func() string { return "the standby still follows" })
	ended(200)
	has(s)
	end()
	begin()
	ended(100)
	has(s)
	s.Kill()
	standby.Exec("postgres", "SELECT pg_promote()")
	standby.Check("promoted", "SELECT count(*) FROM longhaul.flows", "[[300]]")
	ended(10)
	has(standby)
	checkSums(t, standby, "promoted", all)

	// The rows of a backup, as pg_restore has them: with their epochs.
	standby.Exec("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'promoted'")
	standby.Exec("postgres", "CREATE DATABASE backup TEMPLATE promoted")
	ended(50)
	has(standby)
	standby.Exec("postgres", "DROP DATABASE promoted WITH (FORCE)")
	standby.Exec("postgres", "ALTER DATABASE backup RENAME TO promoted")
	ended(1)
	has(standby)
	checkSums(t, standby, "promoted", all)
	if state := ships.States()[0]; state.Lost != 0 {
		t.Errorf("%+v", state)
	}
	end()
}

// Rows that go under a connection which stays, as PgBouncer's does, are noticed with the next ones.
func TestRowsLostUnderAConnection(t *testing.T) {
	s := pgtest.Shared(t)
	to := database(t, s, "under")
	spool := newSpool(1, 40, recent(1))
	sink := opened(t, to)
	nettest.Must(t, sink.Deliver(context.Background(), spool.rows[:5]))
	backup := s.Exec("under", "SELECT epoch, last FROM longhaul.epochs")[0]
	nettest.Must(t, sink.Deliver(context.Background(), spool.rows[5:10]))
	s.Exec("under", "UPDATE longhaul.epochs SET last = "+backup[1]+"; DELETE FROM longhaul.flows WHERE id > "+backup[1]+
		"; TRUNCATE longhaul.hours, longhaul.days")
	err := sink.Deliver(context.Background(), spool.rows[10:20])
	if err == nil || !strings.Contains(err.Error(), "the database has lost records") {
		t.Error(err)
	}
	last, err := sink.(archive.Resumer).Last(context.Background(), []int64{spool.epoch - 1, 7})
	if want := fmt.Sprintf("map[%s:%s]", backup[0], backup[1]); err != nil || fmt.Sprint(last) != want {
		t.Errorf("%v, %v; want %s", last, err, want)
	}
}
