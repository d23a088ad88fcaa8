//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/cc"
	"longhaul/internal/daemon"
	"longhaul/internal/destination"
	"longhaul/internal/display"
	"longhaul/internal/remedy"
	"longhaul/internal/service"
)

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

// serviceHost is the host that --root names.
func serviceHost(root string) (service.Host, error) {
	host, err := service.OpenHost(root)
	if err != nil {
		return host, usageError(remedy.New(fmt.Errorf("--root: %w", err), "name the root directory of an image"))
	}
	return host, nil
}

// changedServiceHost is the host that --root names, if this process can change
// it or is only to plan.
func changedServiceHost(root string, dryRun bool) (service.Host, error) {
	host, err := serviceHost(root)
	if err == nil && !dryRun {
		err = host.CheckAccess()
	}
	return host, err
}

func newServiceInstall(env *env) *cobra.Command {
	var (
		i            service.Installer
		root, config string
		asJSON       bool
	)
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Make this program a service of systemd",
		Long: `install puts this program, its unit, manual pages and shell completion into
/usr/local, and a configuration to start from into /etc/longhaul if there is
none. It enables the service as soon as that configuration has been edited.

The unit runs without any capability, but for those that the configuration
needs: ports below 1024, restricted congestion controls, buffers beyond the
sysctls, algorithms of longhaul's own. Run it again after changing those.

Nothing that it has not made itself is overwritten, whatever it is. With a
package installed it adds what the configuration needs, and no more. If it is
interrupted, run it again, or uninstall.`,
		Example: `  longhaul service install --dry-run
  longhaul service install --config site-a.yaml --now
  longhaul service install --root /mnt/image --config site-a.yaml`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&config, "config", "", "copy `FILE` to /etc/longhaul/longhaul.yaml")
	flags.BoolVar(&i.Start, "now", false, "start the service as well")
	flags.BoolVar(&i.DryRun, "dry-run", false, "only say what would be done")
	flags.StringSliceVar(&i.DropIns, "grant", nil, "a `LIST` of drop-ins beyond those that the configuration needs (auto, or as before), or none: "+strings.Join(service.DropInNames(), ", "))
	flags.StringVar(&i.Prefix, "prefix", "", "where bin and share are: a `DIR` ("+service.DefaultPrefix+", or as before)")
	rootFlag(flags, &root)
	flags.BoolVar(&asJSON, "json", false, "print what was done as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if i.Prefix != "" && !filepath.IsAbs(i.Prefix) {
			return usageError(remedy.New(fmt.Errorf("--prefix %s is no absolute path", i.Prefix), "write it like "+service.DefaultPrefix))
		}
		if i.Host, err = changedServiceHost(root, i.DryRun); err != nil {
			return err
		}
		if err := service.CheckDropIns(i.DropIns); err != nil {
			return usageError(err)
		}
		if i.ConfigName = config; config != "" {
			if i.Config, err = os.ReadFile(config); err != nil {
				return usageError(remedy.New(fmt.Errorf("--config: %w", err), "check the path and its permissions"))
			}
		}
		if i.OwnCC, err = cc.NewHost().Names(); err != nil {
			return err
		}
		i.AllowedCC, _ = cc.Allowed() // unknown without it
		i.Version, i.Loader = version(), loader()
		i.Share = func() (map[string][]byte, error) { return sharedFiles(env) }
		installed, err := i.Install(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON {
			err = display.WriteJSON(env.stdout, installed)
		} else {
			err = installed.WriteText(env.stdout)
		}
		if err == nil && i.Start && !installed.Enabled && !i.DryRun {
			return remedy.New(errors.New(service.ConfigFile+" is still the example, so that nothing was started"), "edit it, then run longhaul service install --now again")
		}
		return err
	}
	return cmd
}

func newServiceUninstall(env *env) *cobra.Command {
	var (
		u      service.Uninstaller
		root   string
		asJSON bool
	)
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
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&u.Purge, "purge", false, "remove what was changed since as well, all of /etc/longhaul, and the history")
	flags.BoolVar(&u.KeepConfig, "keep-config", false, "keep "+service.ConfigFile+", changed or not")
	flags.BoolVar(&u.DryRun, "dry-run", false, "only say what would be done")
	rootFlag(flags, &root)
	flags.BoolVar(&asJSON, "json", false, "print what was done as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if u.Purge && u.KeepConfig {
			return usageError(remedy.New(errors.New("--purge and --keep-config contradict each other"), "leave one of them out"))
		}
		if u.Host, err = changedServiceHost(root, u.DryRun); err != nil {
			return err
		}
		u.Loader, u.Kernel = loader(), kernelChanges{}
		uninstalled, err := u.Uninstall(cmd.Context())
		switch {
		case err != nil:
			return err
		case asJSON:
			return display.WriteJSON(env.stdout, uninstalled)
		}
		return uninstalled.WriteText(env.stdout)
	}
	return cmd
}

// kernelChanges shows service what longhaul has changed in the kernel.
type kernelChanges struct{}

func (kernelChanges) UnloadCC(ctx context.Context, name string) error {
	if _, err := destination.NewHost().UndoAll(name); err != nil {
		return err
	}
	_, err := cc.NewHost().Unload(ctx, name)
	return ccError(err)
}

func (kernelChanges) Changes() service.KernelChanges {
	found := daemon.FindHostChanges()
	changes := service.KernelChanges{CongestionControls: found.CongestionControls}
	for _, r := range found.Routes {
		changes.Routes = append(changes.Routes, r.Prefix.String())
	}
	for _, r := range found.MSS {
		changes.MSSDevices = append(changes.MSSDevices, r.Device)
	}
	return changes
}

func newServiceStatus(env *env) *cobra.Command {
	var (
		asJSON bool
		root   string
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the service is installed, runs, and what it may do",
		Long: `status shows which program the service runs and which version that is, whether
it runs and starts with the machine, its capabilities, and the exposure that
systemd-analyze security computes, from 0 (best) to 10. What the relay itself
does is shown by longhaul status.

Exit codes: 0 there is such a service, 1 there is none.`,
		Example: `  longhaul service status
  longhaul service status --json | jq .capabilities`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, err := serviceHost(root)
			if err != nil {
				return err
			}
			s, err := host.Status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = display.WriteJSON(env.stdout, s)
			} else {
				err = s.WriteText(env.stdout)
			}
			if err == nil && s.Installed == "" {
				return &exitError{nil, exitFailure}
			}
			return err
		},
	}
	flags := cmd.Flags()
	rootFlag(flags, &root)
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	return cmd
}
