package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// BTFPath is the file with the kernel's description of its own types.
const BTFPath = "/sys/kernel/btf/vmlinux"

// JITPath is the sysctl that enables the BPF compiler.
const JITPath = "/proc/sys/net/core/bpf_jit_enable"

// CheckBTF returns an [*ErrUnsupported] about the feature if the kernel has no
// BTF, which programs that hook into kernel types need.
func CheckBTF(feature string) error {
	if _, err := os.Stat(BTFPath); err != nil {
		return &ErrUnsupported{feature, "a kernel with BTF (CONFIG_DEBUG_INFO_BTF), but " + BTFPath + " is missing"}
	}
	return nil
}

// CheckBPF returns an [*ErrUnsupported] about the feature if the process cannot
// load BPF programs. It names the first missing condition: the JIT compiler,
// the capabilities, the initial user namespace, no lockdown, no filter of system
// calls. A process that can then has no bound on the memory of its programs and maps.
func CheckBPF(feature string, capabilities ...Capability) error {
	jit, err := os.ReadFile(JITPath)
	if errors.Is(err, fs.ErrNotExist) {
		// The file is also missing in network namespaces other than the first.
		err, jit = nil, []byte("1")
	}
	if err == nil && strings.TrimSpace(string(jit)) == "0" {
		return &ErrUnsupported{feature, "the BPF compiler, which is turned off: sysctl -w net.core.bpf_jit_enable=1"}
	}
	missing, err := Missing(capabilities...)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return &ErrUnsupported{feature, List(missing) + ": run it as root, or grant it"}
	}
	if !InitialUserNamespace() {
		return &ErrUnsupported{feature, "privilege over the machine, which this user namespace does not give: run it outside"}
	}
	if Lockdown() == "confidentiality" {
		return &ErrUnsupported{feature, "a kernel that is not locked down to confidentiality: see " + lockdownPath}
	}
	if bpfFiltered() {
		return &ErrUnsupported{feature, "the system call bpf, which a seccomp filter denies to this process: allow it there"}
	}
	liftMemlock()
	return nil
}

// bpfFiltered reports whether a filter denies the system call bpf, as those of container
// runtimes may. The kernel itself refuses the unknown command with another error.
func bpfFiltered() bool {
	_, _, errno := unix.Syscall(unix.SYS_BPF, ^uintptr(0), 0, 0)
	return errno == unix.EPERM || errno == unix.EACCES
}

const lockdownPath = "/sys/kernel/security/lockdown"

// Lockdown is the mode of kernel lockdown: "none", "integrity" or
// "confidentiality"; empty if unknown.
func Lockdown() string {
	b, err := os.ReadFile(lockdownPath)
	if err != nil {
		return ""
	}
	// The active mode is in brackets: none [integrity] confidentiality
	_, rest, _ := strings.Cut(string(b), "[")
	mode, _, _ := strings.Cut(rest, "]")
	return mode
}

// IsBPFFS reports whether the path is on a BPF filesystem.
func IsBPFFS(path string) bool { return isFS(path, unix.BPF_FS_MAGIC) }

func isFS(path string, magic int64) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && int64(uint32(s.Type)) == int64(uint32(magic))
}

// Cgroup2 is the mount point of the unified control group hierarchy.
func Cgroup2() (string, error) {
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if isFS(path, unix.CGROUP2_SUPER_MAGIC) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no cgroup2 file system is mounted at /sys/fs/cgroup")
}
