//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/run/config"
	"longhaul/internal/run/daemon"
	"longhaul/internal/run/service"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// settingFlag is a flag of `longhaul relay` for a key of the configuration file. The
// configuration parses and checks its value.
type settingFlag struct {
	name, key, value, usage string
	many                    bool // may be given again, or hold several values with commas
}

// settingValue collects a flag's values unparsed: the configuration parses them.
type settingValue struct {
	values []string
	kind   string // shown in the help
}

func (v *settingValue) String() string { return strings.Join(v.values, ",") }
func (v *settingValue) Type() string   { return v.kind }
func (v *settingValue) Set(s string) error {
	v.values = append(v.values, s)
	return nil
}

// tunnelFlags describe the one tunnel of a command line.
var tunnelFlags = []settingFlag{
	{name: "listen", key: "tunnel.listen", value: "ADDRESS:PORT", many: true,
		usage: "where to listen; no ADDRESS: on all addresses"},
	{name: "forward", key: "tunnel.forward", value: "HOST:PORT", many: true, usage: "next hop; several are tried in order"},
	{name: "pair", key: "tunnel.pair", value: "NAME", usage: "--forward is this paired relay, which leads on to the target"},
	{name: "pair-from", key: "tunnel.pair_from", value: "NAME", many: true, usage: "take only the flows of these paired relays"},
	{name: "balance", key: "tunnel.balance", value: "WAY", usage: "ordered, least-flows, round-robin, source (ordered)"},
	{name: "allow", key: "tunnel.allow", value: "PREFIX", many: true, usage: "sources that may connect (all)"},
	{name: "max-flows", key: "tunnel.max_flows", value: "N", usage: "flows at the same time (no bound)"},
	{name: "max-flows-per-source", key: "tunnel.max_flows_per_source", value: "N",
		usage: "flows of one address (a share)"},
	{name: "new-flows-per-second", key: "tunnel.new_flows_per_second", value: "N", usage: "new flows in a second (no bound)"},
	{name: "connect-timeout", key: "tunnel.connect_timeout", value: "DURATION", usage: "for all targets in total (10s)"},
	{name: "idle-timeout", key: "tunnel.idle_timeout", value: "DURATION", usage: "reset flows silent this long (off)"},
	{name: "wan-side", key: "tunnel.wan_side", value: "SIDE", usage: "auto, listen, forward, both, none (auto)"},
	{name: "wan-cc", key: "tunnel.wan.congestion_control", value: "NAME",
		usage: "WAN congestion control (the best available)"},
	{name: "wan-rate", key: "tunnel.wan.rate", value: "RATE", usage: "capacity of the WAN (1Gbit)"},
	{name: "wan-pacing-rate", key: "tunnel.wan.pacing_rate", value: "RATE", usage: "cap of a flow's sending rate (none)"},
	{name: "lan-cc", key: "tunnel.lan.congestion_control", value: "NAME", usage: "LAN congestion control (the kernel's)"},
	{name: "proxy-in", key: "tunnel.proxy_protocol.in.trusted", value: "PREFIX", many: true, usage: "sources that must send a PROXY header"},
	{name: "proxy-out", key: "tunnel.proxy_protocol.out", value: "VERSION", usage: "send a PROXY header: v1 or v2 (none)"},
	{name: "check-key", key: "tunnel.check.key_file", value: "FILE", usage: "key of integrity checks (none)"},
	{name: "check-next", key: "tunnel.check.next", value: "KIND", usage: "kind of --forward: relay or target (target)"},
	{name: "transport", key: "tunnel.transport", value: "MODE", usage: "auto, or kernel: set no socket option (auto)"},
}

// processFlags are the flags of the whole process; they override the file.
var processFlags = []settingFlag{
	{name: "drain-timeout", key: "drain_timeout", value: "DURATION", usage: "let flows finish this long (1m)"},
	{name: "name", key: "name", value: "NAME", usage: "name of this relay in status, beside others"},
	{name: "control-socket", key: "control_socket", value: "FILE",
		usage: "control socket for status and others, or off (the usual place)"},
	{name: "http-listen", key: "http_listen", value: "ADDRESS:PORT", many: true, usage: "serve health checks and metrics there (off)"},
	{name: "dashboard", key: "dashboard.listen", value: "ADDRESS:PORT", many: true, usage: "serve the dashboard there, to root and this user (off)"},
	{name: "history", key: "history.file", value: "FILE", usage: "record ended flows in FILE, or off"},
	{name: "pair-keys", key: "pair_keys", value: "DIR", usage: "keys of paired relays (that of longhaul pair)"},
	{name: "log-format", key: "log.format", value: "FORMAT", usage: "logfmt or json (logfmt)"},
	{name: "log-level", key: "log.level", value: "LEVEL", usage: "debug, info, warn or error (info)"},
	{name: "memory-limit", key: "memory_limit", value: "SIZE", usage: "for the flows' sockets and pipes (no bound)"},
	{name: "workers", key: "workers", value: "N", usage: "event loops (one per CPU)"},
}

func newRelay(env *env) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use: "relay (--listen ADDRESS:PORT --forward HOST:PORT | --config FILE)",

		DisableFlagsInUseLine: true,

		Short: "Run the relay: split-TCP tunnels with a fitting transport on every leg",
		Long: `relay accepts connections, connects each to its target, and moves the bytes. It
sets buffers, congestion control and keepalive for each leg. Flags describe one
tunnel, a file describes many (see longhaul config example).

It runs in the foreground. longhaul reload or SIGHUP reloads the file. After
longhaul stop, SIGTERM or SIGINT it accepts no flows and waits for existing ones
until --drain-timeout. A second signal ends it at once.

Exit codes: 0 stopped with every flow finished, 1 failed, 2 wrong command line
or bad configuration, 3 stopped with flows reset at the drain deadline.`,
		Example: `  longhaul relay --listen 10.10.10.20:6000 --forward rhel-vm-2:6000
  longhaul relay --listen :6000-6010 --forward far:6000-6010 --allow 10.0.0.0/8
  longhaul relay --listen :9000 --forward relay-b:6000 --pair site-b
  longhaul relay --config /etc/longhaul/longhaul.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && (isConfiguration(args[0]) || isFile(args[0])) {
				return usageError(remedy.New(fmt.Errorf("%s takes no argument, got %q", cmd.CommandPath(), args[0]),
					"longhaul relay --config "+args[0]))
			}
			return noArgs(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&path, "config", "c", "", "configuration `FILE`, instead of the tunnel's flags")
	for _, f := range append(append([]settingFlag{}, tunnelFlags...), processFlags...) {
		flags.Var(&settingValue{kind: f.value}, f.name, f.usage)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		tunnel, process := given(cmd, tunnelFlags), given(cmd, processFlags)
		switch {
		case path == "" && len(tunnel) == 0:
			return usageError(remedy.New(fmt.Errorf("missing tunnel"),
				"add --listen and --forward for one tunnel, or --config FILE for many"))
		case path != "" && len(tunnel) > 0:
			return usageError(remedy.New(fmt.Errorf("%s does not go with --config", tunnel[0].Name),
				"put it into the file, or leave --config out"))
		}
		err := daemon.Run(cmd.Context(), daemon.Options{
			ConfigFile: path, Flags: append(tunnel, process...), Loader: loader(), Version: version(),
			Stderr: display.Raw(env.stderr), Getenv: env.getenv, ReadablePath: service.ReadablePath,
		})
		var undrained *daemon.UndrainedError
		switch {
		case errors.As(err, &undrained):
			return &exitError{err, exitDrained}
		case errors.Is(err, daemon.ErrStraySockets):
			return usageError(err)
		}
		return err
	}
	return cmd
}

// given collects the flags of the command line as settings of the configuration.
func given(cmd *cobra.Command, known []settingFlag) []config.Flag {
	var out []config.Flag
	for _, f := range known {
		if !cmd.Flags().Changed(f.name) {
			continue
		}
		values := cmd.Flags().Lookup(f.name).Value.(*settingValue).values
		if f.value == "FILE" || f.value == "DIR" { // the configuration takes no path that depends on a directory
			values = absolute(values)
		}
		if f.many {
			values = strings.Split(strings.Join(values, ","), ",")
		}
		out = append(out, config.Flag{Name: "--" + f.name, Key: f.key, Values: values})
	}
	return out
}

// absolute returns paths of files as seen from the working directory. The word off stays.
func absolute(paths []string) []string {
	out := make([]string, len(paths))
	for i, path := range paths {
		out[i] = path
		if abs, err := filepath.Abs(path); err == nil && path != "" && path != config.Off {
			out[i] = abs
		}
	}
	return out
}

// isConfiguration reports whether a word looks like the name of a configuration.
func isConfiguration(word string) bool {
	return strings.HasSuffix(word, ".yaml") || strings.HasSuffix(word, ".yml")
}

func isFile(word string) bool {
	info, err := os.Stat(word)
	return err == nil && info.Mode().IsRegular()
}
