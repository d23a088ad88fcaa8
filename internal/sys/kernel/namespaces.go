package kernel

import (
	"os"
	"path/filepath"
	"strings"
)

// Barrier is a sysctl whose value forbids a feature.
type Barrier struct {
	Sysctl string
	Value  string // the present one
	Allows string // one that allows the feature
}

// Remedy is the command that allows the feature.
func (b Barrier) Remedy() string { return "sysctl -w " + b.Sysctl + "=" + b.Allows }

// UserNamespaceBarrier returns the sysctl that keeps ordinary users from making user
// namespaces with privileges in them; ok is false if none does. An empty root is this
// machine's.
func UserNamespaceBarrier(root string) (b Barrier, ok bool) {
	for _, b := range []Barrier{
		{"user.max_user_namespaces", "0", "15000"},
		{"kernel.unprivileged_userns_clone", "0", "1"},
		{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"},
	} {
		value, err := os.ReadFile(filepath.Join(root, "/proc/sys", strings.ReplaceAll(b.Sysctl, ".", "/")))
		if err == nil && strings.TrimSpace(string(value)) == b.Value {
			return b, true
		}
	}
	return Barrier{}, false
}
