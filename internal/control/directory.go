package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"longhaul/internal/localsocket"
)

// A relay's name is that of its socket, without the suffix, in the directory
// that the relays of a user share.
const (
	socketSuffix = ".sock"

	// DefaultName is that of a relay that was given none.
	DefaultName = "control"

	// LabName is no relay's: the socket of a lab can lie in the same directory.
	LabName = "lab"

	// A relay that was given no name, where another one has the default, has
	// its process's number behind this one.
	ownPrefix = "longhaul-"
)

// Directory is where the sockets are: in systemd's runtime directory of the
// unit, in /run/longhaul for root, and in the user's runtime directory for
// others.
func Directory(getenv func(string) string) string {
	if dir, _, _ := strings.Cut(getenv("RUNTIME_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/run/longhaul"
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "longhaul")
	}
	return localsocket.TempDir()
}

// PathIn is where a relay of this name answers.
func PathIn(dir, name string) string { return filepath.Join(dir, name+socketSuffix) }

// NameIn is the name of the relay that answers at path, empty if that is in
// another directory.
func NameIn(dir, path string) string {
	name, ok := strings.CutSuffix(filepath.Base(path), socketSuffix)
	if !ok || name == LabName || filepath.Dir(path) != filepath.Clean(dir) {
		return ""
	}
	return name
}

// OwnName is the name of this process for want of the default one.
func OwnName() string { return ownPrefix + strconv.Itoa(os.Getpid()) }

// IsOwnName reports whether a name is some process's [OwnName].
func IsOwnName(name string) bool {
	number, ok := strings.CutPrefix(name, ownPrefix)
	_, err := strconv.ParseUint(number, 10, 32)
	return ok && err == nil
}

// Running names the relays in the directory, the default one first. It does not
// look whether a single one is alive: whoever asks it learns that.
func Running(ctx context.Context, dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot see which relays run: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name := NameIn(dir, filepath.Join(dir, e.Name())); name != "" && e.Type() == fs.ModeSocket {
			names = append(names, name)
		}
	}
	if len(names) > 1 {
		names = slices.DeleteFunc(names, func(name string) bool { return isDead(ctx, PathIn(dir, name)) })
	}
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case a == DefaultName:
			return -1
		case b == DefaultName:
			return 1
		}
		return 0
	})
	return names, nil
}

// isDead reports whether nobody listens on a socket. An answer, a full queue or
// a denial says that somebody is there.
func isDead(ctx context.Context, path string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}
