// Package session keeps two sites up for a user's programs: a server that holds the
// lab, and the clients of commands in other shells.
package session

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/localsocket"
	"longhaul/lab"
	"longhaul/lab/link"
)

// A running lab listens on a Unix socket for commands in other shells. A client sends
// one request, a line of JSON. A request to start a program carries three descriptors
// for its standard streams; lines with signals may follow. The server answers with
// one line. It kills the program if the client disconnects first.

// request is a client's request to a running lab. One field is set.
type request struct {
	Exec   *execRequest      `json:"exec,omitempty"`
	Set    map[string]string `json:"set,omitempty"`    // conditions to change, by flag name
	Status bool              `json:"status,omitempty"` // the lab's settings and counters
}

// execRequest starts a program in a host.
type execRequest struct {
	Host     string   `json:"host"`
	Args     []string `json:"args"`
	Env      []string `json:"env"`
	Dir      string   `json:"dir"`
	Terminal bool     `json:"terminal"` // standard input is a terminal that becomes the controlling one
}

// reply is a lab's answer.
type reply struct {
	Error  string          `json:"error,omitempty"`
	Status int             `json:"status"` // of the program, as a shell would report it
	State  json.RawMessage `json:"state,omitempty"`
}

type signalLine struct {
	Signal int `json:"signal"`
}

// server is a running lab with the conditions in force.
type server struct {
	lab *lab.Lab

	mu         sync.Mutex
	conditions lab.Conditions
}

// Up builds two sites under conditions, calls ready with their state, and answers
// at a socket until ctx ends. The process must be inside a sandbox. Up fails if
// another lab is up at the socket.
func Up(ctx context.Context, conditions lab.Conditions, socket string, ready func(State) error) error {
	// The socket first: it fails if another lab is up.
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	defer func() {
		listener.Close()
		_ = os.Remove(filepath.Dir(socket)) // unless it contains other files
	}()
	built, err := lab.Build(lab.TwoSites(conditions))
	if err != nil {
		return err
	}
	defer built.Close()
	if err := built.NameHosts(); err != nil {
		return err
	}
	for _, name := range built.HostNames() {
		if err := built.Host(name).OwnRuntime(); err != nil {
			return err
		}
	}
	s := &server{lab: built, conditions: conditions}
	if err := ready(s.state()); err != nil {
		return err
	}
	return s.serve(ctx, listener)
}

// set changes the conditions that flags name, and keeps the others.
func (s *server) set(values map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.conditions
	flags := pflag.NewFlagSet("set", pflag.ContinueOnError)
	changed.Flags(flags)
	for name, value := range values {
		if err := flags.Set(name, value); err != nil {
			return err
		}
	}
	ab, ba := changed.Directions()
	wan := s.lab.Link(lab.WAN)
	if err := wan.Set(link.AToB, ab); err != nil {
		return err
	}
	if err := wan.Set(link.BToA, ba); err != nil {
		return err
	}
	if err := s.lab.SetHostECN(changed.HostECN); err != nil {
		return err
	}
	s.conditions = changed
	return nil
}

// SocketPath returns the socket of the calling user's lab.
func SocketPath() string {
	const name = "lab.sock"
	if os.Geteuid() == 0 {
		return filepath.Join("/run/longhaul-lab", name) // a service has /run/longhaul for its user
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "longhaul", name)
	}
	return filepath.Join(localsocket.TempDir(), name)
}

// listen opens a lab's socket, readable by its owner only. It replaces the socket of a
// killed lab.
func listen(path string) (*net.UnixListener, error) {
	if err := localsocket.MakeDirectory(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("make the lab's socket: %w", err)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, errors.New("a lab is up already: stop it with an interrupt in its shell, or use it with longhaul lab exec")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for longhaul lab exec: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, err
	}
	return listener, nil
}

// serve answers requests until ctx ends, and then waits for the end of its programs.
func (s *server) serve(ctx context.Context, listener *net.UnixListener) error {
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		clients.Add(1)
		go func() {
			defer clients.Done()
			defer conn.Close()
			answer, err := s.answer(ctx, conn)
			if err != nil {
				answer.Error = err.Error()
			}
			_ = json.NewEncoder(conn).Encode(answer)
		}()
	}
}

func (s *server) answer(ctx context.Context, conn *net.UnixConn) (reply, error) {
	if err := sameUser(conn); err != nil {
		return reply{}, err
	}
	asked, streams, rest, err := readRequest(conn)
	defer func() {
		for _, f := range streams {
			f.Close()
		}
	}()
	if err != nil {
		return reply{}, err
	}
	switch {
	case asked.Exec != nil:
		status, err := s.exec(ctx, *asked.Exec, streams, rest)
		return reply{Status: status}, err
	case asked.Set != nil:
		return reply{}, s.set(asked.Set)
	case asked.Status:
		data, err := json.Marshal(s.state())
		return reply{State: data}, err
	}
	return reply{}, errors.New("empty request")
}

// sameUser refuses clients of other users. In a user namespace the lab's own user
// appears as root, and others as nobody.
func sameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var optErr error
	if err := raw.Control(func(fd uintptr) {
		peer, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if optErr != nil {
		return optErr
	}
	if int(peer.Uid) != os.Geteuid() {
		return errors.New("the lab belongs to another user")
	}
	return nil
}

// requestBytes bounds a request; an environment can be large.
const requestBytes = 4 << 20

// readRequest reads the first line with its descriptors, and returns the reader of
// the rest.
func readRequest(conn *net.UnixConn) (asked request, streams []*os.File, rest io.Reader, err error) {
	first := make([]byte, 64<<10)
	oob := make([]byte, unix.CmsgSpace(3*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(first, oob)
	if err != nil {
		return asked, nil, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return asked, nil, nil, err
	}
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			return asked, streams, nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			streams = append(streams, os.NewFile(uintptr(fd), "stream"))
		}
	}
	lines := bufio.NewReader(io.MultiReader(bytes.NewReader(first[:n]), conn))
	line, err := readLine(lines)
	if err != nil {
		return asked, streams, nil, err
	}
	return asked, streams, lines, json.Unmarshal(line, &asked)
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("incomplete request: %w", err)
		}
		if len(line) > requestBytes {
			return nil, errors.New("request too large")
		}
	}
}

// exec runs a program until it ends, the client disconnects or the lab goes down.
func (s *server) exec(ctx context.Context, asked execRequest, streams []*os.File, signals io.Reader) (int, error) {
	host := s.lab.Host(asked.Host)
	if host == nil {
		return 0, fmt.Errorf("the lab has no host %q: it has %v", asked.Host, s.lab.HostNames())
	}
	if len(asked.Args) == 0 || len(streams) != 3 {
		return 0, errors.New("missing program or standard streams")
	}
	path, err := lookPath(asked.Args[0], asked.Env)
	if err != nil {
		return 0, err
	}
	// The directory of a unit of the machine's systemd would hide the host's own.
	environment := slices.DeleteFunc(asked.Env, func(variable string) bool {
		return strings.HasPrefix(variable, "RUNTIME_DIRECTORY=")
	})
	cmd := &exec.Cmd{
		Path: path, Args: asked.Args, Env: environment, Dir: asked.Dir,
		Stdin: streams[0], Stdout: streams[1], Stderr: streams[2],
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Setctty: asked.Terminal},
	}
	if err := host.Start(cmd); err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	left := make(chan struct{})
	go func() {
		defer close(left)
		decoder := json.NewDecoder(signals)
		var line signalLine
		for decoder.Decode(&line) == nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.Signal(line.Signal))
		}
	}()
	select {
	case <-ended:
	case <-left:
		endGroup(cmd.Process.Pid, ended)
	case <-ctx.Done():
		endGroup(cmd.Process.Pid, ended)
	}
	<-ended
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// endGroup sends a program's process group SIGHUP, and kills it if it does not end.
func endGroup(pid int, ended <-chan struct{}) {
	_ = syscall.Kill(-pid, syscall.SIGHUP)
	select {
	case <-ended:
	case <-time.After(2 * time.Second):
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
}
