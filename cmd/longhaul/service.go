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

	"longhaul/internal/run/config"
	"longhaul/internal/run/daemon"
	"longhaul/internal/run/service"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/tune/hostchanges"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

func newService(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Install the relay as a service of systemd, look at it, remove it",
		Long: `service makes this program a service of systemd: a unit whose own user has only
the privileges that the configuration needs. It records every change, and
uninstall removes exactly those.`,
		Example: `  longhaul service install --config site-a.yaml --now
  longhaul service status
  longhaul service uninstall`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newServiceInstall(env), newServiceUninstall(env), newServiceStatus(env))
	return cmd
}

// rootFlag adds --root, the root directory of an image; empty for this machine.
func rootFlag(flags *pflag.FlagSet, root *string) {
	flags.StringVar(root, "root", "", "work on the image below `DIR`; systemd is not called")
}

// serviceHost returns the host that --root names.
func serviceHost(root string) (service.Host, error) {
	host, err := service.OpenHost(root)
	if err != nil {
		return host, usageError(remedy.New(fmt.Errorf("--root: %w", err), "name the root directory of an image"))
	}
	return host, nil
}

// changedServiceHost returns the host that --root names, if this process can change
// it or only plans.
func changedServiceHost(root string, dryRun bool) (service.Host, error) {
	host, err := serviceHost(root)
	if err == nil && !dryRun {
		err = host.CheckAccess()
	}
	return host, err
}

func newServiceInstall(env *env) *cobra.Command {
	var (
		i                service.Installer
		root, configFile string
		asJSON           bool
	)
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Make this program a service of systemd",
		Long: `install puts this program, its unit, manual pages and shell completion into
/usr/local, and a configuration to start from into /etc/longhaul if there is
none. It enables the service once you have edited that configuration.

The unit has only the capabilities that the configuration needs: for ports below
1024, restricted congestion controls, buffers beyond the sysctls, and longhaul's
own algorithms. Run install again after changing those.

install first says what the configuration needs and this host lacks (longhaul
host check). It changes nothing where a part of the configuration cannot work.

It overwrites only its own files. With a package installed it adds only the
capabilities that the configuration needs. After an interruption, run it again,
or uninstall.`,
		Example: `  longhaul service install --dry-run
  longhaul service install --config site-a.yaml --now
  longhaul service install --root /mnt/image --config site-a.yaml`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&configFile, "config", "", "copy `FILE` to /etc/longhaul/longhaul.yaml")
	flags.BoolVar(&i.Start, "now", false, "start the service at once")
	flags.BoolVar(&i.DryRun, "dry-run", false, "only say what would be done")
	flags.StringSliceVar(&i.DropIns, "grant", nil, "a `LIST` of drop-ins beyond those that the configuration needs (auto, or as before), or none: "+strings.Join(service.DropInNames(), ", "))
	flags.StringVar(&i.Prefix, "prefix", "", "where bin and share are: a `DIR` ("+service.DefaultPrefix+", or as before)")
	rootFlag(flags, &root)
	flags.BoolVar(&asJSON, "json", false, "print what was done as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if i.Prefix != "" && !filepath.IsAbs(i.Prefix) {
			return usageError(remedy.New(fmt.Errorf("--prefix %s is not absolute", i.Prefix),
				"write it like "+service.DefaultPrefix))
		}
		if i.Host, err = changedServiceHost(root, i.DryRun); err != nil {
			return err
		}
		if err := service.CheckDropIns(i.DropIns); err != nil {
			return usageError(err)
		}
		if i.ConfigName = configFile; configFile != "" {
			if i.Config, err = os.ReadFile(configFile); err != nil {
				return usageError(remedy.New(fmt.Errorf("--config: %w", err), "check the path and its permissions"))
			}
			i.ConfigFiles, _ = config.Loader{}.Read(configFile) // files that are missing here may be on the host
		}
		if i.OwnCC, err = cc.NewHost(env.by()).AllNames(); err != nil {
			return err
		}
		i.AllowedCC, _ = cc.Allowed() // unknown without it
		i.Version, i.Loader = version(), loader()
		if root == "" {
			i.Lacks = func(c *config.Config) ([]service.Lack, error) { return warnOfLacks(env, c) }
		}
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
		Short: "Stop the service and remove everything that service install has added",
		Long: `uninstall stops the service, which waits for flows until drain_timeout, and
removes exactly the files that install has added. It keeps and lists files
changed since, such as the configuration. --purge also removes those,
everything in /etc/longhaul, and the service's history.

It unloads congestion controls that the service has loaded. It lists other
commands' changes of this host, each with its undo.`,
		Example: `  longhaul service uninstall --dry-run
  longhaul service uninstall
  longhaul service uninstall --purge`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&u.Purge, "purge", false, "also remove changed files, all of /etc/longhaul, and the history")
	flags.BoolVar(&u.KeepConfig, "keep-config", false, "keep "+service.ConfigFile+", changed or not")
	flags.BoolVar(&u.DryRun, "dry-run", false, "only say what would be done")
	rootFlag(flags, &root)
	flags.BoolVar(&asJSON, "json", false, "print what was done as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if u.Purge && u.KeepConfig {
			return usageError(remedy.New(errors.New("choose one of --purge and --keep-config"),
				"leave one of them out"))
		}
		if u.Host, err = changedServiceHost(root, u.DryRun); err != nil {
			return err
		}
		u.Loader, u.Kernel = loader(), kernelChanges{env.by()}
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

// kernelChanges reads longhaul's changes of the kernel for service.
type kernelChanges struct{ by ledger.By }

// UnloadCC takes back the claims of the service and of its relay.
func (k kernelChanges) UnloadCC(ctx context.Context, name string) (unloaded bool, err error) {
	own := ledger.OwnClaims(service.UnitName)
	_, err = hostchanges.NewHost(k.by).Undo(ctx, hostchanges.Selection{Choose: func(key ledger.Key, c ledger.Claim) bool {
		return key.Kind == ledger.Algorithm && key.Name == name && own(key, c)
	}})
	return !cc.IsAvailable(name), ccError(err)
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
		Short: "Show whether the service is installed and runs, and its privileges",
		Long: `status shows the service's program and version, whether it runs and starts with
the machine, its capabilities, and its exposure by systemd-analyze security,
from 0 (best) to 10. longhaul status shows the relay itself.

Exit codes: 0 installed, 1 not installed.`,
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
