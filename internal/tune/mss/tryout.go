package mss

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// TryOut has the kernel's verifier check the program, and attaches it to the loopback
// device of the calling thread's network namespace for a moment. It returns how rules
// would be attached, "tcx" or "clsact"; it makes no clsact qdisc. The error is an
// [*kernel.ErrUnsupported] if the kernel or the privilege does not allow rules.
//
// Call it in a network namespace made for it.
func TryOut() (hook string, err error) {
	if err := needPrivilege(); err != nil {
		return "", err
	}
	lo, err := findDevice("lo")
	if err != nil {
		return "", err
	}
	p, err := loadProgram("", lo)
	if err != nil {
		return "", err
	}
	defer p.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: lo.index, Program: p.program, Attach: ebpf.AttachTCXEgress})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return hookClsact, nil
	}
	if err != nil {
		return "", fmt.Errorf("attach to %s: %w", lo.name, err)
	}
	return hookTCX, l.Close()
}
