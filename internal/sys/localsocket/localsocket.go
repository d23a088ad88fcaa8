// Package localsocket protects one user's unix sockets from other users: it
// checks their directories and the peers of connections.
package localsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrForeign is returned if another user than root and the calling one owns a
// directory or serves a socket.
var ErrForeign = errors.New("not yours or root's")

// TempDir is the calling user's directory for sockets below the temporary
// directory. Another user may have made it: see [CheckDirectory].
func TempDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("longhaul-%d", os.Geteuid()))
}

// MakeDirectory makes a directory of sockets for the calling user only. It
// checks an existing one with [CheckDirectory].
func MakeDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory: %w", err)
	}
	return CheckDirectory(dir)
}

// CheckDirectory refuses a directory in which another user than root and the
// calling one could replace a socket. The owner of a directory can, even with
// the sticky bit, and so can the owner of a symbolic link to it.
func CheckDirectory(dir string) error {
	var st unix.Stat_t
	for _, stat := range []func(string, *unix.Stat_t) error{unix.Lstat, unix.Stat} {
		if err := stat(dir, &st); err != nil {
			return fmt.Errorf("stat the directory %s: %w", dir, err)
		}
		if owner := int(st.Uid); !Trusted(owner) {
			return fmt.Errorf("the directory %s is user %d's, %w", dir, owner, ErrForeign)
		}
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("the directory %s can be written by others; run chmod 700 on it", dir)
	}
	return nil
}

// Peer returns the process at the other end of a connection: the one that
// connected, or that called listen. Its PID is 0 if it is outside the calling
// process's PID namespace.
func Peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		peer, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(err, credErr)
}

// Trusted reports whether a user is root or the calling one.
func Trusted(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// CheckServer refuses a connection to a socket that another user than root and
// the calling one serves. That user controls the answers and sees the requests.
// Root may connect to every socket.
func CheckServer(conn *net.UnixConn) error {
	if os.Geteuid() == 0 {
		return nil
	}
	peer, err := Peer(conn)
	if err != nil {
		return fmt.Errorf("identify the server of %s: %w", conn.RemoteAddr(), err)
	}
	if uid := int(peer.Uid); !Trusted(uid) {
		return fmt.Errorf("the socket %s is user %d's, %w", conn.RemoteAddr(), uid, ErrForeign)
	}
	return nil
}
