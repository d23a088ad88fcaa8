//go:build linux

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"longhaul/internal/config"
	"longhaul/internal/daemon"
	"longhaul/internal/display"
	"longhaul/internal/integrity"
	"longhaul/internal/kernel"
	"longhaul/internal/service"
)

func newConfig(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Check a configuration, or print an example",
		Example: "  longhaul config check /etc/longhaul/longhaul.yaml",
		Args:    cobra.ArbitraryArgs,
		RunE:    needCommand,
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "List every mistake in a configuration: file, line, column and fix",
		Long: `check loads FILE as the relay would and resolves the names in listen. It prints
every mistake with file, line, column and fix. It changes nothing.

It warns of a tunnel that listens on a wildcard or public address and has no
allow, with the line to add.

Exit codes: 0 the file is valid, with or without warnings; 2 it is invalid.`,
		Example: "  longhaul config check /etc/longhaul/longhaul.yaml && systemctl reload longhaul",
		Args:    exactArgs(1, "one FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loader().Load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			printWarnings(env, c.Warnings)
			_, err = fmt.Fprintf(env.stdout, "%s: ok, %s\n", args[0], summary(c))
			return err
		},
	})
	cmd.AddCommand(&cobra.Command{
		Use:     "example",
		Short:   "Print a commented configuration to start from",
		Example: "  longhaul config example > longhaul.yaml",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := env.stdout.Write(config.Example)
			return err
		},
	})
	return cmd
}

// loader reads configurations for this host.
func loader() config.Loader {
	return config.Loader{NoIPv6: !kernel.HasIPv6(), CheckKey: checkKeyFile, CheckDashboard: checkDashboardFiles}
}

// summary counts what a configuration has.
func summary(c *config.Config) string {
	listens, forwards := 0, 0
	for _, t := range c.Tunnels {
		listens += len(t.Addresses())
		forwards += len(t.Forward)
	}
	return display.Plural(len(c.Tunnels), "tunnel") + ", " + display.Plural(listens, "listening address") + ", " + display.Plural(forwards, "target")
}

// checkDashboardFiles checks a dashboard's files for the configuration.
func checkDashboardFiles(c config.Dashboard) (problem, fix string) {
	if len(c.Listen) > 0 && c.TLSCert != "" {
		c.TLSCert, c.TLSKey, c.TokenFile = service.ReadablePath(c.TLSCert), service.ReadablePath(c.TLSKey), service.ReadablePath(c.TokenFile)
	}
	return problemOf(daemon.CheckDashboard(c))
}

// checkKeyFile checks a key file for the configuration.
func checkKeyFile(path string) (problem, fix string) {
	_, err := integrity.LoadKeys(service.ReadablePath(path))
	return problemOf(err)
}
