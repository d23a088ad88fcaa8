package cc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/internal/kernel"
)

// Names of pins that every loaded algorithm has.
const (
	linkPin  = "link"
	buildPin = "build"
)

func (h *Host) dir(parts ...string) string {
	return filepath.Join(append([]string{h.BPFFS, "longhaul", "cc"}, parts...)...)
}

// mountBPFFS makes sure that there is a BPF filesystem to pin to. Like other
// BPF tools it mounts one where systemd has not, but never in a mount
// namespace that may end before the machine does: the pins, and so the
// algorithms, would end with it.
func (h *Host) mountBPFFS() error {
	if kernel.IsBPFFS(h.BPFFS) {
		return nil
	}
	if kernel.PrivateMounts() {
		return fmt.Errorf("%w at %s in this mount namespace: run the command outside it; an algorithm is there in every network namespace", ErrNoBPFFS, h.BPFFS)
	}
	if err := unix.Mount("bpf", h.BPFFS, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700"); err != nil {
		return fmt.Errorf("%w at %s, and mounting one fails: %w", ErrNoBPFFS, h.BPFFS, err)
	}
	return nil
}

// lockPatience bounds the wait for another longhaul: it takes well under a
// second for each algorithm.
const lockPatience = 30 * time.Second

// lock makes the caller the only one to change what is loaded. The lock is on
// the directory of all pins, which unlock removes if nothing is left in it.
func (h *Host) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		dir, err := h.lockDir(ctx)
		if err != nil {
			return nil, err
		}
		if dir == nil { // removed by its last holder
			continue
		}
		return func() {
			// Fails where something is loaded, as it should.
			if os.Remove(h.dir()) == nil {
				_ = os.Remove(filepath.Dir(h.dir()))
			}
			dir.Close()
		}, nil
	}
}

// lockDir locks the directory, or returns nil if the locked one is no longer
// the one in place.
func (h *Host) lockDir(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(h.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory of pins: %w", err)
	}
	dir, err := os.Open(h.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory of pins: %w", err)
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			dir.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", h.dir(), err)
		}
		select {
		case <-ctx.Done():
			dir.Close()
			return nil, fmt.Errorf("another process holds the lock on %s: try again, or find it with fuser", h.dir())
		case <-time.After(10 * time.Millisecond):
		}
	}
	locked, err := dir.Stat()
	if err != nil {
		dir.Close()
		return nil, err
	}
	if inPlace, err := os.Stat(h.dir()); err != nil || !os.SameFile(locked, inPlace) {
		dir.Close()
		return nil, nil
	}
	return dir, nil
}

// pinned are the names that have a directory of pins, complete or not.
func (h *Host) pinned() ([]string, error) {
	entries, err := os.ReadDir(h.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, nil
}

// exists says whether there is a file or directory at a path.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// clear removes the pins of an algorithm, the registration first.
func (h *Host) clear(name string) error {
	if err := os.Remove(h.dir(name, linkPin)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot unregister %s: %w", name, err)
	}
	if err := os.RemoveAll(h.dir(name)); err != nil {
		return fmt.Errorf("cannot remove the pins of %s: %w", name, err)
	}
	return nil
}

// build says what was loaded. It is kept in a pinned map, since the BPF
// filesystem has no plain files.
type build struct {
	algorithm string
	sum       [sha256.Size]byte
	loadedAt  time.Time
}

// buildRecord is a build as the map has it.
type buildRecord struct {
	Sum         [sha256.Size]byte
	LoadedAt    int64 // seconds since 1970
	Algorithm   [maxName + 1]byte
	FormatIsOne uint64
}

func (b build) encode() []byte {
	record := buildRecord{Sum: b.sum, LoadedAt: b.loadedAt.Unix(), FormatIsOne: 1}
	copy(record.Algorithm[:], b.algorithm)
	var out bytes.Buffer
	if err := binary.Write(&out, binary.BigEndian, record); err != nil {
		panic(err) // the record has a fixed size
	}
	return out.Bytes()
}

func decodeBuild(b []byte) (build, error) {
	var record buildRecord
	if err := binary.Read(bytes.NewReader(b), binary.BigEndian, &record); err != nil || record.FormatIsOne != 1 {
		return build{}, errors.New("the record of what was loaded is of another version of longhaul")
	}
	return build{
		algorithm: string(bytes.TrimRight(record.Algorithm[:], "\x00")),
		sum:       record.Sum,
		loadedAt:  time.Unix(record.LoadedAt, 0),
	}, nil
}

// writeBuild records what was loaded as name.
func (h *Host) writeBuild(name string, b build) error {
	record := b.encode()
	m, err := ebpf.LoadPinnedMap(h.dir(name, buildPin), nil)
	if errors.Is(err, fs.ErrNotExist) {
		m, err = ebpf.NewMap(&ebpf.MapSpec{Name: "cc_build", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(record)), MaxEntries: 1})
		if err == nil {
			if err = m.Pin(h.dir(name, buildPin)); err != nil {
				m.Close()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("cannot record what was loaded: %w", err)
	}
	defer m.Close()
	if err := m.Put(uint32(0), record); err != nil {
		return fmt.Errorf("cannot record what was loaded: %w", err)
	}
	return nil
}

// readBuild says what was loaded as name.
func (h *Host) readBuild(name string) (build, error) {
	m, err := ebpf.LoadPinnedMap(h.dir(name, buildPin), nil)
	if err != nil {
		return build{}, err
	}
	defer m.Close()
	record, err := m.LookupBytes(uint32(0))
	if err != nil {
		return build{}, err
	}
	return decodeBuild(record)
}
