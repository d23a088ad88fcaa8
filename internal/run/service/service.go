// Package service installs longhaul as a service of systemd on a host, and removes
// exactly that.
//
// [Installer] determines the drop-ins that a configuration needs. It installs them
// with the program, its unit and the files of share. [Uninstaller] removes them, and
// [Host.Status] reads the installed state.
//
// A [Plan] first records the files that it is about to make ([Record]). So a second
// run completes an interrupted installation, and a removal clears it. The package
// never overwrites or removes files that it did not make, or that changed since.
package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Host is the target of an installation.
type Host struct {
	// Root is the root directory of an image; empty for this machine, and "/" for
	// this machine's files only. Paths are always those of the running host.
	Root string

	// Dir is the record's directory, below Root.
	Dir string
}

// File is a wanted file of the host.
type File struct {
	Path    string
	Content []byte
	Mode    fs.FileMode
	Link    string // target of a symbolic link, in place of Content and Mode
	Why     string // shown beside it, if not obvious

	// Seed: an existing file of any origin stays.
	Seed bool

	// Vital: the installation fails if the file was changed. Other changed files
	// stay.
	Vital bool
}

// Wanted is the wanted state of an installation.
type Wanted struct {
	Files   []File
	Program string   // the unit's program
	Version string   // of the program
	Loads   []string // see [Record], and so
	Choices []string
}

func (f File) digest() string {
	if f.Link != "" {
		return linkDigest(f.Link)
	}
	return contentDigest(f.Content)
}

// ErrConflict reports a file in the way that this package did not make.
type ErrConflict struct {
	Path    string
	Changed bool // made here, and changed since
}

func (e *ErrConflict) Error() string {
	if e.Changed {
		return e.Path + " has changed since the installation"
	}
	return e.Path + " already exists, and this command did not make it"
}

// place returns this process's path of a path of the host. It refuses symbolic links
// that leave the root directory.
func (h Host) place(path string) (string, error) {
	if h.Root == "" || h.Root == "/" {
		return path, nil
	}
	root, err := filepath.EvalSymlinks(h.Root)
	if err != nil {
		return "", err
	}
	// A missing path has no links.
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

// look returns the digest of a file or link at a path, or "" without one. Anything
// else has a digest that no file has.
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

// Exists reports whether a path exists.
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

// partial returns the path of a half-written file.
func partial(path string) string { return path + partialSuffix }

// isPartial returns the final path of a half-written file.
func isPartial(path string) (of string, ok bool) { return strings.CutSuffix(path, partialSuffix) }

// write writes a file in one step: it is complete or missing, whenever the machine
// stops.
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
