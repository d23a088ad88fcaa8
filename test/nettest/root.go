package nettest

import (
	"errors"
	"os"

	"longhaul/internal/sys/kernel"
)

// MachineRoot says whether this is root over the whole machine, who may load
// BPF. Under CI=true it is an error that it is not.
func MachineRoot() (bool, error) {
	err := error(nil)
	if os.Geteuid() != 0 || !kernel.InitialUserNamespace() {
		err = errors.New("not root over the machine")
	}
	if err != nil && os.Getenv("CI") == "true" {
		return false, err
	}
	return err == nil, nil
}
