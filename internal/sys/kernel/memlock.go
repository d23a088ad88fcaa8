package kernel

import (
	"sync"

	"golang.org/x/sys/unix"
)

// liftMemlock removes the bound on the process's locked memory. Kernels before 5.11
// count BPF maps and programs as such, against a bound of 64 KiB to 8 MiB. Without
// CAP_SYS_RESOURCE the bound stays, and a kernel that counts refuses the map.
var liftMemlock = sync.OnceFunc(func() {
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited)
})
