package cc

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/ccnames"
)

func builtIn() fs.FS {
	sub, err := fs.Sub(embedded, "objects")
	if err != nil {
		panic(err) // the path is a constant
	}
	return zipped{sub}
}

// zipped has the files NAME.gz of another file system as NAME.
type zipped struct{ files fs.FS }

// Open implements [fs.FS].
func (z zipped) Open(name string) (fs.File, error) {
	f, err := z.files.Open(name + ".gz")
	if err != nil {
		return nil, err
	}
	content, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return unzipped{f, content}, nil
}

// Glob implements [fs.GlobFS].
func (z zipped) Glob(pattern string) ([]string, error) {
	names, err := fs.Glob(z.files, pattern+".gz")
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, ".gz")
	}
	return names, err
}

// unzipped is a file of [zipped]. Its size is the compressed one.
type unzipped struct {
	fs.File
	content io.Reader
}

// Read implements [fs.File].
func (f unzipped) Read(b []byte) (int, error) { return f.content.Read(b) }

// opsType is the kernel's name for the table of a congestion control.
const opsType = "tcp_congestion_ops"

// Suffixes of variants of a program.
const (
	// before610: for a cong_control with two arguments, before Linux 6.10.
	before610 = "_before_6_10"
	// unpaced: without writes to the pacing of a socket, which the verifier refuses
	// before Linux 6.0.
	unpaced = "_unpaced"
)

// newMembers are members of the table that older kernels lack. They leave out the
// programs that fill them.
var newMembers = []string{"cwnd_event_tx_start"} // Linux 7.1

// object is a compiled algorithm.
type object struct {
	name  string // its compiled name
	sum   [sha256.Size]byte
	spec  *ebpf.CollectionSpec
	table *ebpf.MapSpec // of operations; in spec only if linked
	// linked: a link registers the table. Otherwise a value of the map does, on kernels
	// without such links, and always if unlinked is set, for tests.
	linked, unlinked bool
	// reduced has variants for kernels whose verifier refuses the programs of spec.
	reduced map[string]*ebpf.ProgramSpec
	// notes list degraded features, a sentence each.
	notes []string
}

// Names returns longhaul's algorithms, in alphabetical order.
func (h *Host) Names() ([]string, error) {
	suffix := "_" + byteOrder + ".o"
	files, err := fs.Glob(h.Objects, "*"+suffix)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(path.Base(file), suffix))
	}
	slices.Sort(names)
	return names, nil
}

// object reads a compiled algorithm by its first or second name.
func (h *Host) object(name string) (*object, error) {
	given := name
	name = ccnames.First(name)
	b, err := fs.ReadFile(h.Objects, name+"_"+byteOrder+".o")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		names, listErr := h.Names()
		if listErr != nil {
			return nil, listErr
		}
		return nil, &UnknownError{given, names}
	}
	if err != nil {
		return nil, fmt.Errorf("read the object of %s: %w", name, err)
	}
	o, err := parseObject(name, b)
	if err != nil {
		return nil, err
	}
	o.unlinked = h.unlinked
	return o, nil
}

// parseObject reads an object file, and checks the name of its algorithm.
func parseObject(name string, elf []byte) (*object, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(elf))
	if err != nil {
		return nil, fmt.Errorf("read the object of %s: %w", name, err)
	}
	o := &object{name: name, sum: sha256.Sum256(elf), spec: spec, reduced: map[string]*ebpf.ProgramSpec{}}
	for _, m := range spec.Maps {
		if m.Type != ebpf.StructOpsMap {
			continue
		}
		if o.table != nil {
			return nil, fmt.Errorf("the object of %s has more than one table of operations", name)
		}
		o.table = m
	}
	field, err := o.nameField()
	if err != nil {
		return nil, err
	}
	if is := string(bytes.TrimRight(field, "\x00")); is != name {
		return nil, fmt.Errorf("the object of %s has an algorithm named %q", name, is)
	}
	return o, nil
}

// nameField returns the field of the algorithm's name in the table.
func (o *object) nameField() ([]byte, error) { return o.field("name", maxName+1) }

// field returns the bytes of a member of the table.
func (o *object) field(name string, size int) ([]byte, error) {
	if o.table == nil {
		return nil, fmt.Errorf("the object of %s has no table of operations", o.name)
	}
	table, isStruct := btf.As[*btf.Struct](o.table.Value)
	if !isStruct || table.Name != opsType || len(o.table.Contents) != 1 {
		return nil, fmt.Errorf("the table of %s is not of type %s", o.name, opsType)
	}
	data, isBytes := o.table.Contents[0].Value.([]byte)
	for _, member := range table.Members {
		at := int(member.Offset.Bytes())
		if isBytes && member.Name == name && at+size <= len(data) {
			return data[at : at+size], nil
		}
	}
	return nil, fmt.Errorf("the table of %s has no %s", o.name, name)
}

// rename makes the algorithm register under another name.
func (o *object) rename(name string) error {
	field, err := o.nameField()
	if err != nil {
		return err
	}
	clear(field)
	copy(field, name)
	return nil
}

// adapt chooses the variants and members that fit the kernel.
func (o *object) adapt(k kernelTypes) error {
	if err := o.chooseVariants(k.arguments); err != nil {
		return err
	}
	for name, p := range o.spec.Programs {
		if member := memberOf(p); slices.Contains(newMembers, member) && !k.hasMember(member) {
			delete(o.spec.Programs, name)
		}
	}
	if o.linked = k.links && !o.unlinked; !o.linked {
		// Whoever loads a table without BPF_F_LINK registers it.
		maps.DeleteFunc(o.spec.Maps, func(_ string, m *ebpf.MapSpec) bool { return m == o.table })
	}
	return nil
}

// chooseVariants keeps the variants of programs that fit this number of arguments of
// cong_control, and sets aside those that are for want of better.
func (o *object) chooseVariants(arguments int) error {
	for name, variant := range o.spec.Programs {
		suffix := before610
		base, found := strings.CutSuffix(name, suffix)
		if !found {
			suffix = unpaced
			base, found = strings.CutSuffix(name, suffix)
		}
		if !found {
			continue
		}
		current, ok := o.spec.Programs[base]
		if !ok {
			return fmt.Errorf("the object of %s has %s and not %s", o.name, name, base)
		}
		switch {
		case suffix == unpaced:
			variant.AttachTo = current.AttachTo
			o.reduced[base] = variant
			delete(o.spec.Programs, name)
		case arguments == 4:
			delete(o.spec.Programs, name)
		case arguments == 2:
			variant.AttachTo = current.AttachTo
			delete(o.spec.Programs, base)
		default:
			return unsupported(o.name, fmt.Sprintf("a longhaul that knows this kernel's cong_control, with %d arguments", arguments))
		}
	}
	return nil
}

// reduce puts the variants set aside in place of their programs.
func (o *object) reduce() {
	maps.Copy(o.spec.Programs, o.reduced)
	o.reduced = nil
	o.notes = append(o.notes, o.name+" works without pacing: this kernel's BPF cannot turn it on (Linux 6.0 can)")
}

// capabilities returns the capabilities that loading the object needs.
func (o *object) capabilities() []kernel.Capability {
	need := []kernel.Capability{kernel.BPF, kernel.Perfmon}
	for _, p := range o.spec.Programs {
		if p.Type != ebpf.StructOps {
			return append(need, kernel.NetAdmin)
		}
	}
	return need
}

// kernelTypes are the kernel's BTF types of congestion control.
type kernelTypes struct {
	cache *btf.Cache
	// arguments of cong_control.
	arguments int
	// links: a BPF link can register a table.
	links bool
	// value is what a struct_ops map holds: the kernel's fields, and the table.
	value          *btf.Struct
	table          *btf.Struct
	tableAt        uint32
	stateAt        uint32
	programMembers map[string]uint32 // offsets in the table
}

func (k kernelTypes) hasMember(name string) bool {
	return slices.ContainsFunc(k.table.Members, func(m btf.Member) bool { return m.Name == name })
}

// readKernelTypes reads the types once per process.
var readKernelTypes = sync.OnceValues(func() (kernelTypes, error) {
	cache := btf.NewCache()
	spec, err := cache.Kernel()
	if err != nil {
		return kernelTypes{}, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	k := kernelTypes{cache: cache, programMembers: map[string]uint32{}}
	lacks := func(what string) (kernelTypes, error) {
		return kernelTypes{}, &kernel.ErrUnsupported{Feature: "loading congestion control", Needs: what}
	}
	if err := spec.TypeByName("bpf_struct_ops_"+opsType, &k.value); err != nil {
		return lacks("a kernel that takes it as BPF struct_ops (Linux 5.6, CONFIG_BPF_JIT)")
	}
	_, err = spec.AnyTypesByName("bpf_struct_ops_link_create") // since Linux 6.4
	k.links = err == nil
	if err := spec.TypeByName(opsType, &k.table); err != nil {
		return kernelTypes{}, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	if err := k.readValue(); err != nil {
		return kernelTypes{}, err
	}
	for _, member := range k.table.Members {
		pointer, ok := btf.As[*btf.Pointer](member.Type)
		if !ok {
			continue
		}
		proto, ok := btf.As[*btf.FuncProto](pointer.Target)
		if !ok {
			continue
		}
		k.programMembers[member.Name] = member.Offset.Bytes()
		if member.Name == "cong_control" {
			k.arguments = len(proto.Params)
		}
	}
	if k.arguments == 0 {
		return lacks("a kernel whose algorithms have cong_control (Linux 4.9)")
	}
	return k, nil
})

// readValue finds the table and the state in a map's value. The state is in a record
// of its own since Linux 6.9.
func (k *kernelTypes) readValue() error {
	hasTable, hasState := false, false
	for _, member := range k.value.Members {
		if member.Name == "state" {
			k.stateAt, hasState = member.Offset.Bytes(), true
		}
		inner, ok := btf.As[*btf.Struct](member.Type)
		if !ok {
			continue
		}
		if inner.Name == opsType {
			k.tableAt, hasTable = member.Offset.Bytes(), true
			continue
		}
		for _, m := range inner.Members {
			if m.Name == "state" {
				k.stateAt, hasState = (member.Offset + m.Offset).Bytes(), true
			}
		}
	}
	if !hasTable || !hasState {
		return &kernel.ErrUnsupported{Feature: "loading congestion control", Needs: "a longhaul that knows this kernel's " + k.value.Name}
	}
	return nil
}
