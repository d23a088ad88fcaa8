package cc

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"longhaul/internal/kernel"
)

func builtIn() fs.FS {
	sub, err := fs.Sub(embedded, "objects")
	if err != nil {
		panic(err) // the path is a constant
	}
	return sub
}

// opsType is the kernel's name for the table of a congestion control.
const opsType = "tcp_congestion_ops"

// before610 is the suffix of program variants for a cong_control with two arguments:
// before Linux 6.10.
const before610 = "_before_6_10"

// object is a compiled algorithm.
type object struct {
	name string // its compiled name
	sum  [sha256.Size]byte
	spec *ebpf.CollectionSpec
	ops  string // key of the table among the spec's maps
}

// Names returns the algorithms that this host can load, in alphabetical order.
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

// object reads a compiled algorithm.
func (h *Host) object(name string) (*object, error) {
	b, err := fs.ReadFile(h.Objects, name+"_"+byteOrder+".o")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		names, listErr := h.Names()
		if listErr != nil {
			return nil, listErr
		}
		return nil, fmt.Errorf("%s: %w among %s", name, ErrUnknown, strings.Join(names, ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("read the object of %s: %w", name, err)
	}
	return parseObject(name, b)
}

// parseObject reads an object file, and checks the name of its algorithm.
func parseObject(name string, elf []byte) (*object, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(elf))
	if err != nil {
		return nil, fmt.Errorf("read the object of %s: %w", name, err)
	}
	o := &object{name: name, sum: sha256.Sum256(elf), spec: spec}
	for key, m := range spec.Maps {
		if m.Type != ebpf.StructOpsMap {
			continue
		}
		if o.ops != "" {
			return nil, fmt.Errorf("the object of %s has more than one table of operations", name)
		}
		o.ops = key
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

// nameField returns the field of the algorithm's name in the kernel's table.
func (o *object) nameField() ([]byte, error) {
	m, ok := o.spec.Maps[o.ops]
	if !ok {
		return nil, fmt.Errorf("the object of %s has no table of operations", o.name)
	}
	table, isStruct := btf.As[*btf.Struct](m.Value)
	if !isStruct || table.Name != opsType || len(m.Contents) != 1 {
		return nil, fmt.Errorf("the table of %s is not of type %s", o.name, opsType)
	}
	data, isBytes := m.Contents[0].Value.([]byte)
	for _, member := range table.Members {
		at := int(member.Offset.Bytes())
		if isBytes && member.Name == "name" && at+maxName+1 <= len(data) {
			return data[at : at+maxName+1], nil
		}
	}
	return nil, fmt.Errorf("the table of %s has no name", o.name)
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

// chooseVariants keeps the variants of programs that fit this number of arguments of
// cong_control.
func (o *object) chooseVariants(arguments int) error {
	for name, variant := range o.spec.Programs {
		base, found := strings.CutSuffix(name, before610)
		if !found {
			continue
		}
		current, ok := o.spec.Programs[base]
		if !ok {
			return fmt.Errorf("the object of %s has %s and not %s", o.name, name, base)
		}
		switch arguments {
		case 4:
			delete(o.spec.Programs, name)
		case 2:
			variant.AttachTo = current.AttachTo
			delete(o.spec.Programs, base)
		default:
			return unsupported(o.name, fmt.Sprintf("a longhaul that knows this kernel's cong_control, with %d arguments", arguments))
		}
	}
	return nil
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
}

// readKernelTypes reads the types once per process.
var readKernelTypes = sync.OnceValues(func() (kernelTypes, error) {
	cache := btf.NewCache()
	spec, err := cache.Kernel()
	if err != nil {
		return kernelTypes{}, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	lacks := func(what string) (kernelTypes, error) {
		return kernelTypes{}, &kernel.ErrUnsupported{Feature: "loading congestion control", Needs: what}
	}
	if _, err := spec.AnyTypesByName("bpf_struct_ops_" + opsType); err != nil {
		return lacks("a kernel that takes it as BPF struct_ops (Linux 5.6, CONFIG_BPF_JIT)")
	}
	if _, err := spec.AnyTypesByName("bpf_struct_ops_link_create"); err != nil {
		return lacks("a kernel that has links of BPF struct_ops (Linux 6.4)")
	}
	var table *btf.Struct
	if err := spec.TypeByName(opsType, &table); err != nil {
		return kernelTypes{}, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	for _, member := range table.Members {
		if member.Name != "cong_control" {
			continue
		}
		if pointer, ok := btf.As[*btf.Pointer](member.Type); ok {
			if proto, ok := btf.As[*btf.FuncProto](pointer.Target); ok {
				return kernelTypes{cache: cache, arguments: len(proto.Params)}, nil
			}
		}
	}
	return lacks("a kernel whose algorithms have cong_control (Linux 4.9)")
})
