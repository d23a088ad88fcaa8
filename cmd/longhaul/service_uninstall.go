//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/cc"
	"longhaul/internal/daemon"
	"longhaul/internal/destination"
	"longhaul/internal/display"
	"longhaul/internal/remedy"
	"longhaul/internal/service"
)

// serviceUninstall is what uninstall was asked to do.
type serviceUninstall struct {
	root                            string
	purge, keepConfig, dryRun, json bool
}

// serviceUninstalled is what uninstall prints as JSON.
type serviceUninstalled struct {
	DryRun  bool           `json:"dry_run"`
	Stopped bool           `json:"stopped"`
	Steps   []service.Step `json:"steps"`
	Notes   []string       `json:"notes"`
}

func newServiceUninstall(env *env) *cobra.Command {
	var s serviceUninstall
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop the service, and remove all that service install has made",
		Long: `uninstall stops the service, which lets flows finish as long as drain_timeout
allows, and removes exactly what install has made. What somebody has changed
since, such as the configuration, is kept and named; with --purge it goes too,
and everything in /etc/longhaul, and the history that the service has kept.

Congestion controls that the service has loaded are unloaded. What other
commands have changed on this host is named with what undoes it.`,
		Example: `  longhaul service uninstall --dry-run
  longhaul service uninstall
  longhaul service uninstall --purge`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), env) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&s.purge, "purge", false, "remove what was changed since as well, all of /etc/longhaul, and the history")
	flags.BoolVar(&s.keepConfig, "keep-config", false, "keep "+configFile+", changed or not")
	flags.BoolVar(&s.dryRun, "dry-run", false, "only say what would be done")
	rootFlag(flags, &s.root)
	flags.BoolVar(&s.json, "json", false, "print what was done as JSON")
	return cmd
}

func (s *serviceUninstall) run(ctx context.Context, env *env) error {
	var keep []string
	if s.keepConfig {
		keep = append(keep, configFile)
		if s.purge {
			return usageError(remedy.New(errors.New("--purge and --keep-config contradict each other"), "leave one of them out"))
		}
	}
	host, err := serviceHost(s.root)
	if err != nil {
		return err
	}
	if err := mayChange(host); err != nil && !s.dryRun {
		return err
	}
	record, err := host.Load()
	if err != nil {
		return err
	}
	out := serviceUninstalled{DryRun: s.dryRun, Steps: []service.Step{}, Notes: []string{}}
	if record == nil {
		out.Notes = append(out.Notes, "service install has made nothing here")
		if !s.dryRun {
			if err := host.Clear(); err != nil {
				return serviceError(err)
			}
		}
	} else {
		removal, err := host.Removal(record, s.purge, ownDirs, keep)
		if err != nil {
			return err
		}
		out.Steps = removal.Steps
		if !s.dryRun {
			if err := s.apply(ctx, host, record, removal, &out); err != nil {
				return serviceError(err)
			}
		}
		if s.purge && packagedUnit(host) == "" { // a package has its own purge
			steps, err := removeState(host, s.dryRun)
			out.Steps = append(out.Steps, steps...)
			if err != nil {
				return serviceError(err)
			}
		}
	}
	if packaged := packagedUnit(host); packaged != "" {
		out.Notes = append(out.Notes, packaged+" is a package's: remove that to be rid of it")
	}
	if s.json {
		return display.WriteJSON(env.stdout, out)
	}
	if out.Stopped {
		fmt.Fprintln(env.stdout, "stopped "+unitName)
	}
	writeSteps(env, out.Steps, s.dryRun)
	for _, note := range out.Notes {
		fmt.Fprintln(env.stdout, "note: "+note)
	}
	return nil
}

// apply stops the service and removes what there is of it.
func (s *serviceUninstall) apply(ctx context.Context, host service.Host, record *service.Record, removal *service.Removal, out *serviceUninstalled) error {
	running := host.Root == "" && record.Has(unitFile)
	if running {
		unit, err := service.ShowUnit(ctx, unitName)
		if err != nil {
			return err
		}
		// Also what systemd would start again.
		if unit.Active != "inactive" && unit.Loaded {
			if err := service.Systemctl(ctx, "stop", unitName); err != nil {
				return err
			}
			out.Stopped = true
		}
	}
	if host.Root == "" {
		notes, err := unloadServiceCC(ctx, record)
		if err != nil {
			return err
		}
		out.Notes = append(out.Notes, notes...)
	}
	if err := removal.Apply(); err != nil {
		return err
	}
	if host.Root != "" {
		return nil
	}
	if err := service.Systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if running {
		// A unit that failed is remembered; one that did not is no failure.
		_ = service.Systemctl(ctx, "reset-failed", unitName)
	}
	return nil
}

// removeState removes what the service itself has stored.
func removeState(host service.Host, dryRun bool) (steps []service.Step, err error) {
	for _, dir := range stateDirs {
		path := filepath.Join(host.Root, dir)
		if _, err := os.Lstat(path); err != nil {
			continue // there is none
		}
		if !dryRun {
			if err := os.RemoveAll(path); err != nil {
				return steps, err
			}
		}
		steps = append(steps, service.Step{Verb: service.Remove, Path: dir, Why: "what the service has stored, its history"})
	}
	return steps, nil
}

// unloadServiceCC takes the algorithms out of the kernel that the service has
// loaded, and says what else longhaul has changed on this host.
func unloadServiceCC(ctx context.Context, record *service.Record) (notes []string, err error) {
	named := record.Loads
	if record.Has(dropInDir + "/" + grantCC + ".conf") {
		// A reload may have named more. A configuration that cannot be read
		// names none; then the note does.
		if c, err := loader().Load(ctx, configFile); err == nil {
			named = append(named, c.CongestionControls()...)
		}
	}
	for _, name := range daemon.FindHostChanges().CongestionControls {
		if !slices.Contains(named, name) {
			continue
		}
		if _, err := destination.NewHost().UndoAll(name); err != nil {
			return nil, err
		}
		if _, err := cc.NewHost().Unload(ctx, name); err != nil {
			return nil, ccError(err)
		}
		notes = append(notes, "unloaded congestion control "+name)
	}
	left := daemon.FindHostChanges()
	if len(left.CongestionControls) > 0 {
		notes = append(notes, "still loaded until the next boot, or longhaul cc unload: congestion control "+strings.Join(left.CongestionControls, ", "))
	}
	for _, r := range left.Routes {
		notes = append(notes, fmt.Sprintf("still changed until the next boot, or longhaul route undo %s: the route to it", r.Prefix))
	}
	for _, r := range left.MSS {
		notes = append(notes, fmt.Sprintf("still there until the next boot, or longhaul mss clear --dev %s: a rule for the MSS", r.Device))
	}
	return notes, nil
}
