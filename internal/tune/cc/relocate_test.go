package cc

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// TestRelocations: each field that the algorithms read is in this kernel's BTF, in its
// byte order. Unlike loading, this needs no struct_ops.
func TestRelocations(t *testing.T) {
	types, err := btf.LoadKernelSpec()
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, fs.ErrNotExist) {
		t.Skip("the kernel has no BTF")
	}
	must(t, err)
	h := NewHost(testBy)
	names, err := h.Names()
	must(t, err)
	paces, err := bpfPaces()
	old := err == nil && !paces
	for _, name := range names {
		if old && mustPace(name) {
			continue // they do not load there, before Linux 6.0
		}
		o, err := h.object(name)
		must(t, err)
		count := 0
		for _, p := range o.spec.Programs {
			var relocations []*btf.CORERelocation
			for i := range p.Instructions {
				if r := btf.CORERelocationMetadata(&p.Instructions[i]); r != nil {
					relocations = append(relocations, r)
				}
			}
			if len(relocations) == 0 {
				continue
			}
			fixups, err := btf.CORERelocate(relocations, []*btf.Spec{types}, p.ByteOrder,
				func(btf.Type) (btf.TypeID, error) { return 0, errors.New("a type's number is of no use here") })
			must(t, err)
			for i, f := range fixups {
				if strings.HasSuffix(f.String(), "=poison") {
					t.Errorf("%s, %s: this kernel has no %s", name, p.Name, relocations[i])
				}
			}
			count += len(fixups)
		}
		if count == 0 {
			t.Errorf("%s has no relocations", name)
		}
	}
}
