package sandbox

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// PrivateRun mounts an own /run in memory for the program in a sandbox, for sockets
// and keys of the lab's programs. Later calls return the first result: another /run
// would hide the files of this one.
func PrivateRun() error { return privateRun() }

var privateRun = sync.OnceValue(func() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount a /run for the lab: %w", err)
	}
	return os.Unsetenv("XDG_RUNTIME_DIR") // it is below the hidden /run
})
