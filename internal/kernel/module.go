package kernel

import (
	"errors"
	"os"
	"strings"

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
	needs := "the kernel module " + module + " (" + option + "): modprobe " + module
	if modulesDisabled() {
		needs = "the kernel module " + module + " (" + option + "), and kernel.modules_disabled is 1: " +
			"list the module in /etc/modules-load.d and restart the machine"
	}
	return &ErrUnsupported{feature, needs}
}

// modulesDisabled reports whether the kernel loads no module until it restarts.
func modulesDisabled() bool {
	b, err := os.ReadFile("/proc/sys/kernel/modules_disabled")
	return err == nil && strings.TrimSpace(string(b)) == "1"
}
