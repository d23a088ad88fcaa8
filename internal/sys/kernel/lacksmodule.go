package kernel

import (
	"errors"

	"golang.org/x/sys/unix"
)

// LacksModule returns an [*ErrUnsupported] about the feature if err means that the
// kernel has no module for what it was asked to make. It returns any other error as it
// is. option is the module's option in the kernel's configuration.
func LacksModule(err error, feature, module, option string) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EAFNOSUPPORT):
	default:
		return err
	}
	needs := "the kernel module " + module + " (" + option + ")"
	switch (Modules{}).State(module) {
	case ModuleMissing:
		needs += ", which is not among the modules of the running kernel: install the rest of them"
	case ModuleBarred:
		needs += ", and kernel.modules_disabled is 1: list it in /etc/modules-load.d and restart the machine"
	default:
		needs += ": modprobe " + module
	}
	return &ErrUnsupported{feature, needs}
}
