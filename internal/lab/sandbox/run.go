package sandbox

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// PrivateRun gives the program in a sandbox a /run of its own, in memory, for the sockets
// and keys of the programs in the lab. Later calls change nothing and return
// what the first did: another /run would hide what is in this one.
func PrivateRun() error { return privateRun() }

var privateRun = sync.OnceValue(func() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount a /run for the lab: %w", err)
	}
	return os.Unsetenv("XDG_RUNTIME_DIR") // it lies below the one that is hidden now
})
