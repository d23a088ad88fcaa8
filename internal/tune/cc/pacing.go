package cc

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// bpfPaces reports whether this kernel lets an algorithm set a connection's pacing. It
// tries a program that does nothing else.
var bpfPaces = sync.OnceValues(func() (bool, error) {
	types, err := readKernelTypes()
	if err != nil {
		return false, err
	}
	kernelSpec, err := types.cache.Kernel()
	if err != nil {
		return false, err
	}
	var sock *btf.Struct
	if err := kernelSpec.TypeByName("sock", &sock); err != nil {
		return false, err
	}
	for _, member := range sock.Members {
		if member.Name != "sk_pacing_status" {
			continue
		}
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.StructOps, AttachTo: opsType + ":init", License: "GPL",
			Instructions: asm.Instructions{
				asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), // the socket
				asm.Mov.Imm(asm.R2, 1),
				asm.StoreMem(asm.R1, int16(member.Offset.Bytes()), asm.R2, asm.Word),
				asm.Mov.Imm(asm.R0, 0),
				asm.Return(),
			},
		})
		var rejected *ebpf.VerifierError
		if errors.As(err, &rejected) {
			return false, nil
		}
		if err == nil {
			p.Close()
		}
		return err == nil, err
	}
	return false, errors.New("the kernel's sockets have no sk_pacing_status")
})
