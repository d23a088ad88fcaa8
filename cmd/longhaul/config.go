//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"longhaul/internal/carry/integrity"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/run/config"
	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
	"longhaul/internal/run/service"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/display"
	"longhaul/internal/words/portrange"
	"longhaul/internal/words/remedy"
)

func newConfig(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration, or print an example",
		Long: `config checks a configuration file of the relay before a relay loads it, and
prints an example to start from. longhaul.yaml(5) describes the format.`,
		Example: `  longhaul config check /etc/longhaul/longhaul.yaml
  longhaul config example > longhaul.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: needCommand,
	}
	cmd.AddCommand(newConfigCheck(env), &cobra.Command{
		Use:   "example",
		Short: "Print a commented configuration to start from",
		Long: `example prints a configuration with every section, and comments that say when
each setting is needed. The relay takes it once its names are yours.`,
		Example: "  longhaul config example > longhaul.yaml",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := env.stdout.Write(config.Example)
			return err
		},
	})
	return cmd
}

func newConfigCheck(env *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "List every mistake in a configuration: file, line, column and fix",
		Long: `check loads FILE as the relay would and looks up the names in listen and
forward. It prints every mistake with file, line, column and fix. It changes
nothing.

It warns of a tunnel that listens on a wildcard or public address and has no
allow, with the line to add. It also warns of what this host lacks, while the
relay's host may have it: a listening address, the address of a name in forward,
the key of a peer, a congestion control; and of listening ports that the kernel
may give to outgoing connections. On the relay's host, as root, it warns of
intercepted connections that the host's forward rules reject, and of included
files in /etc/longhaul that the service's user cannot read.

Exit codes: 0 the file is valid, with or without warnings; 2 it is invalid.`,
		Example: `  longhaul config check /etc/longhaul/longhaul.yaml && longhaul reload
  longhaul config check --json longhaul.yaml | jq .mistakes`,
		Args: exactArgs(1, "one FILE"),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the mistakes and warnings as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, warnings, err := loader().Check(cmd.Context(), args[0])
		var mistakes config.Errors
		if asJSON && (err == nil || errors.As(err, &mistakes)) {
			checked := checkedConfig{File: args[0], Valid: err == nil, Mistakes: placed(mistakes), Warnings: placed(warnings)}
			if err == nil {
				checked.configSize, checked.Files = sizeOf(c), c.Files.Paths()
				for _, w := range hostWarnings(env, c) {
					checked.Warnings = append(checked.Warnings, placedProblem{args[0], w.Error(), remedy.Of(w)})
				}
			}
			if err := display.WriteJSON(env.stdout, checked); err != nil || checked.Valid {
				return err
			}
			return &exitError{nil, exitUsage}
		}
		printWarnings(env, warnings)
		if err != nil {
			return err
		}
		for _, w := range hostWarnings(env, c) {
			writeWarning(env.stderr, args[0]+": "+w.Error(), remedy.Of(w))
		}
		_, err = fmt.Fprintf(env.stdout, "%s: ok, %s\n%s", args[0], sizeOf(c), daemon.FilesText(c.Files.Paths()))
		return err
	}
	return cmd
}

// hostWarnings are those of a valid file that only the relay's host has.
func hostWarnings(env *env, c *config.Config) []error {
	return append(unreadableWarnings(filepath.Dir(service.ConfigFile), c.Files.Paths()), forwardWarnings(env, c)...)
}

// unreadableWarnings says which included files the service's user cannot read, while this process, as
// root, can. They are asked for if the main file is in the service's folder, for everybody to read.
func unreadableWarnings(folder string, paths []string) (warnings []error) {
	for i, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			return nil
		}
		info, err := os.Stat(path)
		readable := err == nil && info.Mode()&0o004 != 0
		switch {
		case i == 0 && (!readable || !strings.HasPrefix(path, folder+"/")):
			return nil
		case err == nil && !readable:
			warnings = append(warnings, remedy.New(fmt.Errorf("the service's user cannot read %s (mode %#o)", path, info.Mode().Perm()), "run chmod o+r "+path))
		}
	}
	return warnings
}

// forwardWarnings says which tunnels take connections that this host's forward rules would
// not let through, or may not. It says nothing of a file that is for another host, and
// nothing without the privilege to read the rules.
func forwardWarnings(env *env, c *config.Config) (warnings []error) {
	verdicts, err := intercept.NewHost(env.by()).ForwardRules(daemon.InterceptOptions(cmp.Or(c.Name, control.DefaultName), c))
	if err != nil {
		return nil
	}
	for _, v := range verdicts {
		if problem := v.Problem(); problem != nil {
			warnings = append(warnings, problem)
		}
	}
	return warnings
}

// checkedConfig is the JSON of config check.
type checkedConfig struct {
	File  string `json:"file"`
	Valid bool   `json:"valid"`
	configSize
	Files    []string        `json:"files,omitempty"` // that were read
	Mistakes []placedProblem `json:"mistakes"`
	Warnings []placedProblem `json:"warnings"`
}

// placedProblem is a mistake or a warning with its place.
type placedProblem struct {
	At      string `json:"at"` // file, line and column
	Problem string `json:"problem"`
	Fix     string `json:"fix"`
}

func placed(all []*config.Error) []placedProblem {
	problems := make([]placedProblem, len(all))
	for i, e := range all {
		problems[i] = placedProblem{e.At.String(), e.Problem, e.Fix}
	}
	return problems
}

// loader reads configurations for this host.
func loader() config.Loader {
	return config.Loader{NoIPv6: !kernel.HasIPv6(), CheckKey: checkKeyFile, CheckDashboard: checkDashboardFiles, WebConfig: readWebConfig,
		CongestionControls: cc.NewHost(ledger.By{}).Known, OwnAddresses: daemon.OwnAddresses,
		HasAddress: hasAddress, OutgoingPorts: portrange.Outgoing, PeerKey: peerKey, KeepsState: keepsState, CheckTrust: checkTrust}
}

// keepsState reports whether the relay that loads a file is a service, or this process is one's.
func keepsState(file string) bool {
	path, err := filepath.Abs(file)
	return err == nil && strings.HasPrefix(path, filepath.Dir(service.ConfigFile)+"/") || os.Getenv("STATE_DIRECTORY") != ""
}

// hasAddress reports whether this host can listen on an address. A host with
// net.ipv4.ip_nonlocal_bind can listen on any.
func hasAddress(a netip.Addr) bool {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, syscall.EADDRNOTAVAIL)
}

// peerKey returns why a directory of keys has none of a peer, or nil.
func peerKey(dir, peer string) error {
	if dir == "" {
		dir = identity.Directory(os.Getenv)
	}
	if dir == "" {
		return nil
	}
	if err := identity.New(dir).Known(peer); errors.Is(err, identity.ErrNoPeer) {
		return fmt.Errorf("%w (in %s)", err, dir)
	}
	return nil
}

// checkTrust checks the files of a trust, and its names against the peers whose keys are pinned.
func checkTrust(dir string, o trust.Options) (warnings []error, err error) {
	t, err := trust.Load(o)
	if err != nil {
		return nil, err
	}
	if dir == "" {
		dir = identity.Directory(os.Getenv)
	}
	if dir != "" {
		err = trust.New(identity.New(dir)).Clash(&o)
	}
	return t.Warnings(), err
}

// configSize counts the parts of a configuration.
type configSize struct {
	Tunnels int `json:"tunnels"`
	Listens int `json:"listening_addresses"`
	Targets int `json:"targets"`
	Relays  int `json:"far_relays"` // of pairs

	Services int `json:"services,omitempty"` // of the DNS, which have targets or far relays
}

func (n configSize) String() string {
	text := display.Plural(n.Tunnels, "tunnel") + ", " + display.Plural(n.Listens, "listening address")
	if n.Targets > 0 || n.Relays+n.Services == 0 {
		text += ", " + display.Plural(n.Targets, "target")
	}
	if n.Relays > 0 {
		text += ", " + display.Plural(n.Relays, "far relay")
	}
	if n.Services > 0 {
		text += ", " + display.Plural(n.Services, "service")
	}
	return text
}

func sizeOf(c *config.Config) configSize {
	n := configSize{Tunnels: len(c.Tunnels)}
	for _, t := range c.Tunnels {
		n.Listens += len(t.Addresses())
		if t.Pair.Paired() {
			n.Relays += len(t.Forward)
		} else {
			n.Targets += len(t.Forward)
		}
		if t.Service != "" {
			n.Services++
		}
	}
	return n
}

// checkDashboardFiles checks a dashboard's files for the configuration.
func checkDashboardFiles(c config.Dashboard) (problem, fix string) {
	c.TLSCert, c.TLSKey, c.TokenFile = service.ReadablePath(c.TLSCert), service.ReadablePath(c.TLSKey), service.ReadablePath(c.TokenFile)
	return problemOf(daemon.CheckDashboard(c))
}

// readWebConfig reads a web configuration for the configuration.
func readWebConfig(path string) (*webconfig.Settings, config.Errors, error) {
	return config.ReadWebConfig(path, service.ReadablePath)
}

// checkKeyFile checks a key file for the configuration.
func checkKeyFile(path string) (problem, fix string) {
	_, err := integrity.LoadKeys(service.ReadablePath(path))
	return problemOf(err)
}
