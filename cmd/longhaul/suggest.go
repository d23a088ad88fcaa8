package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"longhaul/internal/words/remedy"
)

// verbSynonyms are verbs of other tools, and of what a reader may expect, with the
// commands that replace them. A command is looked up below the command that got the
// word, then below the root; the first one there is meant. "." is the command itself.
var verbSynonyms = map[string][]string{
	"ls": {"list", "status", "."}, "show": {"show", "status", "list"}, "get": {"show", "status", "list"},
	"info": {"show", "status", "list"}, "list": {"list", "status", "."}, "ps": {"status"},
	"stat": {"status"}, "stats": {"status"}, "state": {"status"},
	"tunnels": {"status"}, "flows": {"status"},

	"rm": {"remove", "forget", "undo", "unload", "uninstall", "host undo"}, "clear": {"forget", "undo", "unload", "host undo"},
	"delete": {"remove", "forget", "undo", "unload", "uninstall", "host undo"},
	"del":    {"remove", "forget", "undo", "unload", "host undo"}, "remove": {"forget", "undo", "unload", "uninstall", "host undo"},
	"reset": {"forget", "undo", "host undo"}, "revert": {"undo", "host undo"}, "unpair": {"remove", "pair remove"},
	"restore": {"undo", "host undo"}, "flush": {"forget", "undo", "unload", "host undo"}, "undo": {"host undo"},
	"unset": {"undo", "host undo"}, "peers": {"list", "pair list"}, "keys": {"key", "pair key"}, "keygen": {"key", "pair key"},
	"rekey": {"rotate", "pair rotate"}, "trust": {"join", "pair join"}, "accept": {"invite", "pair invite"},
	"add": {"set", "use", "install", "join"}, "apply": {"set", "use", "doctor"}, "change": {"set"},
	"replace": {"set", "upgrade"},
	"load":    {"cc load"}, "unload": {"cc unload"}, "use": {"cc use"}, "install": {"service install"},
	"uninstall": {"service uninstall"}, "setup": {"service install"}, "enable": {"on", "service install"},
	"disable": {"off", "service uninstall"},

	"start": {"up", "install", "relay"}, "run": {"up", "relay"}, "serve": {"relay"}, "daemon": {"relay"},
	"proxy":   {"relay"},
	"forward": {"relay"}, "tunnel": {"relay"}, "restart": {"upgrade"}, "update": {"upgrade"}, "quit": {"stop"},
	"shutdown": {"stop"}, "kill": {"stop"}, "down": {"uninstall", "stop"}, "undrain": {"resume"},
	"pause":  {"drain"},
	"health": {"ready"}, "healthcheck": {"ready"}, "alive": {"ready"}, "ping": {"check"}, "verify": {"check"},

	"log": {"history"}, "logs": {"history"}, "journal": {"history"}, "records": {"history"},
	"diff": {"compare", "history compare"},
	"dump": {"export", "history export"}, "diagnose": {"doctor"}, "analyze": {"doctor"},
	"analyse": {"doctor"}, "why": {"doctor"},
	"fix": {"doctor"}, "tune": {"doctor"}, "speedtest": {"measure"}, "iperf": {"measure"},
	"iperf3": {"measure"},
	"bench":  {"measure"}, "benchmark": {"measure"}, "test": {"measure", "check"}, "speed": {"measure"},
	"watch": {"top"}, "ss": {"top"}, "netstat": {"top"}, "connections": {"top"}, "monitor": {"top"},
	"validate": {"config check", "check"}, "lint": {"config check", "check"},
	"sample":   {"example", "config example"},
	"template": {"example", "config example"}, "clamp": {"mss set"}, "simulate": {"lab up"},
	"emulate": {"lab up"}, "up": {"lab up"},
	"exec": {"lab exec"}, "set": {"lab set"}, "algorithms": {"cc list"}, "congestion": {"cc"},
	"systemd": {"service"},
	"man":     {"help"}, "usage": {"help"},
}

// verbHints say what to do where no command does what a word asks for.
var verbHints = map[string]string{
	"longhaul service stop": "systemctl stop longhaul", "longhaul service start": "systemctl start longhaul",
	"longhaul service restart": "systemctl restart longhaul; longhaul upgrade cuts no flow",
	"longhaul config show":     seeConfig, "longhaul config list": seeConfig,
	"longhaul history rm": noErase, "longhaul history delete": noErase, "longhaul history clear": noErase,

	"longhaul lab stop": endLab, "longhaul lab down": endLab, "longhaul lab kill": endLab, "longhaul lab rm": endLab,
}

const (
	endLab    = "interrupt longhaul lab up: the lab ends with it"
	seeConfig = "longhaul status names the file; longhaul config example prints one to start from"
	noErase   = "history.max_age and history.max_size in the configuration bound the history"
)

// flagSynonyms are names of flags in other tools, and of earlier notes, with the flags
// that replace them. The first one that the command has is meant.
var flagSynonyms = map[string][]string{
	"congestion-control": {"cc", "wan-cc"}, "congctl": {"cc"}, "congestion": {"cc", "wan-cc"},
	"algorithm":  {"cc", "wan-cc"},
	"algorithms": {"cc"}, "toward": {"to"}, "towards": {"to"}, "dest": {"to", "remote", "forward"},
	"destination": {"to", "remote", "forward"}, "dst": {"to", "remote"}, "target": {"to", "remote", "forward"},
	"prefix": {"to"}, "source": {"from", "allow"}, "src": {"from", "local"}, "peer": {"remote"},
	"host": {"remote", "to"},
	"for":  {"time", "wait"}, "duration": {"time"}, "length": {"time"}, "span": {"time"}, "minutes": {"time"},
	"seconds": {"time"}, "within": {"drain-timeout", "timeout", "wait"}, "every": {"interval"},
	"period":   {"interval", "time"},
	"patience": {"timeout"}, "max-time": {"time"}, "deadline": {"timeout", "drain-timeout", "wait"},
	"grace": {"drain-timeout"},
	"all":   {"limit", "yes"}, "force": {"yes"}, "assume-yes": {"yes"}, "no-confirm": {"yes"},
	"dryrun":   {"dry-run"},
	"simulate": {"dry-run"}, "plan": {"dry-run"}, "what-if": {"dry-run"}, "format": {"json"},
	"output": {"json"},
	"ns":     {"netns"}, "namespace": {"netns"},
	"interface": {"dev"},
	"iface":     {"dev"}, "device": {"dev"}, "nic": {"dev"}, "socket": {"control-socket"}, "relay": {"name"},
	"bandwidth": {"rate", "pacing-rate"}, "bitrate": {"rate", "pacing-rate"},
	"per-second": {"new-flows-per-second"},
	"number":     {"limit", "count"}, "lines": {"limit"}, "max": {"limit"}, "count": {"limit", "repeat"},
	"runs":    {"repeat"},
	"repeats": {"repeat"}, "order": {"sort"}, "by": {"sort"}, "slowest": {"sort"}, "longest": {"sort"},
	"largest": {"sort"},
	"newest":  {"sort"}, "retransmitted": {"sort"}, "buffer": {"queue", "window"}, "window": {"host-buffers"},
	"buffers": {"host-buffers", "window"}, "size": {"bytes"}, "mtu-ab": {"mtu"}, "mtu-ba": {"mtu-back"},
	"delay":   {"rtt"},
	"latency": {"rtt"}, "parallel": {"streams"}, "reverse": {"receive"}, "server": {"serve"},
	"experiment": {"case"},
	"cases":      {"case"}, "process": {"pid"}, "capture": {"pcap"}, "conf": {"config"}, "config-file": {"config"},
	"db": {"file"}, "history-file": {"file"}, "from": {"since"}, "to": {"until"}, "after": {"since"},
	"before": {"until"},
	"match":  {"filter"}, "grep": {"filter"}, "start": {"now"}, "metrics": {"http-listen"},
	"http": {"http-listen"},
	"web":  {"dashboard"}, "log": {"log-level"}, "verbose": {"log-level"}, "debug": {"log-level"},
}

// unknownVerb is the error of a word that no subcommand of cmd has for a name.
func unknownVerb(cmd *cobra.Command, word string) error {
	hint := "see " + cmd.CommandPath() + " --help"
	if text := verbHints[cmd.CommandPath()+" "+strings.ToLower(word)]; text != "" {
		hint = text
	} else if meant := meantVerb(cmd, word); meant != "" {
		hint = "did you mean " + meant + "?"
	}
	return usageError(remedy.New(fmt.Errorf("unknown command %q", cmd.CommandPath()+" "+word), hint))
}

// meantVerb returns the path of the command that a word after cmd most likely means.
func meantVerb(cmd *cobra.Command, word string) string {
	root := cmd.Root()
	synonyms := verbSynonyms[strings.ToLower(word)]
	for _, path := range synonyms {
		if path == "." && cmd.HasParent() && hasFlags(cmd) {
			return cmd.CommandPath()
		}
		if found := subcommand(cmd, path); found != nil {
			return found.CommandPath()
		}
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if near := remedy.Nearest(strings.ToLower(word), names); near != "" {
		return cmd.CommandPath() + " " + near
	}
	for _, path := range append([]string{word}, synonyms...) {
		if (path == "stop" || path == "upgrade") && cmd.CommandPath() != "longhaul service" {
			continue // an order to a relay is no guess for a word about something else
		}
		if found := subcommand(root, path); found != nil {
			return found.CommandPath()
		}
	}
	return ""
}

// subcommand returns the command at a path below cmd, or nil.
func subcommand(cmd *cobra.Command, path string) *cobra.Command {
	for name := range strings.FieldsSeq(path) {
		i := slices.IndexFunc(cmd.Commands(), func(sub *cobra.Command) bool {
			return sub.Name() == name && (sub.IsAvailableCommand() || name == "help")
		})
		if i < 0 {
			return nil
		}
		cmd = cmd.Commands()[i]
	}
	return cmd
}

// flagError is the error of flags that pflag refuses.
func flagError(cmd *cobra.Command, err error) error {
	// In "longhaul ps --json" the mistake is the verb.
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return unknownVerb(cmd, words[0])
	}
	hint := "see " + cmd.CommandPath() + " --help"
	// The flag library appends the error of the standard library's parser.
	if text, _, found := strings.Cut(err.Error(), ": strconv."); found {
		return usageError(remedy.New(errors.New(text+": write a whole number"), hint))
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		name := unknown.GetSpecifiedName()
		if meant := meantFlag(cmd, name); meant == "--yes" && name == "all" {
			hint = "without a name it means everything of its kind; --yes does not ask"
		} else if meant != "" {
			hint = "did you mean " + meant + "?"
		}
	}
	return usageError(remedy.New(err, hint))
}

// meantFlag returns the flag of cmd that a name most likely means, as it is written on
// the command line.
func meantFlag(cmd *cobra.Command, name string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			names = append(names, f.Name)
		}
	})
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	if slices.Contains(names, name) {
		return "--" + name
	}
	for _, flag := range flagSynonyms[name] {
		if !slices.Contains(names, flag) {
			continue
		}
		switch {
		case name == "all" && flag == "limit":
			return "--limit 0"
		case flag == "sort" && cmd.Name() == "history":
			return "--sort " + name
		}
		return "--" + flag
	}
	if near := remedy.Nearest(name, names); near != "" {
		return "--" + near
	}
	return ""
}
