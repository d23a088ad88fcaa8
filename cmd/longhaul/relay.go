package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"longhaul/internal/config"
)

// settingFlag is a flag of `longhaul relay` that stands for a key of the
// configuration file, where its value is parsed and checked.
type settingFlag struct {
	name, key, value, usage string
	many                    bool // may be given again, or hold several values with commas
}

// tunnelFlags describe the one tunnel of a command line.
var tunnelFlags = []settingFlag{
	{name: "listen", key: "tunnel.listen", value: "ADDRESS:PORT", many: true, usage: "where to listen; a name, an address, or nothing for every address; PORT may be a range"},
	{name: "forward", key: "tunnel.forward", value: "HOST:PORT", many: true, usage: "where to forward to; several are tried in order"},
	{name: "allow", key: "tunnel.allow", value: "PREFIX", many: true, usage: "sources that may connect (default: all)"},
	{name: "max-flows", key: "tunnel.max_flows", value: "N", usage: "flows at the same time (default: no bound)"},
	{name: "new-flows-per-second", key: "tunnel.new_flows_per_second", value: "N", usage: "new flows in a second (default: no bound)"},
	{name: "connect-timeout", key: "tunnel.connect_timeout", value: "TIME", usage: "for all targets together (default: 10s)"},
	{name: "idle-timeout", key: "tunnel.idle_timeout", value: "TIME", usage: "reset flows that are silent this long (default: off)"},
	{name: "wan-side", key: "tunnel.wan_side", value: "SIDE", usage: "which leg crosses the WAN: auto, listen, forward, both or none"},
	{name: "wan-cc", key: "tunnel.wan.congestion_control", value: "NAME", usage: "congestion control of WAN legs (default: the best there is)"},
	{name: "wan-rate", key: "tunnel.wan.rate", value: "RATE", usage: "what the WAN carries, to size buffers (default: 1Gbit)"},
	{name: "wan-pacing-rate", key: "tunnel.wan.pacing_rate", value: "RATE", usage: "cap of each flow's sending rate (default: none)"},
	{name: "lan-cc", key: "tunnel.lan.congestion_control", value: "NAME", usage: "congestion control of LAN legs (default: the kernel's)"},
	{name: "proxy-in", key: "tunnel.proxy_protocol.in.trusted", value: "PREFIX", many: true, usage: "require a PROXY protocol header of these sources, or of any"},
	{name: "proxy-out", key: "tunnel.proxy_protocol.out", value: "VERSION", usage: "send a PROXY protocol header: v1 or v2"},
	{name: "transport", key: "tunnel.transport", value: "MODE", usage: "auto, or kernel to leave every socket option alone"},
}

// processFlags are those of the whole process; they override the file's.
var processFlags = []settingFlag{
	{name: "drain-timeout", key: "drain_timeout", value: "TIME", usage: "how long to let flows finish when stopping (default: 1m)"},
	{name: "control-socket", key: "control_socket", value: "PATH", usage: "where longhaul status finds this relay, or off"},
	{name: "log-format", key: "log.format", value: "FORMAT", usage: "logfmt or json (default: logfmt)"},
	{name: "log-level", key: "log.level", value: "LEVEL", usage: "debug, info, warn or error (default: info)"},
	{name: "workers", key: "workers", value: "N", usage: "event loops (default: one per CPU)"},
}

func newRelay(env *env) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "relay (--listen ADDRESS:PORT --forward HOST:PORT | --config FILE)",
		Short: "Run the relay: split-TCP tunnels with the right transport on every leg",
		Long: `relay accepts connections, connects each to its target, and moves the bytes,
with buffers, congestion control and keepalive that fit each leg. Flags
describe one tunnel, a file describes many (see longhaul config example).

It runs in the foreground. SIGHUP reloads the file, SIGTERM and SIGINT stop
accepting and let flows finish until --drain-timeout; a second one ends at once.

Exit codes: 0 stopped with every flow finished, 1 failed, 2 wrong command line
or bad configuration, 3 stopped with flows reset at the drain deadline.`,
		Example: `  longhaul relay --listen 10.10.10.20:6000 --forward rhel-vm-2:6000
  longhaul relay --listen :6000-6010 --forward relay-b:6000-6010 --allow 10.10.10.0/24
  longhaul relay --config /etc/longhaul/longhaul.yaml`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&path, "config", "c", "", "configuration `FILE`, in place of the flags of one tunnel")
	for _, f := range append(append([]settingFlag{}, tunnelFlags...), processFlags...) {
		flags.StringArray(f.name, nil, "`"+f.value+"`: "+f.usage)
		flags.Lookup(f.name).DefValue = ""
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		tunnel, process := given(cmd, tunnelFlags), given(cmd, processFlags)
		switch {
		case path == "" && len(tunnel) == 0:
			return usageError(&hintError{fmt.Errorf("no tunnel is given"), "add --listen and --forward for one tunnel, or --config FILE for many"})
		case path != "" && len(tunnel) > 0:
			return usageError(&hintError{fmt.Errorf("%s cannot be used with --config", tunnel[0].Name), "put it into the file, or leave --config out"})
		}
		d := &daemon{env: env, path: path, flags: append(tunnel, process...)}
		return d.run(cmd.Context())
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
		// The error cannot happen: the flag was defined as an array above.
		values, _ := cmd.Flags().GetStringArray(f.name)
		if f.many {
			values = strings.Split(strings.Join(values, ","), ",")
		}
		out = append(out, config.Flag{Name: "--" + f.name, Key: f.key, Values: values})
	}
	return out
}
