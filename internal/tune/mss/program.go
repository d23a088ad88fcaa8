package mss

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// Names in the object.
const (
	programName  = "mss"
	tablesName   = "mss_tables"
	countersName = "mss_counters"
)

// maxRules is the maximum number of rules of a table.
const maxRules = 64

// program is the program of a device with its maps, or only its maps.
type program struct {
	program  *ebpf.Program
	tables   *ebpf.Map
	counters *ebpf.Map
}

func (p *program) Close() {
	p.program.Close()
	p.tables.Close()
	p.counters.Close()
}

func parseObject() (*ebpf.CollectionSpec, error) {
	unzip, err := gzip.NewReader(bytes.NewReader(zipped))
	var object []byte
	if err == nil {
		object, err = io.ReadAll(unzip)
	}
	var spec *ebpf.CollectionSpec
	if err == nil {
		spec, err = ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	}
	if err != nil {
		return nil, fmt.Errorf("read the program's object: %w", err)
	}
	return spec, nil
}

// loadProgram loads the program into the kernel. It uses the maps pinned in the
// directory, or pins new ones there, unless dir is empty.
func loadProgram(dir string, d device) (*program, error) {
	spec, err := parseObject()
	if err != nil {
		return nil, err
	}
	return intoKernel(spec, dir, d)
}

func intoKernel(spec *ebpf.CollectionSpec, dir string, d device) (*program, error) {
	if err := spec.Variables["link_header_bytes"].Set(d.linkHeader); err != nil {
		return nil, err
	}
	if dir != "" {
		spec.Maps[tablesName].Pinning = ebpf.PinByName
		spec.Maps[countersName].Pinning = ebpf.PinByName
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}})
	var rejected *ebpf.VerifierError
	switch {
	case errors.As(err, &rejected) && !remedy.OutOfDescriptors(err): // with none left, the log finds no fault
		return nil, kernel.Rejected(feature, "Linux 5.10", rejected, rejected.Log)
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return nil, fmt.Errorf("another version of longhaul set the rules of %s: clear them and set them again", d.name)
	case errors.Is(err, ebpf.ErrNotSupported):
		return nil, &kernel.ErrUnsupported{Feature: feature, Needs: "another kernel: " + err.Error()}
	case err != nil:
		return nil, fmt.Errorf("load the program that rewrites the MSS: %w", err)
	}
	defer collection.Close()
	return &program{
		collection.DetachProgram(programName),
		collection.DetachMap(tablesName),
		collection.DetachMap(countersName),
	}, nil
}

// lookupReturnsMTU reports whether the kernel's lookup of a route returns its MTU.
// Without it the program would clamp nothing.
var lookupReturnsMTU = sync.OnceValue(func() bool {
	var lookup *btf.Struct
	types, err := btf.LoadKernelSpec()
	if err == nil {
		err = types.TypeByName("bpf_fib_lookup", &lookup)
	}
	if err != nil {
		return true // such a kernel does not say; all but old ones do
	}
	return hasMember(lookup.Members, "mtu_result")
})

// hasMember reports whether one of the members, or of those of a union among them, has
// a name.
func hasMember(members []btf.Member, name string) bool {
	return slices.ContainsFunc(members, func(m btf.Member) bool {
		union, ok := m.Type.(*btf.Union)
		return m.Name == name || ok && hasMember(union.Members, name)
	})
}

// openMaps opens the maps pinned in the directory.
func openMaps(dir string) (*program, error) {
	tables, err := ebpf.LoadPinnedMap(filepath.Join(dir, tablesName), nil)
	if err != nil {
		return nil, err
	}
	counters, err := ebpf.LoadPinnedMap(filepath.Join(dir, countersName), nil)
	if err != nil {
		tables.Close()
		return nil, err
	}
	return &program{nil, tables, counters}, nil
}

// rules reads the table in force. It is empty before the first rule.
func (p *program) rules(device string) ([]numbered, error) {
	var table *ebpf.Map
	err := p.tables.Lookup(uint32(0), &table)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	defer table.Close()
	var rules []numbered
	for i := range uint32(maxRules) {
		var r record
		if err := table.Lookup(i, &r); err != nil {
			return nil, fmt.Errorf("read the rules: %w", err)
		}
		if r.ID == 0 {
			break
		}
		n, err := r.numbered(device)
		if err != nil {
			return nil, err
		}
		rules = append(rules, n)
	}
	return rules, nil
}

// counters are the program's counters of a rule: struct counters in bpf/mss.bpf.c.
type counters struct {
	Matched, Rewritten uint64
	LastNS             uint64 // of CLOCK_BOOTTIME; 0 if never
	Last               uint32 // old << 16 | new
	_                  uint32
}

// put replaces the table in one step. Rules in both tables keep their counters.
func (p *program) put(rules []numbered) error {
	rules = slices.Clone(rules)
	sorted.By(rules, compare)
	table, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "mss_rules", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(record{})), MaxEntries: maxRules,
	})
	if err != nil {
		return fmt.Errorf("make a table of rules: %w", err)
	}
	defer table.Close()
	for i, n := range rules {
		if err := table.Put(uint32(i), n.record()); err != nil {
			return fmt.Errorf("fill a table of rules: %w", err)
		}
		// Existing counters stay.
		if err := p.counters.Update(n.id, counters{}, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("make a rule's counters: %w", err)
		}
	}
	if err := p.tables.Put(uint32(0), table); err != nil {
		return fmt.Errorf("replace the rules: %w", err)
	}
	return p.forget(rules)
}

// forget removes the counters of removed rules.
func (p *program) forget(rules []numbered) error {
	var (
		id   uint32
		c    counters
		gone []uint32
	)
	for all := p.counters.Iterate(); all.Next(&id, &c); {
		if !slices.ContainsFunc(rules, func(n numbered) bool { return n.id == id }) {
			gone = append(gone, id)
		}
	}
	for _, id := range gone {
		if err := p.counters.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove a rule's counters: %w", err)
		}
	}
	return nil
}

// show lists the rules of a device.
func (h *Host) show(a attachment) ([]Status, error) {
	name := a.deviceName()
	hook, problem := h.hook(a)
	p, err := openMaps(h.pins().Path(a.dir))
	var rules []numbered
	if err == nil {
		defer p.Close()
		rules, err = p.rules(name)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		hook, problem = "", err.Error()
	}
	if len(rules) == 0 {
		if problem == "" {
			problem = "left by an interrupted command: clear it"
		}
		return []Status{{Rule: Rule{Device: name}, Namespace: a.namespace, Hook: hook, Problem: problem}}, nil
	}
	var list []Status
	for _, n := range rules {
		s := Status{Rule: n.rule, ID: n.id, Namespace: a.namespace, Hook: hook, Problem: problem}
		var c counters
		if err := p.counters.Lookup(n.id, &c); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("read the counters: %w", err)
		}
		s.Matched, s.Rewritten = c.Matched, c.Rewritten
		if c.LastNS != 0 {
			s.LastOld, s.LastNew = int(c.Last>>16), int(c.Last&0xffff)
			s.LastAgo = sinceBoot() - time.Duration(c.LastNS)
		}
		list = append(list, s)
	}
	return list, nil
}

// sinceBoot is CLOCK_BOOTTIME.
func sinceBoot() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano())
}
