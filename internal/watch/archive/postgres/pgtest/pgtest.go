// Package pgtest starts PostgreSQL for tests: a cluster of its own, on a unix
// socket or also on a port of the loopback interface.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"longhaul/test/nettest"
)

// Server is a cluster. Its superuser is postgres, who needs no password on the socket.
type Server struct {
	Dir string // of the socket, the data and what tests add
	t   testing.TB
	bin string
	uid int
	gid int

	args   []string
	daemon *exec.Cmd
	log    *os.File
	ended  chan struct{} // of the daemon
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
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		nettest.RequireProgram(t, "initdb", "postgresql")
	}
	s := &Server{t: t, bin: filepath.Dir(found[len(found)-1]), uid: os.Getuid(), gid: os.Getgid(), args: args}
	var err error
	if s.Dir, err = os.MkdirTemp("", "pg-"); err != nil { // a short path: a socket's has at most 107 bytes
		t.Fatal(err)
	}
	if s.uid == 0 { // it does not run as root
		u, err := user.Lookup("postgres")
		nettest.Must(t, err)
		s.uid, _ = strconv.Atoi(u.Uid)
		s.gid, _ = strconv.Atoi(u.Gid)
		nettest.Must(t, os.Chown(s.Dir, s.uid, s.gid))
	}
	if out, err := s.command("initdb", "-D", s.Dir+"/data", "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	return s
}

// Start makes a cluster and starts it.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := New(t, args...)
	s.Run()
	return s
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(s.bin+"/"+name, args...)
	cmd.Dir = s.Dir
	if s.uid != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.uid), Gid: uint32(s.gid)}}
	}
	return cmd
}

// Program is a client or tool of this PostgreSQL, on its socket.
func (s *Server) Program(name string, args ...string) *exec.Cmd {
	cmd := s.command(name, args...)
	cmd.Env = append(os.Environ(), "PGHOST="+s.Dir, "PGPORT="+s.port(), "PGUSER=postgres", "PGDATABASE=postgres")
	return cmd
}

// Run starts the server, and returns when it answers.
func (s *Server) Run() {
	s.t.Helper()
	for {
		// After a kill, what is left of the one before keeps a new one from starting for a moment.
		s.log, _ = os.Create(s.Dir + "/log")
		s.daemon = s.command("postgres", append([]string{"-D", s.Dir + "/data", "-h", "", "-k", s.Dir, "-c", "fsync=off"}, s.args...)...)
		s.daemon.Stdout, s.daemon.Stderr = s.log, s.log
		s.ended = make(chan struct{})
		nettest.Must(s.t, s.daemon.Start())
		go func(daemon *exec.Cmd, ended chan struct{}) {
			_ = daemon.Wait()
			close(ended)
		}(s.daemon, s.ended)
		if s.answers() {
			return
		}
		said, _ := os.ReadFile(s.Dir + "/log")
		if !strings.Contains(string(said), "shared memory block") && !strings.Contains(string(said), "lock file") {
			s.t.Fatalf("PostgreSQL does not start: %s", said)
		}
	}
}

// answers waits until the server answers, or has ended.
func (s *Server) answers() bool {
	for {
		conn, err := pgconn.Connect(context.Background(), s.URL("postgres", "postgres"))
		if err == nil {
			conn.Close(context.Background())
			return true
		}
		select {
		case <-s.ended:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill kills all processes of the server, as systemd and a power failure do. With the first one alone, those that
// wait for a lock within the server may stay, and keep a new one from starting.
func (s *Server) Kill() {
	if s.daemon == nil {
		return
	}
	_ = s.daemon.Process.Kill()
	<-s.ended
	s.log.Close()
	s.daemon = nil
	for pids := s.processes(); len(pids) > 0; pids = s.processes() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		<-time.After(time.Millisecond)
	}
}

// Stop ends the server as an administrator does.
func (s *Server) Stop() {
	_ = s.daemon.Process.Signal(syscall.SIGINT) // a fast shutdown
	<-s.ended
	s.log.Close()
	s.daemon = nil
}

// processes are all processes of this cluster.
func (s *Server) processes() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if cwd, err := os.Readlink("/proc/" + e.Name() + "/cwd"); err == nil && cwd == s.Dir+"/data" {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// port is a part of the socket's name.
func (s *Server) port() string {
	if at := slices.Index(s.args, "-p"); at >= 0 {
		return s.args[at+1]
	}
	return "5432"
}

// URL is that of a database, over the socket.
func (s *Server) URL(user, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(user), Path: "/" + database, RawQuery: url.Values{"host": {s.Dir}, "port": {s.port()}}.Encode()}
	return u.String()
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
	nettest.Must(s.t, os.Chown(path, s.uid, s.gid))
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
	s.answers()
}

// With adds arguments for the next start.
func (s *Server) With(args ...string) { s.args = append(s.args, args...) }

// Standby copies a server that runs, and starts the copy as its standby.
func Standby(t testing.TB, of *Server) *Server {
	t.Helper()
	s := &Server{t: t, bin: of.bin, uid: of.uid, gid: of.gid}
	var err error
	if s.Dir, err = os.MkdirTemp("", "pg-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.remove)
	nettest.Must(t, os.Chown(s.Dir, s.uid, s.gid))
	if out, err := of.Program("pg_basebackup", "-D", s.Dir+"/data", "-R", "-N", "-c", "fast").CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	s.Run()
	return s
}
