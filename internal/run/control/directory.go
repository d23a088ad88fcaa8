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

	"longhaul/internal/sys/localsocket"
	"longhaul/internal/words/sorted"
)

// A relay's name is that of its socket without the suffix. The relays of a user
// share a directory.
const (
	socketSuffix = ".sock"

	// DefaultName is the name of a relay without a configured one.
	DefaultName = "control"

	// LabName belongs to no relay: the socket of a lab may be in the same
	// directory.
	LabName = "lab"

	// A relay without a configured name uses this prefix and its process ID if
	// the default name is taken.
	ownPrefix = "longhaul-"
)

// rootDirectory is the directory of root's relays and of the service.
const rootDirectory = "/run/longhaul"

// Directory is the directory of the sockets: systemd's runtime directory of the
// unit, /run/longhaul for root, or the user's runtime directory.
func Directory(getenv func(string) string) string {
	if dir, _, _ := strings.Cut(getenv("RUNTIME_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return rootDirectory
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "longhaul")
	}
	return localsocket.TempDir()
}

// RootSockets lists the sockets of root's relays and of the service, as every user may
// know them: only root can list their directory.
func RootSockets() ([]string, error) { return socketsIn(procNetUnix, rootDirectory) }

// procNetUnix lists the unix sockets of this network namespace (proc(5)).
const procNetUnix = "/proc/net/unix"

// socketsIn lists the sockets of relays in a directory from a table of all sockets.
func socketsIn(table, dir string) ([]string, error) {
	text, err := os.ReadFile(table)
	if err != nil {
		return nil, err
	}
	var paths []string
	for line := range strings.Lines(string(text)) {
		// Num RefCount Protocol Flags Type St Inode Path
		fields := strings.Fields(line)
		if len(fields) != 8 || fields[3] != listens {
			continue
		}
		path := fields[7]
		// The successor of an upgrade has bound PathOf.
		if before := strings.TrimRight(path, "0123456789"); before != path && strings.HasSuffix(before, socketSuffix+".") {
			path = strings.TrimSuffix(before, ".")
		}
		if NameIn(dir, path) != "" && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// listens is the flag of a listening socket: __SO_ACCEPTCON of linux/net.h.
const listens = "00010000"

// PathIn is the path of the socket of a named relay.
func PathIn(dir, name string) string { return filepath.Join(dir, name+socketSuffix) }

// NameIn is the name of the relay at path, empty if path is in another
// directory.
func NameIn(dir, path string) string {
	name, ok := strings.CutSuffix(filepath.Base(path), socketSuffix)
	if !ok || name == LabName || filepath.Dir(path) != filepath.Clean(dir) {
		return ""
	}
	return name
}

// OwnName is the name of this process if the default one is taken.
func OwnName() string { return ownPrefix + strconv.Itoa(os.Getpid()) }

// IsOwnName reports whether a name is the [OwnName] of any process.
func IsOwnName(name string) bool {
	number, ok := strings.CutPrefix(name, ownPrefix)
	_, err := strconv.ParseUint(number, 10, 32)
	return ok && err == nil
}

// Running lists the relays in the directory, the default one first. If there is
// only one, it does not check whether that relay is alive.
func Running(ctx context.Context, dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the running relays: %w", err)
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
	sorted.By(names, func(a, b string) int {
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

// isDead reports whether no process listens on a socket. An answer, a full
// queue or a denial means that one does.
func isDead(ctx context.Context, path string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}
