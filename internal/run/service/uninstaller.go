package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"longhaul/internal/run/config"
)

// Uninstaller removes the service from a host.
type Uninstaller struct {
	Host       Host
	Purge      bool // remove changed files, /etc/longhaul and the history
	KeepConfig bool // keep [ConfigFile]
	DryRun     bool // only plan

	// Loader loads the service's configuration.
	Loader config.Loader
	// Kernel has longhaul's changes of this machine's kernel. It is not used for
	// an image or in a dry run.
	Kernel Kernel
}

// Kernel gives [Uninstaller] access to longhaul's changes of the running kernel.
type Kernel interface {
	// UnloadCC takes back the service's claim on one of longhaul's congestion
	// controls. It reports whether the algorithm is unloaded: others may use it.
	UnloadCC(ctx context.Context, name string) (bool, error)
	// Changes lists the changes in force.
	Changes() KernelChanges
}

// KernelChanges are the changes of the kernel by commands of longhaul.
type KernelChanges struct {
	CongestionControls []string // loaded
	Routes             []string // prefixes of changed routes
	MSSDevices         []string // devices, one for each rule
}

// Uninstalled reports a removal, made or planned.
type Uninstalled struct {
	DryRun  bool     `json:"dry_run"`
	Stopped bool     `json:"stopped"` // the service ran, and was stopped
	Steps   []Step   `json:"steps"`
	Notes   []string `json:"notes"`
}

// WriteText writes the steps and notes. The error is the writer's.
func (u Uninstalled) WriteText(w io.Writer) error {
	var b bytes.Buffer
	if u.Stopped {
		fmt.Fprintln(&b, "stopped "+UnitName)
	}
	writeSteps(&b, u.Steps, u.DryRun)
	writeNotes(&b, u.Notes)
	_, err := w.Write(b.Bytes())
	return err
}

// Uninstall stops the service and removes what [Installer.Install] has made.
func (u Uninstaller) Uninstall(ctx context.Context) (Uninstalled, error) {
	result := Uninstalled{DryRun: u.DryRun, Steps: []Step{}, Notes: []string{}}
	record, err := u.Host.Load()
	if err != nil {
		return result, err
	}
	if record == nil {
		result.Notes = append(result.Notes, "service install has added nothing here")
		if !u.DryRun {
			if err := u.Host.Clear(); err != nil {
				return result, withRemedy(err)
			}
		}
	} else if err := u.remove(ctx, record, &result); err != nil {
		return result, err
	}
	if packaged := u.Host.packagedUnit(); packaged != "" {
		result.Notes = append(result.Notes, packaged+" belongs to a package: remove the package instead")
	}
	return result, nil
}

// remove removes the recorded files and, when purging, the service's state.
func (u Uninstaller) remove(ctx context.Context, record *Record, result *Uninstalled) error {
	var keep []string
	if u.KeepConfig {
		keep = []string{ConfigFile}
	}
	removal, err := u.Host.Removal(record, u.Purge, ownDirs, keep)
	if err != nil {
		return err
	}
	result.Steps = removal.Steps
	if !u.DryRun {
		if err := u.apply(ctx, record, removal, result); err != nil {
			return withRemedy(err)
		}
	}
	if !u.Purge || u.Host.packagedUnit() != "" { // packages purge themselves
		return nil
	}
	steps, err := u.removeState()
	result.Steps = append(result.Steps, steps...)
	return withRemedy(err)
}

// apply stops the service and removes its files.
func (u Uninstaller) apply(ctx context.Context, record *Record, removal *Removal, result *Uninstalled) error {
	installed := u.Host.Root == "" && record.Has(UnitFile)
	if installed {
		unit, err := ShowUnit(ctx, UnitName)
		if err != nil {
			return err
		}
		// A unit in any other state could start again.
		if unit.Active != "inactive" && unit.Loaded {
			if err := Systemctl(ctx, "stop", UnitName); err != nil {
				return err
			}
			result.Stopped = true
		}
	}
	if u.Host.Root == "" {
		notes, err := u.restoreKernel(ctx, record)
		if err != nil {
			return err
		}
		result.Notes = append(result.Notes, notes...)
	}
	if err := removal.Apply(); err != nil {
		return err
	}
	if u.Host.Root != "" {
		return nil
	}
	if err := Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if installed {
		// It fails for a unit that systemd has forgotten, which is fine.
		_ = Systemctl(ctx, "reset-failed", UnitName)
	}
	return nil
}

// removeState removes the service's own files.
func (u Uninstaller) removeState() (steps []Step, err error) {
	for _, dir := range stateDirs {
		path := filepath.Join(u.Host.Root, dir)
		if _, err := os.Lstat(path); err != nil {
			continue // missing
		}
		if !u.DryRun {
			if err := os.RemoveAll(path); err != nil {
				return steps, err
			}
		}
		steps = append(steps, Step{Verb: Remove, Path: dir, Why: "files of the service, its history"})
	}
	return steps, nil
}

// restoreKernel unloads the congestion controls that the service has loaded. It
// returns notes on them, and on the remaining changes of other commands.
func (u Uninstaller) restoreKernel(ctx context.Context, record *Record) (notes []string, err error) {
	named := record.Loads
	if record.Has(dropInPath(UseCC)) {
		// A reload may have loaded more. If the configuration is unreadable, the
		// notes below list the remaining ones.
		if c, err := u.Loader.Load(ctx, ConfigFile); err == nil {
			named = append(named, c.CongestionControls()...)
		}
	}
	for _, name := range u.Kernel.Changes().CongestionControls {
		if !slices.Contains(named, name) {
			continue
		}
		unloaded, err := u.Kernel.UnloadCC(ctx, name)
		if err != nil {
			return nil, err
		}
		if unloaded {
			notes = append(notes, "unloaded congestion control "+name)
		}
	}
	left := u.Kernel.Changes()
	for _, name := range left.CongestionControls {
		notes = append(notes, fmt.Sprintf("still loaded until the next boot, or longhaul cc unload %s: a congestion control", name))
	}
	for _, prefix := range left.Routes {
		notes = append(notes, fmt.Sprintf("still changed until the next boot, or longhaul route undo --to %s: the route to it", prefix))
	}
	for _, device := range left.MSSDevices {
		notes = append(notes, fmt.Sprintf("still there until the next boot, or longhaul mss undo --dev %s: a rule for the MSS", device))
	}
	return notes, nil
}
