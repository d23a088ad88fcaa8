package cc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/cilium/ebpf"

	"longhaul/internal/sys/bpffs"
)

// Names of pins that every loaded algorithm has.
const (
	linkPin  = "link" // or opsPin
	buildPin = "build"
)

// pins returns the directory of all pins.
func (h *Host) pins() bpffs.Dir { return bpffs.Dir{Root: h.BPFFS, Feature: "cc"} }

func (h *Host) dir(parts ...string) string { return h.pins().Path(parts...) }

// holds reports whether the pins of an algorithm hold a registration.
func (h *Host) holds(name string) (bool, error) {
	isPinned, err := h.pins().Exists(name, linkPin)
	if err != nil || isPinned {
		return isPinned, err
	}
	pin, err := h.registeredOps(name)
	return pin != "", err
}

// clear removes the pins of an algorithm, the registration first.
func (h *Host) clear(name string) error {
	if err := os.Remove(h.dir(name, linkPin)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unregister %s: %w", name, err)
	}
	if err := h.clearOps(name); err != nil {
		return fmt.Errorf("unregister %s: %w", name, err)
	}
	if err := os.RemoveAll(h.dir(name)); err != nil {
		return fmt.Errorf("remove the pins of %s: %w", name, err)
	}
	return nil
}

// build describes the loaded build. It is in a pinned map: the BPF filesystem has no
// plain files.
type build struct {
	algorithm string
	sum       [sha256.Size]byte
	loadedAt  time.Time
}

// buildRecord is a build in the map.
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
		return build{}, errors.New("another version of longhaul wrote the build record")
	}
	return build{
		algorithm: string(bytes.TrimRight(record.Algorithm[:], "\x00")),
		sum:       record.Sum,
		loadedAt:  time.Unix(record.LoadedAt, 0),
	}, nil
}

// writeBuild records the build loaded as name.
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
		return fmt.Errorf("record the loaded build: %w", err)
	}
	defer m.Close()
	if err := m.Put(uint32(0), record); err != nil {
		return fmt.Errorf("record the loaded build: %w", err)
	}
	return nil
}

// readBuild reads the build loaded as name.
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
