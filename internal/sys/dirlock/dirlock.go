// Package dirlock gives one process at a time the right to change the files of a
// directory. The kernel releases the lock when the process ends.
package dirlock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds the wait of [Lock] for another process, which holds the lock for
// milliseconds.
const patience = 5 * time.Second

// maxRaces bounds how often [Make] makes a directory that others remove.
const maxRaces = 2000

// ErrHeld is the error if another process holds the lock.
var ErrHeld = errors.New("another process holds the lock")

// errRemoved is the error if other processes remove the directory again and again.
var errRemoved = errors.New("other processes remove the directory meanwhile")

// Lock locks an existing directory until unlock. It writes nothing.
func Lock(dir string) (unlock func(), err error) {
	fd, err := open(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := wait(ctx, fd); err != nil {
		unix.Close(fd)
		if errors.Is(err, ErrHeld) {
			return nil, fmt.Errorf("lock %s: another process has held it for 5 s (fuser %[1]s names it)", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { unix.Close(fd) }, nil
}

// Make makes a directory unless it is there, and locks it until unlock. The holder may remove
// it before that. Where a bound of ctx has passed, the error is [ErrHeld].
func Make(ctx context.Context, dir string, mode fs.FileMode) (unlock func(), err error) {
	for range maxRaces {
		var fd int
		var removed bool
		if fd, removed, err = makeAndLock(ctx, dir, mode); err == nil {
			return func() { unix.Close(fd) }, nil
		}
		if !removed || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return nil, err
}

// makeAndLock makes a directory and locks it. With removed, it failed because another process
// removed the directory or its parent meanwhile.
func makeAndLock(ctx context.Context, dir string, mode fs.FileMode) (fd int, removed bool, err error) {
	if err := os.MkdirAll(dir, mode); err != nil {
		return 0, isRemoved(dir, err), err
	}
	if fd, err = open(dir); err != nil {
		return 0, errors.Is(err, fs.ErrNotExist), &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	err = wait(ctx, fd)
	switch {
	case errors.Is(err, ErrHeld):
	case err != nil:
		err = fmt.Errorf("lock %s: %w", dir, err)
	case !isAt(fd, dir):
		removed, err = true, errRemoved
	}
	if err != nil {
		unix.Close(fd)
		return 0, removed, err
	}
	return fd, false, nil
}

// isRemoved reports whether making a directory failed because another process removed one
// between two steps.
func isRemoved(dir string, err error) bool {
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	info, statErr := os.Lstat(dir)
	return errors.Is(err, fs.ErrExist) && (errors.Is(statErr, fs.ErrNotExist) || statErr == nil && info.IsDir())
}

// isAt reports whether the open directory is the one at the path.
func isAt(fd int, dir string) bool {
	var locked, inPlace unix.Stat_t
	return unix.Fstat(fd, &locked) == nil && unix.Stat(dir, &inPlace) == nil &&
		locked.Dev == inPlace.Dev && locked.Ino == inPlace.Ino
}

func open(dir string) (fd int, err error) {
	return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// wait locks an open directory as soon as nobody else has.
func wait(ctx context.Context, fd int) error {
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		}
		select {
		case <-ctx.Done():
			return ErrHeld
		case <-time.After(10 * time.Millisecond):
		}
	}
}
