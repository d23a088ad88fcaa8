package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"longhaul/internal/words/remedy"
)

// The paths of the service. A unit without a package is where administrators put
// files. Package managers do not change /usr/local and /etc/systemd/system, so
// neither overwrites the other.
const (
	UnitName      = "longhaul.service"
	UnitFile      = "/etc/systemd/system/" + UnitName
	ConfigFile    = "/etc/longhaul/longhaul.yaml"
	RecordDir     = "/var/lib/longhaul-service" // the directory of the [Record]
	DefaultPrefix = "/usr/local"                // the parent of bin and share

	dropInDir = UnitFile + ".d"
	// wantsLink is the link that starts the service with the machine.
	wantsLink = "/etc/systemd/system/multi-user.target.wants/" + UnitName
	// programBelowPrefix is the program's path below the prefix.
	programBelowPrefix = "bin/longhaul"
)

// packagedUnits are the paths of packages' units.
var packagedUnits = []string{"/usr/lib/systemd/system/" + UnitName, "/lib/systemd/system/" + UnitName}

// stateDirs are systemd's directories for StateDirectory= of the unit, the first a
// link to the second. They contain the history.
var stateDirs = []string{"/var/lib/longhaul", "/var/lib/private/longhaul"}

// ownDirs are purged with everything in them.
var ownDirs = []string{filepath.Dir(ConfigFile), dropInDir}

// OpenHost returns this machine, or the image below root unless that is empty. It
// fails if root is not a directory.
func OpenHost(root string) (Host, error) {
	h := Host{Dir: RecordDir}
	if root == "" {
		return h, nil
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		return h, err
	}
	info, err := os.Stat(absolute)
	if err != nil {
		return h, err
	}
	if !info.IsDir() {
		return h, fmt.Errorf("%s is not a directory", root)
	}
	h.Root = absolute
	return h, nil
}

// CheckAccess returns an error unless this process can change the services of the
// host. It accepts every image.
func (h Host) CheckAccess() error {
	switch {
	case h.Root != "":
		return nil
	case !Booted():
		return remedy.New(errors.New("systemd does not run this machine"), "run longhaul relay under the init that does; for an image, add --root DIR")
	case os.Geteuid() != 0:
		return remedy.New(errors.New("only root can change the services of this machine"), "run it with sudo")
	}
	return nil
}

// packagedUnit returns a package's unit; empty without one.
func (h Host) packagedUnit() string {
	for _, path := range packagedUnits {
		if h.Exists(path) {
			return path
		}
	}
	return ""
}

// withRemedy adds the remedy to an error of a change.
func withRemedy(err error) error {
	var conflict *ErrConflict
	switch {
	case errors.As(err, &conflict) && conflict.Changed:
		return remedy.New(err, "move it away, or remove everything first: longhaul service uninstall --purge")
	case errors.As(err, &conflict) && conflict.Path == UnitFile:
		return remedy.New(err, "move it away")
	case errors.As(err, &conflict):
		return remedy.New(err, "move it away, or choose another place with --prefix DIR")
	case errors.Is(err, os.ErrPermission):
		return remedy.New(err, "run it with sudo")
	}
	return err
}
