package cc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/ledger"
)

// Pins of the registration without a link.
const (
	opsPin     = "ops"
	nextOpsPin = "ops_next" // of a replacement under way
)

// opsMapName marks longhaul's maps among those of the kernel.
const opsMapName = "longhaul_cc"

// State of a map's value in the kernel, its enum bpf_struct_ops_state.
const (
	opsUnused     = 0
	opsRegistered = 1
)

// builtInName is the name of an algorithm that every kernel has.
const builtInName = "reno"

// newOps makes a map for a table. Without BPF_F_LINK, its value registers the table. It
// takes one value in its life.
func newOps(table *ebpf.MapSpec) (*ebpf.Map, error) {
	spec := table.Copy()
	spec.Name, spec.Flags, spec.Contents = opsMapName, 0, nil
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make a map of operations: %w", err)
	}
	return m, nil
}

// value returns the value of a map that registers the algorithm with the programs.
func (o *object) value(k kernelTypes, programs map[string]*ebpf.Program) ([]byte, error) {
	value := make([]byte, k.value.Size)
	table := value[k.tableAt:]
	for _, member := range k.table.Members {
		size := 0
		switch member.Name {
		case "name":
			size = maxName + 1
		case "flags":
			size = 4
		default:
			continue
		}
		from, err := o.field(member.Name, size)
		if err != nil {
			return nil, err
		}
		copy(table[member.Offset.Bytes():], from)
	}
	for key, spec := range o.spec.Programs {
		if spec.Type != ebpf.StructOps {
			continue
		}
		at, ok := k.programMembers[memberOf(spec)]
		if !ok {
			return nil, unsupported(o.name, "a kernel whose algorithms have "+memberOf(spec))
		}
		binary.NativeEndian.PutUint64(table[at:], uint64(programs[key].FD()))
	}
	return value, nil
}

// tryOps has the kernel check a map's value, without registering it: the name is taken.
func (o *object) tryOps(k kernelTypes, programs map[string]*ebpf.Program) error {
	value, err := o.value(k, programs)
	if err != nil {
		return err
	}
	if err := k.setName(value, builtInName); err != nil {
		return err
	}
	m, err := newOps(o.table)
	if err != nil {
		return err
	}
	defer m.Close()
	switch err := m.Put(uint32(0), value); {
	case errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.EINVAL):
		return unsupported(o.name, "a kernel that takes all of its functions as BPF struct_ops (Linux 6.0)")
	case err != nil:
		return fmt.Errorf("try %s: %w", o.name, err)
	}
	return errors.Join(fmt.Errorf("try %s: the kernel registered a second %s", o.name, builtInName), unregisterOps(m))
}

func (k kernelTypes) nameAt() (int, error) {
	for _, member := range k.table.Members {
		if member.Name == "name" {
			return int(k.tableAt + member.Offset.Bytes()), nil
		}
	}
	return 0, errors.New("the kernel's algorithms have no name")
}

// setName sets the name in a map's value.
func (k kernelTypes) setName(value []byte, name string) error {
	at, err := k.nameAt()
	if err != nil {
		return err
	}
	clear(value[at : at+maxName+1])
	copy(value[at:], name)
	return nil
}

// registerOps registers an algorithm without a link: by the value of a pinned map. A
// registered map holds itself, so removing its pins does not unregister it. Hence the
// map is pinned before it gets its value, and loses the value before the pin.
func (h *Host) registerOps(name string, o *object, programs map[string]*ebpf.Program) error {
	m, value, err := o.triedOps(programs)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Pin(h.dir(name, opsPin)); err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	return putOps(o.name, name, m, value)
}

// triedOps returns a map, and the value that registers the programs in it. The kernel
// has checked the value.
func (o *object) triedOps(programs map[string]*ebpf.Program) (*ebpf.Map, []byte, error) {
	k, err := readKernelTypes()
	if err != nil {
		return nil, nil, err
	}
	if err := o.tryOps(k, programs); err != nil {
		return nil, nil, err
	}
	value, err := o.value(k, programs)
	if err != nil {
		return nil, nil, err
	}
	m, err := newOps(o.table)
	return m, value, err
}

// putOps registers.
func putOps(algorithm, name string, m *ebpf.Map, value []byte) error {
	err := m.Put(uint32(0), value)
	if errors.Is(err, unix.EEXIST) {
		return taken(algorithm, name, "another process registered it just now")
	}
	if err != nil {
		return fmt.Errorf("register %s: %w", name, err)
	}
	return nil
}

// replaceByOps registers programs in place of a registered map: it unregisters the
// former and registers the new one. In between no socket can choose the algorithm. If
// the kernel refuses the new one, the former returns.
func (h *Host) replaceByOps(name string, o *object, programs map[string]*ebpf.Program) error {
	next, value, err := o.triedOps(programs)
	if err != nil {
		return err
	}
	defer next.Close()
	return h.swapOps(name, o, next, value)
}

func (h *Host) swapOps(name string, o *object, next *ebpf.Map, value []byte) error {
	k, err := readKernelTypes()
	if err != nil {
		return err
	}
	nextPin := h.dir(name, nextOpsPin)
	former, err := ebpf.LoadPinnedMap(h.dir(name, opsPin), nil)
	if err != nil {
		return fmt.Errorf("open its map: %w: unload it first", err)
	}
	defer former.Close()
	formerValue, formerPrograms, err := k.reusable(former)
	if err != nil {
		return fmt.Errorf("read its map: %w: unload it first", err)
	}
	defer closeAll(formerPrograms)
	spare, err := newOps(o.table)
	if err != nil {
		return err
	}
	defer spare.Close()
	if err := next.Pin(nextPin); err != nil {
		return fmt.Errorf("pin the new map: %w", err)
	}
	if err := unregisterOps(former); err != nil {
		return errors.Join(err, os.Remove(nextPin))
	}
	if h.betweenOps != nil {
		h.betweenOps()
	}
	if err := putOps(o.name, name, next, value); err != nil {
		return errors.Join(err, restoreOps(o.name, name, spare, formerValue, nextPin), h.settleOps(name))
	}
	return h.settleOps(name)
}

// restoreOps registers a former algorithm again, in a new map.
func restoreOps(algorithm, name string, m *ebpf.Map, value []byte, pin string) error {
	err := os.Remove(pin)
	if err == nil {
		err = m.Pin(pin)
	}
	if err == nil {
		err = putOps(algorithm, name, m, value)
	}
	if err != nil {
		return fmt.Errorf("the former %s is unloaded and cannot return: load it again: %w", name, err)
	}
	return nil
}

// settleOps completes a replacement that was interrupted: it keeps the pin of the
// registered map.
func (h *Host) settleOps(name string) error {
	next := h.dir(name, nextOpsPin)
	state, err := stateOfPin(next)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("complete the replacement of %s: %w", name, err)
	case state == opsRegistered:
		err = os.Rename(next, h.dir(name, opsPin))
	default:
		err = os.Remove(next)
	}
	if err != nil {
		return fmt.Errorf("complete the replacement of %s: %w", name, err)
	}
	return nil
}

// reusable returns the value with which another map registers the same algorithm. Its
// programs are open until the caller closes them.
func (k kernelTypes) reusable(m *ebpf.Map) (value []byte, programs []*ebpf.Program, err error) {
	read, err := m.LookupBytes(uint32(0))
	if err != nil {
		return nil, nil, err
	}
	if uint32(len(read)) < k.value.Size {
		return nil, nil, fmt.Errorf("its value has %d bytes, not %d", len(read), k.value.Size)
	}
	// The kernel's own fields must be zero in what it is given.
	value = make([]byte, len(read))
	copy(value[k.tableAt:], read[k.tableAt:])
	for _, at := range k.programMembers {
		place := value[k.tableAt+at:]
		id := binary.NativeEndian.Uint64(place)
		if id == 0 {
			continue
		}
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err != nil {
			closeAll(programs)
			return nil, nil, err
		}
		programs = append(programs, p)
		binary.NativeEndian.PutUint64(place, uint64(p.FD()))
	}
	return value, programs, nil
}

func closeAll(programs []*ebpf.Program) {
	for _, p := range programs {
		p.Close()
	}
}

// unregisterOps takes the value from a map. New sockets cannot choose the algorithm any
// more when it returns.
func unregisterOps(m *ebpf.Map) error {
	err := m.Delete(uint32(0))
	if errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, unix.EINPROGRESS) {
		return nil // it has no value, or sockets still use the one that it lost
	}
	return err
}

// clearOps unregisters what the pins of an algorithm hold.
func (h *Host) clearOps(name string) error {
	for _, pin := range []string{opsPin, nextOpsPin} {
		m, err := ebpf.LoadPinnedMap(h.dir(name, pin), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if m.Type() == ebpf.StructOpsMap {
			err = unregisterOps(m)
		}
		m.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// registeredOps returns the pin of the map that registers an algorithm; empty if none
// does.
func (h *Host) registeredOps(name string) (pin string, err error) {
	for _, pin := range []string{opsPin, nextOpsPin} {
		state, err := stateOfPin(h.dir(name, pin))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("read the registration of %s: %w", name, err)
		}
		if err == nil && state == opsRegistered {
			return pin, nil
		}
	}
	return "", nil
}

func stateOfPin(pin string) (uint32, error) {
	m, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	if m.Type() != ebpf.StructOpsMap {
		return opsUnused, nil
	}
	k, err := readKernelTypes()
	if err != nil {
		return 0, err
	}
	state, _, err := k.stateAndName(m)
	return state, err
}

// stateAndName reads the value of a map.
func (k kernelTypes) stateAndName(m *ebpf.Map) (state uint32, name string, err error) {
	value, err := m.LookupBytes(uint32(0))
	if err != nil {
		return 0, "", err
	}
	nameAt, err := k.nameAt()
	if err != nil {
		return 0, "", err
	}
	if len(value) < int(k.stateAt)+4 || len(value) < nameAt+maxName+1 {
		return 0, "", fmt.Errorf("a value of %d bytes is no %s", len(value), k.value.Name)
	}
	return binary.NativeEndian.Uint32(value[k.stateAt:]), unix.ByteSliceToString(value[nameAt : nameAt+maxName+1]), nil
}

// orphan returns longhaul's map that registers an algorithm although its pins are gone:
// somebody has removed them, or unmounted their file system. It returns nil if there is
// none. The caller knows that this host has loaded the algorithm: another BPF
// filesystem may have pins of its own.
func orphan(name string) (*ebpf.Map, error) {
	k, err := readKernelTypes()
	if err != nil {
		return nil, nil //nolint:nilerr // without the types there are no such maps
	}
	for id := ebpf.MapID(0); ; {
		if id, err = ebpf.MapGetNextID(id); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("look for the registration of %s: %w", name, err)
		}
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for the registration of %s: %w", name, err)
		}
		if isOrphan(k, m, name) {
			return m, nil
		}
		m.Close()
	}
}

func isOrphan(k kernelTypes, m *ebpf.Map, name string) bool {
	if m.Type() != ebpf.StructOpsMap || m.ValueSize() != k.value.Size {
		return false
	}
	if info, err := m.Info(); err != nil || info.Name != opsMapName {
		return false
	}
	state, has, err := k.stateAndName(m)
	return err == nil && state == opsRegistered && has == name
}

// recordedOrphan returns the orphan of a name that the ledger has as loaded, or nil.
func recordedOrphan(book *ledger.Book, name string) (*ebpf.Map, error) {
	if book.Find(algorithmKey(name)) == nil {
		return nil, nil
	}
	return orphan(name)
}

// memberOf returns the member of the table that a program fills.
func memberOf(p *ebpf.ProgramSpec) string {
	_, member, _ := strings.Cut(p.AttachTo, ":")
	return member
}
