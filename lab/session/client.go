package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/localsocket"
)

// ErrNoLab reports that no lab of the calling user is up.
var ErrNoLab = errors.New("no lab is up: start one in another shell with: longhaul lab up")

// Set changes conditions of the lab at a socket: the values of flags, by name.
func Set(socket string, values map[string]string) error {
	_, err := call(socket, request{Set: values}, nil, nil)
	return err
}

// Status asks the lab at a socket for its state.
func Status(socket string) (State, error) {
	answer, err := call(socket, request{Status: true}, nil, nil)
	if err != nil {
		return State{}, err
	}
	var state State
	if err := json.Unmarshal(answer.State, &state); err != nil {
		return State{}, fmt.Errorf("read the lab's answer: %w", err)
	}
	return state, nil
}

// call sends a request to the lab at a socket and returns its answer. If the request
// starts a program, streams become its standard input, output and error, and call
// forwards signals to it.
func call(socket string, asked request, streams []*os.File, signals <-chan os.Signal) (reply, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return reply{}, ErrNoLab
	}
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	if err := localsocket.CheckServer(conn); err != nil {
		return reply{}, err
	}
	line, err := json.Marshal(asked)
	if err != nil {
		return reply{}, err
	}
	line = append(line, '\n')
	var rights []byte
	if len(streams) > 0 {
		fds := make([]int, len(streams))
		for i, f := range streams {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	n, _, err := conn.WriteMsgUnix(line, rights, nil)
	if err == nil && n < len(line) {
		_, err = conn.Write(line[n:])
	}
	if err != nil {
		return reply{}, fmt.Errorf("reach the lab: %w", err)
	}

	answered := make(chan struct{})
	defer close(answered)
	go func() {
		for {
			select {
			case sig := <-signals:
				if number, ok := sig.(syscall.Signal); ok {
					_ = json.NewEncoder(conn).Encode(signalLine{int(number)})
				}
			case <-answered:
				return
			}
		}
	}()
	var answer reply
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return reply{}, fmt.Errorf("the lab went down: %w", err)
	}
	if answer.Error != "" {
		return reply{}, errors.New(answer.Error)
	}
	return answer, nil
}

// lookPath finds a program as a root shell with the given environment would.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := ""
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range append(filepath.SplitList(path), "/usr/local/sbin", "/usr/sbin", "/sbin") {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}
