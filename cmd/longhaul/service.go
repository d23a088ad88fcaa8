//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/display"
	"longhaul/internal/remedy"
	"longhaul/internal/service"
)

// Where things are. What is not a package's goes where administrators put
// things by hand: package managers leave /usr/local and /etc/systemd/system
// alone, and neither can ever overwrite the other.
const (
	unitName       = "longhaul.service"
	configFile     = "/etc/longhaul/longhaul.yaml"
	unitFile       = "/etc/systemd/system/" + unitName
	dropInDir      = unitFile + ".d"
	wantsLink      = "/etc/systemd/system/multi-user.target.wants/" + unitName
	serviceRecords = "/var/lib/longhaul-service"
	defaultPrefix  = "/usr/local"

	programBelowPrefix = "bin/longhaul"
)

// packagedUnits is where packages put the unit.
var packagedUnits = []string{"/usr/lib/systemd/system/" + unitName, "/lib/systemd/system/" + unitName}

// stateDirs are what systemd has made of the unit's StateDirectory, the first a
// link to the second. The history is there.
var stateDirs = []string{"/var/lib/longhaul", "/var/lib/private/longhaul"}

// ownDirs go with everything in them when they are purged.
var ownDirs = []string{filepath.Dir(configFile), dropInDir}

func newService(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Install the relay as a service of systemd, look at it, remove it",
		Long: `service makes this program a service of systemd: a unit with a user of its own
that may do what the configuration needs and nothing else. What it makes it
writes down, and uninstall removes exactly that.`,
		Example: `  longhaul service install --config site-a.yaml --now
  longhaul service status
  longhaul service uninstall`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newServiceInstall(env), newServiceUninstall(env), newServiceStatus(env))
	return cmd
}

// rootFlag is the root directory of an image; empty for this machine.
func rootFlag(flags *pflag.FlagSet, root *string) {
	flags.StringVar(root, "root", "", "work on the image below `DIR`; systemd is not called")
}

// serviceHost is this machine or an image.
func serviceHost(root string) (service.Host, error) {
	h := service.Host{Dir: serviceRecords}
	if root == "" {
		return h, nil
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		return h, err
	}
	info, err := os.Stat(absolute)
	if err != nil {
		return h, usageError(remedy.New(fmt.Errorf("--root: %w", err), "name the root directory of an image"))
	}
	if !info.IsDir() {
		return h, usageError(remedy.New(fmt.Errorf("--root: %s is no directory", root), "name the root directory of an image"))
	}
	h.Root = absolute
	return h, nil
}

// mayChange says why this process cannot change the host's services.
func mayChange(h service.Host) error {
	switch {
	case h.Root != "":
		return nil
	case !service.Booted():
		return remedy.New(errors.New("systemd does not run this machine"), "run longhaul relay under the init that does; for an image, add --root DIR")
	case os.Geteuid() != 0:
		return remedy.New(errors.New("only root can change the services of this machine"), "run it with sudo")
	}
	return nil
}

// packagedUnit is the unit that a package has brought; empty if none has.
func packagedUnit(h service.Host) string {
	for _, path := range packagedUnits {
		if h.Exists(path) {
			return path
		}
	}
	return ""
}

// serviceError adds what to do about an error.
func serviceError(err error) error {
	var conflict *service.ErrConflict
	switch {
	case errors.As(err, &conflict) && conflict.Changed:
		return remedy.New(err, "move it away, or remove everything first: longhaul service uninstall --purge")
	case errors.As(err, &conflict) && conflict.Path == unitFile:
		return remedy.New(err, "move it away")
	case errors.As(err, &conflict):
		return remedy.New(err, "move it away, or choose another place with --prefix DIR")
	case errors.Is(err, os.ErrPermission):
		return remedy.New(err, "run it with sudo")
	}
	return err
}

// verbs are what a step is called once it is done.
var verbs = map[service.Verb]string{
	service.Write: "wrote", service.Replace: "replaced", service.Link: "linked", service.Remove: "removed",
	service.Keep: "kept",
}

// writeSteps lists changes, and what was left alone and why. The many files of
// share are counted.
func writeSteps(env *env, steps []service.Step, dryRun bool) {
	name := func(verb service.Verb) string {
		if dryRun {
			return "would " + string(verb)
		}
		return verbs[verb]
	}
	type group struct {
		verb service.Verb
		dir  string
	}
	counts := map[group]int{}
	var groups []group
	for _, s := range steps {
		dir, _, shared := strings.Cut(s.Path, "/share/")
		switch {
		case s.Verb == service.Present, s.Verb == service.Make, s.Verb == service.Unmake:
		case shared && s.Verb != service.Keep:
			g := group{s.Verb, dir + "/share"}
			if counts[g]++; counts[g] == 1 {
				groups = append(groups, g)
			}
		case s.Why != "":
			fmt.Fprintf(env.stdout, "%s %s: %s\n", name(s.Verb), s.Path, s.Why)
		default:
			fmt.Fprintf(env.stdout, "%s %s\n", name(s.Verb), s.Path)
		}
	}
	for _, g := range groups {
		fmt.Fprintf(env.stdout, "%s %s below %s: manual pages, completion, examples\n", name(g.verb), display.Plural(counts[g], "file"), g.dir)
	}
}
