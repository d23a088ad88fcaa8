// Package service makes longhaul a service of systemd on a host, and removes
// exactly that again.
//
// [Installer] finds out which drop-ins of the unit a configuration needs, and
// puts them there with the program, its unit and the files of share.
// [Uninstaller] removes them, and [Host.Status] reads what there is.
//
// A [Plan] first writes down the files that it is about to make ([Record]). So
// an installation that was interrupted is completed by running it again, or
// cleared by removing it. Nothing is ever overwritten or removed that was not
// made here, or that somebody has changed since.
package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Host is where files go.
type Host struct {
	// Root is the root directory of an image; empty for this machine, and "/"
	// for this machine's files alone. Paths are always those that the running
	// host will see.
	Root string

	// Dir holds the record, below Root.
	Dir string
}

// File is something that ought to be on the host.
type File struct {
	Path    string
	Content []byte
	Mode    fs.FileMode
	Link    string // where a symbolic link leads, in place of Content and Mode
	Why     string // shown beside it, if that is not clear

	// Seed: one that is there already serves as well, whoever made it.
	Seed bool

	// Vital: without it there is no use in going on. Others that somebody has
	// changed are left alone.
	Vital bool
}

// Wanted is an installation as it ought to be.
type Wanted struct {
	Files   []File
	Program string   // what the unit starts
	Version string   // of it
	Loads   []string // see [Record], and so
	Choices []string
}

func (f File) digest() string {
	if f.Link != "" {
		return linkDigest(f.Link)
	}
	return contentDigest(f.Content)
}

// ErrConflict: something is in the way that was not made here.
type ErrConflict struct {
	Path    string
	Changed bool // it was made here, and somebody has changed it since
}

func (e *ErrConflict) Error() string {
	if e.Changed {
		return e.Path + " is not what was installed there any more"
	}
	return e.Path + " is there already, and was not made by this command"
}

// place is where a path of the host is seen by this process. It refuses to
// leave the root directory by a symbolic link.
func (h Host) place(path string) (string, error) {
	if h.Root == "" || h.Root == "/" {
		return path, nil
	}
	root, err := filepath.EvalSymlinks(h.Root)
	if err != nil {
		return "", err
	}
	// What is not there yet leads nowhere.
	rest := ""
	for dir := filepath.Dir(filepath.Join(root, path)); ; dir = filepath.Dir(dir) {
		real, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, fs.ErrNotExist) {
			rest = filepath.Join(filepath.Base(dir), rest)
			continue
		}
		if err != nil {
			return "", err
		}
		if real != root && !strings.HasPrefix(real, root+string(filepath.Separator)) {
			return "", fmt.Errorf("%s leads out of %s, by a symbolic link to %s", path, h.Root, real)
		}
		return filepath.Join(real, rest, filepath.Base(path)), nil
	}
}

// look says what is at a path: the digest of a file or of a link, or "" where
// there is nothing. Anything else has a digest that no file has.
func (h Host) look(path string) (digest string, mode fs.FileMode, err error) {
	at, err := h.place(path)
	if err != nil {
		return "", 0, err
	}
	info, err := os.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", 0, nil
	case err != nil:
		return "", 0, err
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(at)
		return linkDigest(to), info.Mode(), err
	case !info.Mode().IsRegular():
		return info.Mode().Type().String(), info.Mode(), nil
	}
	b, err := os.ReadFile(at)
	return contentDigest(b), info.Mode(), err
}

// Exists says whether something is at a path.
func (h Host) Exists(path string) bool {
	digest, _, err := h.look(path)
	return err == nil && digest != ""
}

// ReadFile reads a file of the host.
func (h Host) ReadFile(path string) ([]byte, error) {
	at, err := h.place(path)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(at)
}

const partialSuffix = ".longhaul-new"

// partial is where a file is written before it takes its place.
func partial(path string) string { return path + partialSuffix }

// isPartial gives the path that a half-written file was to take.
func isPartial(path string) (of string, ok bool) { return strings.CutSuffix(path, partialSuffix) }

// write puts a file into its place in one step: it is there as a whole or not
// at all, whenever the machine stops.
func (h Host) write(f File) (err error) {
	at, err := h.place(f.Path)
	if err != nil {
		return err
	}
	fresh := partial(at)
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(fresh)
		}
	}()
	if f.Link != "" {
		if err := os.Symlink(f.Link, fresh); err != nil {
			return err
		}
		return os.Rename(fresh, at)
	}
	out, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.Mode)
	if err != nil {
		return err
	}
	_, err = out.Write(f.Content)
	if err == nil {
		err = out.Chmod(f.Mode) // whatever the umask
	}
	if err == nil {
		err = out.Sync()
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, at)
}
