package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// runtimeDir is the directory of root's relays. In a sandbox everybody is root.
const runtimeDir = "/run/longhaul"

// OwnRuntime gives the programs that the host starts from now on a directory
// /run/longhaul of their own, empty at first. Relays of the machine or of another host
// are not found there. The rest of /run is as outside. Mounts of the sandbox must come
// before.
func (h *Host) OwnRuntime() error {
	err := onThread(func() error {
		// setns of a mount namespace needs a file system state of the thread's own.
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := mountOwnRuntime(); err != nil {
			return err
		}
		fd, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if h.mounts >= 0 {
			unix.Close(h.mounts)
		}
		h.mounts = fd
		return nil
	})
	if err != nil {
		return fmt.Errorf("give host %s a %s of its own: %w", h.Name, runtimeDir, err)
	}
	return nil
}

// mountOwnRuntime mounts a new /run with everything of the old one but runtimeDir,
// which only root of the machine may be able to make there, and which would stay.
func mountOwnRuntime() error {
	parent, name := filepath.Split(runtimeDir)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	old, err := unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(old)
	if err := unix.Mount("tmpfs", parent, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	for _, e := range entries {
		from := filepath.Join("/proc/thread-self/fd", strconv.Itoa(old), e.Name())
		to := filepath.Join(parent, e.Name())
		switch {
		case e.Name() == name:
			continue
		case e.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				return err
			}
			continue
		case e.IsDir():
			err = os.Mkdir(to, 0o755)
		default:
			err = os.WriteFile(to, nil, 0o644)
		}
		if err == nil {
			err = unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil && !os.IsNotExist(err) { // it may go meanwhile
			return fmt.Errorf("keep %s: %w", to, err)
		}
	}
	return os.Mkdir(runtimeDir, 0o700)
}

// enterMounts moves the calling thread to the host's own mounts, in the same working
// directory.
func (h *Host) enterMounts() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(h.mounts, unix.CLONE_NEWNS); err != nil {
		return err
	}
	return unix.Chdir(dir)
}
