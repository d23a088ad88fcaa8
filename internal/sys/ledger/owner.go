package ledger

import (
	"fmt"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// Means tells the claims of one owner apart.
type Means string

// The means.
const (
	Command Means = "command" // set, use, load
	Doctor  Means = "doctor"  // doctor --apply
	Watch   Means = "watch"   // mss set --watch, until it ends
	Relay   Means = "relay"   // a relay that loads what its tunnels name
	Lab     Means = "lab"     // an experiment, until it ends
)

// Unknown owns what the kernel has without a record: the ledger was removed, or
// another program made it.
const Unknown = "unknown"

// By says who makes a claim, and how.
type By struct {
	Owner   string   `json:"owner"`
	Means   Means    `json:"means"`
	Command string   `json:"command,omitempty"`
	Process *Process `json:"process,omitempty"` // with which the claim ends
}

// Same reports whether two claims are of one owner by the same means. Processes whose
// end ends a claim have each their own.
func (b By) Same(other By) bool {
	return b.Owner == other.Owner && b.Means == other.Means && b.pid() == other.pid()
}

func (b By) pid() int {
	if b.Process == nil {
		return 0
	}
	return b.Process.PID
}

// Ended reports whether the claim ended with its process.
func (b By) Ended() bool { return b.Process != nil && !b.Process.runs() }

// Process identifies a process.
type Process struct {
	PID int `json:"pid"`
	// Start is its start, in ticks after the boot.
	Start uint64 `json:"start"`
}

// ThisProcess returns the calling process.
func ThisProcess() *Process {
	start, err := startOf(os.Getpid())
	if err != nil {
		return nil
	}
	return &Process{os.Getpid(), start}
}

func (p Process) runs() bool {
	start, err := startOf(p.PID)
	return err == nil && start == p.Start
}

func startOf(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.Starttime, err
}

// Caller returns who makes the claims of a command of this process.
func Caller(getenv func(string) string, command string) By {
	return By{Owner: CurrentOwner(getenv), Means: Command, Command: command}
}

// OfRelay returns who makes the claims of a relay in this process. A service has the
// name of its unit.
func OfRelay(getenv func(string) string, name string) By {
	owner := serviceName(getenv)
	if owner == "" {
		owner = "relay " + name
	}
	return By{Owner: owner, Means: Relay, Command: "longhaul relay", Process: ThisProcess()}
}

// CurrentOwner returns the name of the user who runs this process. For root it is the
// user who became root by sudo or after a login, or the service that runs the process.
func CurrentOwner(getenv func(string) string) string {
	uid := os.Geteuid()
	if uid == 0 {
		if u, err := user.Lookup(getenv("SUDO_USER")); err == nil {
			return u.Username
		}
		if login, ok := loginUID(); ok {
			return userName(login)
		}
		if name := serviceName(getenv); name != "" {
			return name
		}
	}
	return userName(uid)
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid %d", uid)
}

// loginUID returns the user of the login session; see pam_loginuid(8).
func loginUID() (int, bool) {
	b, err := os.ReadFile("/proc/self/loginuid")
	if err != nil {
		return 0, false
	}
	uid, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	return int(uid), err == nil && uid != 1<<32-1
}

// serviceName returns the unit of systemd that runs this process: "longhaul.service".
func serviceName(getenv func(string) string) string {
	if getenv("INVOCATION_ID") == "" {
		return ""
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if name := path.Base(strings.TrimSpace(line)); strings.HasSuffix(name, ".service") {
			return name
		}
	}
	return ""
}

// OwnClaims chooses the claims of an owner, and those of processes that have ended.
func OwnClaims(owner string) func(Key, Claim) bool {
	return func(_ Key, c Claim) bool { return c.Owner == owner || c.Ended() }
}

// AllClaims chooses every claim.
func AllClaims(Key, Claim) bool { return true }
