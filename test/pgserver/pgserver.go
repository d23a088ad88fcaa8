// Package pgserver runs a PostgreSQL of its own, for tests and benchmarks. Everything of it is in one
// directory, its socket too.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Server is a cluster. Its superuser is postgres, who needs no password.
type Server struct {
	Dir  string   // of socket, data and log
	Args []string // of the next start, after those that lead there
	UID  int      // the owner of Dir and its files, as the caller sees it
	GID  int

	user   uint32 // as which the programs run: the caller, or postgres where that is root, as which they refuse to
	group  uint32
	bin    string
	daemon *exec.Cmd
	ended  chan struct{} // of the daemon
}

// Programs is the directory of the server's programs, which Debian leaves out of PATH; empty: it is not
// installed.
func Programs() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

// In is a server in a directory, which it takes over. There is no cluster yet, see [Server.Init].
func In(dir string, args ...string) (*Server, error) {
	s := &Server{Dir: dir, Args: args, UID: os.Getuid(), GID: os.Getgid(), bin: Programs()}
	s.user, s.group = uint32(s.UID), uint32(s.GID)
	if s.UID != 0 {
		return s, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	s.user, s.group = uint32(uid), uint32(gid)
	err = os.Chown(dir, uid, gid)
	if errors.Is(err, syscall.EINVAL) { // an ordinary user's namespace, which has root alone: see command
		return s, nil
	}
	s.UID, s.GID = uid, gid
	return s, err
}

// Init makes the cluster.
func (s *Server) Init() error {
	out, err := s.command("initdb", "-D", s.Dir+"/data", "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--locale=C").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	switch {
	case int(s.user) == os.Getuid():
	case s.UID != os.Getuid():
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: s.user, Gid: s.group}
	default: // in a user namespace that names the caller postgres (user_namespaces(7))
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.user), HostID: s.UID, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.group), HostID: s.GID, Size: 1}}
	}
	return cmd
}

// Program is a client or tool of this PostgreSQL, on its socket.
func (s *Server) Program(name string, args ...string) *exec.Cmd {
	cmd := s.command(name, args...)
	cmd.Env = append(os.Environ(), "PGHOST="+s.Dir, "PGPORT="+s.port(), "PGUSER=postgres", "PGDATABASE=postgres")
	return cmd
}

// Start starts the server, and returns when it answers.
func (s *Server) Start(ctx context.Context) error {
	for {
		log, err := os.Create(s.Dir + "/log")
		if err != nil {
			return err
		}
		s.daemon = s.command("postgres", append([]string{"-D", s.Dir + "/data", "-h", "", "-k", s.Dir}, s.Args...)...)
		s.daemon.Stdout, s.daemon.Stderr = log, log
		if err := s.daemon.Start(); err != nil {
			return err
		}
		log.Close()
		s.ended = make(chan struct{})
		go func(daemon *exec.Cmd, ended chan struct{}) {
			_ = daemon.Wait()
			close(ended)
		}(s.daemon, s.ended)
		if s.Answers(ctx) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// After a kill, what is left of the one before keeps a new one from starting for a moment.
		said, _ := os.ReadFile(s.Dir + "/log")
		if !strings.Contains(string(said), "shared memory block") && !strings.Contains(string(said), "lock file") {
			return fmt.Errorf("PostgreSQL does not start: %s", said)
		}
	}
}

// Answers waits until the server answers; false: it has ended, or the context has.
func (s *Server) Answers(ctx context.Context) bool {
	for {
		conn, err := pgconn.Connect(ctx, s.URL("postgres", "postgres"))
		if err == nil {
			conn.Close(ctx)
			return true
		}
		select {
		case <-s.ended:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill kills all processes of the server, as systemd and a power failure do. With the first one alone,
// those that wait for a lock within the server may stay, and keep a new one from starting.
func (s *Server) Kill() {
	if s.daemon == nil {
		return
	}
	_ = s.daemon.Process.Kill()
	<-s.ended
	s.daemon = nil
	for pids := s.Processes(); len(pids) > 0; pids = s.Processes() {
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
	s.daemon = nil
}

// Processes are all that work in the cluster.
func (s *Server) Processes() (pids []int) {
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
	if at := slices.Index(s.Args, "-p"); at >= 0 {
		return s.Args[at+1]
	}
	return "5432"
}

// URL is that of a database, over the socket.
func (s *Server) URL(user, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(user), Path: "/" + database, RawQuery: url.Values{"host": {s.Dir}, "port": {s.port()}}.Encode()}
	return u.String()
}
