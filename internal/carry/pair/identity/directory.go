package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"longhaul/internal/words/remedy"
)

// RootDirectory has the keys of root's relays and of the service.
const RootDirectory = "/var/lib/longhaul/" + directoryName

const directoryName = "pair"

// Directory is the usual directory of the keys: below systemd's state directory of the
// unit, [RootDirectory] for root, or below the user's state directory (XDG). It is empty
// if the host has none of the three.
func Directory(getenv func(string) string) string {
	if dir, _, _ := strings.Cut(getenv("STATE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return filepath.Join(dir, directoryName)
	}
	if os.Geteuid() == 0 {
		return RootDirectory
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "longhaul", directoryName)
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local/state/longhaul", directoryName)
	}
	return ""
}

// makeDirectory makes a missing directory, for its owner only. If root makes it below a
// directory of another user, such as that of the service, it belongs to that user.
func makeDirectory(dir string) error {
	var missing []string
	at := filepath.Clean(dir)
	for ; ; at = filepath.Dir(at) {
		_, err := os.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return unusable("make", dir, err)
		}
		missing = append(missing, at)
	}
	if len(missing) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return unusable("make", dir, err)
	}
	info, err := os.Stat(at)
	if err != nil {
		return unusable("make", dir, err)
	}
	if owner := ownerOf(info); os.Geteuid() == 0 && owner.Uid != 0 {
		for _, made := range missing {
			if err := os.Lchown(made, int(owner.Uid), int(owner.Gid)); err != nil {
				return unusable("make", dir, err)
			}
		}
	}
	return nil
}

// checkDirectory refuses a directory in which another user than root and the calling one
// could replace a file. Root may use every user's.
func checkDirectory(dir string, info fs.FileInfo) error {
	uid := int(ownerOf(info).Uid)
	switch euid := os.Geteuid(); {
	case euid != 0 && uid != 0 && uid != euid:
		return remedy.New(fmt.Errorf("the directory %s belongs to user %d", dir, uid),
			"use a directory of your own with --dir DIR, or run this as its user")
	case info.Mode()&0o022 != 0:
		return remedy.New(fmt.Errorf("others can write to the directory %s (mode %#o)", dir, info.Mode().Perm()),
			"run chmod 700 "+dir+"; if another user may have changed its files, make new keys")
	}
	return nil
}

func ownerOf(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// unusable is the error of a directory or file that cannot be used. verb says for what.
func unusable(verb, path string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	fix := "check the path; --dir DIR names another directory"
	switch {
	case errors.Is(err, fs.ErrPermission):
		fix = "run this as root or as the relay's user, or name a directory of your own with --dir DIR"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		fix = "free some space on that filesystem"
	case errors.Is(err, syscall.EROFS):
		fix = "mount the filesystem for writing, or name another directory with --dir DIR"
	}
	return remedy.New(fmt.Errorf("cannot %s %s: %w", verb, path, err), fix)
}
