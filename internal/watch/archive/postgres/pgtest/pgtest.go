// Package pgtest starts PostgreSQL for tests: a cluster of its own, on a unix
// socket or also on a port of the loopback interface.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/test/nettest"
	"longhaul/test/pgserver"
)

// Server is a cluster whose superuser is postgres, who needs no password on the socket. In Dir is also
// what tests add.
type Server struct {
	*pgserver.Server
	t testing.TB
}

var shared struct {
	once   sync.Once
	server *Server
}

// Main runs the tests of a package, and ends the server that they share.
func Main(m *testing.M) {
	code := m.Run()
	if s := shared.server; s != nil {
		s.remove()
	}
	os.Exit(code)
}

// Shared is one server for all tests of a package whose TestMain is [Main]. Each test makes databases of its own.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		s := cluster(t)
		s.Run()
		shared.server = s
	})
	if shared.server == nil {
		t.Skip("there is no server, see the first test that wants one")
	}
	s := *shared.server
	s.t = t
	return &s
}

// New makes a cluster that is not started yet. Without PostgreSQL it skips the test.
func New(t testing.TB, args ...string) *Server {
	t.Helper()
	s := cluster(t, args...)
	t.Cleanup(s.remove)
	return s
}

func (s *Server) remove() {
	s.Kill()
	os.RemoveAll(s.Dir)
}

func cluster(t testing.TB, args ...string) *Server {
	t.Helper()
	s := empty(t, args...)
	nettest.Must(t, s.Init())
	return s
}

// empty is a server that has no cluster yet.
func empty(t testing.TB, args ...string) *Server {
	t.Helper()
	if pgserver.Programs() == "" {
		nettest.RequireProgram(t, "initdb", "postgresql")
	}
	dir, err := os.MkdirTemp("", "pg-") // a short path: a socket's has at most 107 bytes
	nettest.Must(t, err)
	s, err := pgserver.In(dir, append([]string{"-c", "fsync=off"}, args...)...)
	nettest.Must(t, err)
	return &Server{s, t}
}

// Start makes a cluster and starts it.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := New(t, args...)
	s.Run()
	return s
}

// Run starts the server, and returns when it answers.
func (s *Server) Run() {
	s.t.Helper()
	nettest.Must(s.t, s.Server.Start(context.Background()))
}

// Exec runs statements as the superuser and returns the last one's rows. An error ends the test.
func (s *Server) Exec(database, statements string) [][]string {
	s.t.Helper()
	rows, err := s.Try(database, statements)
	if err != nil {
		s.t.Fatalf("%s: %v", statements, err)
	}
	return rows
}

// Try is Exec with an error. NULL is an empty text.
func (s *Server) Try(database, statements string) ([][]string, error) {
	ctx := context.Background()
	conn, err := pgconn.Connect(ctx, s.URL("postgres", database))
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, statements).ReadAll()
	if err != nil || len(results) == 0 {
		return nil, err
	}
	var rows [][]string
	for _, row := range results[len(results)-1].Rows {
		var texts []string
		for _, v := range row {
			texts = append(texts, string(v))
		}
		rows = append(rows, texts)
	}
	return rows, nil
}

// Role makes a role that may log in, for the time of the test. Make it before the databases that give it rights.
func (s *Server) Role(name string) {
	s.t.Helper()
	s.Exec("postgres", fmt.Sprintf("CREATE ROLE %q LOGIN", name))
	s.t.Cleanup(func() { _, _ = s.Try("postgres", fmt.Sprintf("DROP ROLE %q", name)) }) // the server may be gone
}

// Database makes a database for the time of the test, owned by a role of the same name that it makes as well,
// and returns its URL.
func (s *Server) Database(name string) string {
	s.t.Helper()
	s.Role(name)
	s.Exec("postgres", fmt.Sprintf("CREATE DATABASE %q OWNER %q", name, name))
	s.t.Cleanup(func() { _, _ = s.Try("postgres", fmt.Sprintf("DROP DATABASE %q WITH (FORCE)", name)) })
	return s.URL(name, name)
}

// Write writes a file of the cluster, such as data/pg_hba.conf or a key, that the server alone may read.
func (s *Server) Write(name, content string) string {
	s.t.Helper()
	path := filepath.Join(s.Dir, name)
	err := os.Remove(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	nettest.Must(s.t, os.WriteFile(path, []byte(content), 0o600))
	nettest.Must(s.t, os.Chown(path, s.UID, s.GID))
	return path
}

// Check fails the test unless a query has these rows, as fmt prints them.
func (s *Server) Check(database, query, want string) {
	s.t.Helper()
	if got := fmt.Sprint(s.Exec(database, query)); got != want {
		s.t.Errorf("%s: %s, want %s", query, got, want)
	}
}

// KillConnection kills the process that serves a connection of a database. The server then ends all
// other ones, recovers, and answers again when it returns.
func (s *Server) KillConnection(database string) {
	s.t.Helper()
	rows, err := s.Try("postgres", "SELECT pid FROM pg_stat_activity WHERE datname = '"+database+"' AND pid <> pg_backend_pid() ORDER BY state LIMIT 1")
	if err != nil || len(rows) == 0 { // it is busy with the one before, or nobody is there
		return
	}
	pid, _ := strconv.Atoi(rows[0][0])
	_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	s.Answers(context.Background())
}

// With adds arguments for the next start.
func (s *Server) With(args ...string) { s.Args = append(s.Args, args...) }

// Standby copies a server that runs, and starts the copy as its standby.
func Standby(t testing.TB, of *Server) *Server {
	t.Helper()
	s := empty(t)
	t.Cleanup(s.remove)
	if out, err := of.Program("pg_basebackup", "-D", s.Dir+"/data", "-R", "-N", "-c", "fast").CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	s.Run()
	return s
}
