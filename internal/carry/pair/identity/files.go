package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"longhaul/internal/sys/dirlock"
	"longhaul/internal/words/remedy"
)

// The files of a directory.
const (
	keyFile         = "key"
	peersFile       = "peers"
	invitationsFile = "invitations"
	formerFile      = "former" // only for changes; without it nothing breaks
)

// newSuffix ends the name of a file until it replaces the old one. The lock admits one
// writer at a time.
const newSuffix = ".new"

// maxFile bounds the length of each file in bytes. A peer takes about 200.
const maxFile = 1 << 20

// directory is an open directory of keys. What it opens stays below it, whoever renames
// what meanwhile.
type directory struct {
	path string
	root *os.Root
	info fs.FileInfo
}

// openDirectory opens and checks a directory. A missing one is [fs.ErrNotExist].
func openDirectory(path string) (*directory, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, unusable("open", path, err)
	}
	info, err := root.Stat(".")
	if err != nil {
		err = unusable("open", path, err)
	} else {
		err = checkDirectory(path, info)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return &directory{path, root, info}, nil
}

func (d *directory) Close() { d.root.Close() }

// read returns the content of a file, nil if it is missing, and what tells the file from
// a later one. It refuses a file that others can read or change.
func (d *directory) read(name string) ([]byte, fs.FileInfo, error) {
	path := filepath.Join(d.path, name)
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, unusable("read", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, unusable("read", path, err)
	}
	if err := d.checkFile(path, info); err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, unusable("read", path, err)
	}
	if len(text) > maxFile {
		return nil, nil, damaged(path, fmt.Errorf("more than %d bytes", maxFile))
	}
	return text, info, nil
}

// checkFile refuses a file that others can read, or that another user than root, the
// calling one or the directory's owner has made.
func (d *directory) checkFile(path string, info fs.FileInfo) error {
	uid := ownerOf(info).Uid
	switch {
	case !info.Mode().IsRegular():
		return remedy.New(fmt.Errorf("%s is not a regular file", path), "move it away")
	case info.Mode()&0o077 != 0:
		return remedy.New(fmt.Errorf("%s is open to others (mode %#o)", path, info.Mode().Perm()),
			"run chmod 600 "+path+"; if others could use it meanwhile, run longhaul pair rotate --now")
	case uid != 0 && int(uid) != os.Geteuid() && uid != ownerOf(d.info).Uid:
		return remedy.New(fmt.Errorf("%s belongs to user %d", path, uid),
			"run chown on it, if its content is yours")
	}
	return nil
}

// write atomically replaces a file, readable for the directory's owner only. The caller
// holds the lock.
func (d *directory) write(name string, text []byte) error {
	if len(text) > maxFile {
		return remedy.New(fmt.Errorf("the file %s would have more than %d bytes", filepath.Join(d.path, name), maxFile), "remove some peers")
	}
	err := d.tryWrite(name, text)
	if err != nil {
		_ = d.root.Remove(name + newSuffix)
		return unusable("write", filepath.Join(d.path, name), err)
	}
	return nil
}

func (d *directory) tryWrite(name string, text []byte) error {
	temp := name + newSuffix
	if err := d.root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if owner := ownerOf(d.info); err == nil && os.Geteuid() == 0 && owner.Uid != 0 {
		err = f.Chown(int(owner.Uid), int(owner.Gid)) // root works for the service's user
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := d.root.Rename(temp, name); err != nil {
		return err
	}
	return d.sync()
}

// sync makes a renaming last.
func (d *directory) sync() error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// probe reports why a file cannot be written here, or nil.
func (d *directory) probe() error {
	const name = "probe" + newSuffix
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		err = errors.Join(f.Close(), d.root.Remove(name))
	}
	if err != nil {
		return unusable("write to", d.path, err)
	}
	return nil
}

// lock gives one process at a time the right to change the files.
func (d *directory) lock() (unlock func(), err error) {
	if unlock, err = dirlock.Lock(d.path); err != nil {
		return nil, unusable("lock", d.path, err)
	}
	return unlock, nil
}

// damaged is the error of a file that cannot be understood.
func damaged(path string, err error) error {
	return remedy.New(fmt.Errorf("the file %s is damaged: %w", path, err),
		"restore it from a backup, or move it away and pair again (longhaul pair invite, longhaul pair join)")
}
