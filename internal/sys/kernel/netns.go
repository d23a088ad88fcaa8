package kernel

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// NetNSCookie returns the cookie of the calling thread's network namespace, unique
// since boot. BPF programs know the namespace by it. The error is an
// [*ErrUnsupported] before Linux 5.14.
func NetNSCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket to identify the network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, &ErrUnsupported{"telling network namespaces apart", "SO_NETNS_COOKIE (Linux 5.14)"}
	}
	if err != nil {
		return 0, fmt.Errorf("read the cookie of the network namespace: %w", err)
	}
	return cookie, nil
}

// NetNSID identifies the calling thread's network namespace, unique since boot. It
// is the cookie; kernels without it number the namespace's loopback device.
func NetNSID() (uint64, error) {
	if hasNetNSCookie() {
		return NetNSCookie()
	}
	return loopbackID()
}

var hasNetNSCookie = sync.OnceValue(func() bool {
	var unsupported *ErrUnsupported
	_, err := NetNSCookie()
	return !errors.As(err, &unsupported)
})

// loopbackID returns the inode number of the loopback device's directory in sysfs. The
// device lives exactly as long as its network namespace. sysfs numbers its directories
// upwards and, from Linux 5.5, gives no number twice. The namespace's own inode has no
// such number: the kernel reuses it at once.
func loopbackID() (uint64, error) {
	// A sysfs shows the devices of the network namespace that mounted it. This one is
	// mounted nowhere and ends with the descriptor.
	unmounted, err := sysfs()
	if errors.Is(err, unix.EPERM) {
		return 0, &ErrUnsupported{"telling network namespaces apart before Linux 5.14", "CAP_SYS_ADMIN: run it as root"}
	}
	if err != nil {
		return 0, fmt.Errorf("tell network namespaces apart, before Linux 5.14: %w", err)
	}
	defer unix.Close(unmounted)
	var s unix.Stat_t
	if err := unix.Fstatat(unmounted, "class/net/lo", &s, 0); err != nil {
		return 0, fmt.Errorf("tell network namespaces apart, before Linux 5.14, by the loopback device: %w", err)
	}
	return s.Ino, nil
}

// sysfs returns a new sysfs of the calling thread's network namespace.
func sysfs() (fd int, err error) {
	config, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open sysfs: %w", err)
	}
	defer unix.Close(config)
	if err := unix.FsconfigCreate(config); err != nil {
		return -1, fmt.Errorf("make a sysfs: %w", err)
	}
	fd, err = unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("get a sysfs: %w", err)
	}
	return fd, nil
}
