package kernel

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Capability is the number of a capability of capabilities(7).
type Capability uint

// The capabilities that longhaul uses.
const (
	NetAdmin Capability = unix.CAP_NET_ADMIN
	SysAdmin Capability = unix.CAP_SYS_ADMIN
	Perfmon  Capability = unix.CAP_PERFMON
	BPF      Capability = unix.CAP_BPF
)

func (c Capability) String() string {
	switch c {
	case NetAdmin:
		return "CAP_NET_ADMIN"
	case SysAdmin:
		return "CAP_SYS_ADMIN"
	case Perfmon:
		return "CAP_PERFMON"
	case BPF:
		return "CAP_BPF"
	}
	return fmt.Sprintf("capability %d", uint(c))
}

// Missing returns the wanted capabilities that the calling thread does not have
// in effect. CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, as in the kernel.
// The capabilities of a nested user namespace may not suffice: see
// [InitialUserNamespace].
func Missing(want ...Capability) ([]Capability, error) {
	var (
		header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		data   [2]unix.CapUserData
	)
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, fmt.Errorf("read this process's capabilities: %w", err)
	}
	has := func(c Capability) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	var missing []Capability
	for _, c := range want {
		if has(c) || (c == BPF || c == Perfmon) && has(SysAdmin) {
			continue
		}
		missing = append(missing, c)
	}
	return missing, nil
}

// initialUserNS identifies the initial user namespace.
const initialUserNS = "user:[4026531837]"

// InitialUserNamespace reports whether this process is in the initial user
// namespace. In another one its capabilities do not extend to the kernel
// itself, which then refuses BPF.
func InitialUserNamespace() bool {
	ns, err := os.Readlink("/proc/self/ns/user")
	// Without user namespaces there is only the initial one.
	return err != nil || ns == initialUserNS
}

// List joins capabilities: "CAP_BPF and CAP_NET_ADMIN".
func List(capabilities []Capability) string {
	names := make([]string, len(capabilities))
	for i, c := range capabilities {
		names[i] = c.String()
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
