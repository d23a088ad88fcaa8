//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pending lists commands that do not follow the grammar yet, with what is below them.
// TO BE EMPTY: a command stays here only until its renaming is merged.
var pending = []string{}

// isPending reports whether the grammar does not hold for a command yet.
func isPending(cmd *cobra.Command) bool {
	words := strings.Fields(cmd.CommandPath())
	return len(words) > 1 && slices.Contains(pending, words[1])
}

// flagRow is a flag of docs/design/command-line.md.
type flagRow struct {
	name, placeholders string // several placeholders are separated by spaces; an empty one is a switch

	// optional: without the flag, at least one command selects, changes or reads
	// nothing. Other flags show their default, or the meaning of 0, in the help.
	optional bool
}

const (
	optional = true
	usual    = false
)

// flagTable has every flag that a command may have. docs/design/command-line.md has the
// rules for a new one.
var flagTable = []flagRow{
	// Every fitting command has these.
	{"json", "", usual}, {"dry-run", "", usual}, {"yes", "", usual}, {"help", "", usual}, {"version", "", usual},
	{"netns", "NAME", optional},

	// Things.
	{"cc", "NAME LIST", optional}, {"wan-cc", "NAME", usual}, {"lan-cc", "NAME", usual},
	{"to", "DEST URL", optional}, {"from", "DEST", optional},
	{"local", "HOST[:PORT]", optional}, {"remote", "HOST[:PORT]", optional}, {"forward", "HOST:PORT", optional},
	{"client", "HOST[:PORT] ADDRESS", optional}, {"probe", "ADDRESS", optional}, {"via", "ADDRESS", optional},
	{"listen", "ADDRESS:PORT ADDRESS[:PORT]", optional}, {"http-listen", "ADDRESS:PORT", usual},
	{"dashboard", "ADDRESS:PORT", usual}, {"http", "ADDRESS:PORT", optional},
	{"address", "HOST:PORT", optional}, {"srv", "SERVICE", optional}, {"dns", "ADDRESS", usual}, {"allow", "PREFIX", usual}, {"proxy-in", "PREFIX", optional},
	{"port", "PORT", optional}, {"test-port", "PORT", usual}, {"pid", "PID", optional}, {"dev", "DEVICE", optional},
	{"name", "NAME", optional}, {"control-socket", "FILE", usual}, {"socket", "FILE", usual},
	{"flow", "NAME", optional}, {"unique-id", "TEXT", optional}, {"tunnel", "NAME", optional}, {"site", "NAME", optional}, {"db", "URL", optional}, {"as", "NAME", optional}, {"pair", "NAME", optional}, {"pair-from", "NAME", optional}, {"path", "NAME", usual},
	{"writer", "ROLE", optional}, {"reader", "ROLE", optional},

	// Lengths of time, by role, and points in time.
	{"time", "DURATION", usual}, {"interval", "DURATION", usual}, {"timeout", "DURATION", usual},
	{"wait", "DURATION", optional}, {"confirm", "DURATION", optional}, {"drain-timeout", "DURATION", usual}, {"connect-timeout", "DURATION", usual},
	{"idle-timeout", "DURATION", usual}, {"max-time", "DURATION", usual}, {"omit", "DURATION", optional},
	{"rto-min", "DURATION", usual}, {"rtt", "DURATION LIST", usual}, {"jitter", "DURATION", usual},
	{"reorder-hold", "DURATION", usual}, {"mark-above", "DURATION", usual},
	{"since", "TIME", optional}, {"until", "TIME", optional}, {"at", "TIME", optional},
	{"before", "PERIOD", optional}, {"after", "PERIOD", optional},
	{"keep", "DURATION", usual}, {"keep-sums", "DURATION", usual},

	// Amounts, rates, counts and shares.
	{"bytes", "SIZE LIST", usual}, {"min-bytes", "SIZE", optional}, {"window", "SIZE", optional},
	{"max-window", "SIZE", optional}, {"memory-limit", "SIZE", usual}, {"write", "SIZE", usual},
	{"queue", "SIZE LIST", usual}, {"police-burst", "SIZE", usual}, {"host-buffers", "BDP", usual},
	{"rate", "RATE LIST", usual}, {"pacing-rate", "RATE", usual}, {"wan-rate", "RATE", usual},
	{"wan-pacing-rate", "RATE", usual}, {"police", "RATE", usual}, {"police-scope", "SCOPE", usual},
	{"rate-loss", "RATES", usual}, {"ack-thinning", "N", usual}, {"aggregate", "DURATION", usual},
	{"aggregate-back", "DURATION", usual}, {"aggregate-bytes", "SIZE", usual}, {"packet-rate", "N", usual},
	{"mss", "BYTES", optional}, {"mtu", "BYTES", optional}, {"mtu-back", "BYTES", usual}, {"advmss", "BYTES", optional},
	{"raise", "BYTES", optional}, {"clamp", "BYTES", optional},
	{"initcwnd", "N", optional}, {"initrwnd", "N", optional},
	{"limit", "N", usual}, {"count", "N", usual}, {"streams", "N", usual}, {"max-streams", "N", usual},
	{"repeat", "N", usual}, {"seed", "N", usual},
	{"new-flows-per-second", "N", usual}, {"max-flows", "N", usual}, {"max-flows-per-source", "N", usual},
	{"names", "N", usual}, {"changes", "N", usual},
	{"workers", "N", usual}, {"loss-burst", "N", usual},
	{"loss", "SHARE LIST", usual}, {"loss-back", "SHARE", usual}, {"reorder", "SHARE", usual},

	// Files and directories.
	{"config", "FILE", optional}, {"token-file", "FILE", optional}, {"ca", "FILE", usual}, {"cert", "FILE", optional}, {"key", "FILE", optional}, {"token", "FILE", optional}, {"tokens", "FILE", optional}, {"file", "FILE", usual},
	{"history", "FILE", optional}, {"password-file", "FILE", optional}, {"binary", "FILE", optional}, {"pcap", "FILE", optional}, {"export", "FILE", optional},
	{"record", "FILE", optional}, {"trace", "FILE", optional}, {"trace-back", "FILE", optional}, {"replay", "FILE", optional}, {"new-key", "FILE", optional},
	{"check-key", "FILE", usual}, {"objects", "DIR", usual}, {"prefix", "DIR", usual},
	{"root", "DIR", optional}, {"dir", "DIR", usual}, {"pair-keys", "DIR", usual},

	// One of a few words, and several names.
	{"sort", "ORDER", usual}, {"balance", "WAY", usual}, {"cause", "CAUSE", optional}, {"filter", "WORDS", usual},
	{"ignore", "WHAT", optional}, {"wan-side", "SIDE", usual}, {"proxy-out", "VERSION", usual},
	{"check-next", "KIND", usual}, {"transport", "MODE", usual}, {"log-format", "FORMAT", usual},
	{"log-level", "LEVEL", usual}, {"loss-place", "PLACE", usual}, {"aqm", "AQM", usual}, {"atm", "STATE", usual},
	{"ecn", "STATE", usual}, {"host-ecn", "ECN", usual},
	{"down", "DIRECTION", usual}, {"grant", "LIST", usual}, {"case", "LIST", usual},

	// Switches.
	{"apply", "", usual}, {"print", "", usual}, {"check", "", usual}, {"yaml", "", usual}, {"undo", "", usual}, {"test", "", usual}, {"intercept", "", usual}, {"receive", "", usual}, {"no-probe", "", usual},
	{"both", "", usual}, {"missing", "", usual}, {"in-turn", "", usual}, {"serve", " ADDRESS:PORT", optional}, {"no-delay", "", usual}, {"csv", "", usual},
	{"default", "", usual}, {"lock", "", usual}, {"quickack", "", usual}, {"watch", "", usual},
	{"clamp-to-pmtu", "", usual}, {"clamp-to-route", "", usual}, {"once", "", usual}, {"relay", " NAME", optional},
	{"now", "", usual}, {"all", "", usual}, {"purge", "", usual}, {"keep-config", "", usual}, {"classic", "", usual}, {"quick", "", usual},
}

// forbiddenFlags are names that a thing had, or has elsewhere, with the right one.
var forbiddenFlags = map[string]string{
	"congestion-control": "cc", "congctl": "cc", "algorithm": "cc", "algorithms": "cc", "toward": "to",
	"destination": "to", "for": "time", "duration": "time", "span": "time", "minutes": "time",
	"within": "drain-timeout", "patience": "timeout", "every": "interval", "force": "yes",
	"per-second": "new-flows-per-second", "size": "bytes", "buffer": "queue",
	"mtu-ab": "mtu", "mtu-ba": "mtu-back", "interface": "dev", "namespace": "netns", "order": "sort",
	"slowest": "sort", "longest": "sort", "largest": "sort", "newest": "sort", "retransmitted": "sort",
}

// withoutJSON are commands that print no result, each with its reason.
var withoutJSON = map[string]string{
	"longhaul relay":          "runs in the foreground, and logs",
	"longhaul lab up":         "runs in the foreground",
	"longhaul lab exec":       "prints what the program prints",
	"longhaul lab set":        "prints nothing",
	"longhaul lab trace lte":  "prints a file",
	"longhaul lab trace leo":  "prints a file",
	"longhaul completion":     "prints a script",
	"longhaul config example": "prints a file",
	"longhaul history export": "prints lines of JSON",
	"longhaul help":           "prints help",
	"longhaul gen-docs":       "writes files",
}

// The commands that have a flag because of what they do.
var commandsWith = map[string][]string{
	"dry-run": {"cc load", "cc unload", "cc use", "cc undo", "route set", "route undo", "mss set", "mss undo", "host undo",
		"intercept clear", "doctor", "service install", "service uninstall", "reload"},
	"yes": {"cc unload", "cc undo", "route undo", "mss undo", "host undo", "intercept clear", "doctor"},
	"netns": {"cc list", "cc load", "cc use", "cc undo", "cc paths", "cc paths forget", "mss list", "mss set", "mss undo", "route list", "route set",
		"route undo", "host check", "host list", "host undo", "intercept plan", "intercept check", "intercept show", "intercept clear",
		"top", "doctor", "measure"},
}

// exitStatuses are commands with statuses beside 0, 1 for a failure and 2, or with a
// meaning of their own for 1.
var exitStatuses = []string{
	"relay", "reload", "stop", "check", "ready", "service status", "config check", "lab exec",
	"history check", "host check", "doctor", "pair apply", "fleet status",
}

// grammarRun runs a command line in this process.
func grammarRun(words ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(&env{
		ctx: context.Background(), args: words, stdin: strings.NewReader(""), stdout: &out, stderr: &errs,
		getenv: func(string) string { return "" },
	})
	return code, out.String(), errs.String()
}

// eachCommand calls check for the root and every command below it.
func eachCommand(t *testing.T, check func(cmd *cobra.Command)) {
	t.Helper()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		check(cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(testRoot(t))
}

// TestGrammarFlags holds that one thing has one name and one placeholder in all commands.
func TestGrammarFlags(t *testing.T) {
	rows := map[string]flagRow{}
	for _, row := range flagTable {
		if _, twice := rows[row.name]; twice || forbiddenFlags[row.name] != "" {
			t.Errorf("--%s stands twice in the table, or is forbidden", row.name)
		}
		rows[row.name] = row
	}
	used := map[string]bool{}
	eachCommand(t, func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			used[f.Name] = true
			if isPending(cmd) {
				return
			}
			at := cmd.CommandPath() + " --" + f.Name
			if right := forbiddenFlags[f.Name]; right != "" {
				t.Errorf("%s: name it --%s", at, right)
				return
			}
			row, known := rows[f.Name]
			if !known {
				t.Errorf("%s is not in the table of flags: use the name of the thing, or add a row", at)
				return
			}
			placeholder, usage := pflag.UnquoteUsage(f)
			if !slices.Contains(strings.Split(row.placeholders, " "), placeholder) {
				t.Errorf("%s has the placeholder %q, want one of %q", at, placeholder, row.placeholders)
			}
			zero := slices.Contains([]string{"", "0", "0s", "[]", "false"}, f.DefValue)
			shown := !zero || strings.Contains(usage, "(") || cmd.CommandPath() == "longhaul lab set"
			if placeholder != "" && !row.optional && !shown {
				t.Errorf("%s shows no default: %q", at, usage)
			}
		})
	})
	if len(pending) > 0 {
		return
	}
	for name := range rows {
		if !used[name] && name != "help" {
			t.Errorf("the table has --%s, and no command has it", name)
		}
	}
}

// TestGrammarCommonFlags holds that commands have the flags that they share by what they
// do: --json, --dry-run, --yes, --netns.
func TestGrammarCommonFlags(t *testing.T) {
	paths := map[string]*cobra.Command{}
	eachCommand(t, func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		paths[strings.TrimPrefix(path, "longhaul ")] = cmd
		if isPending(cmd) || isGroup(cmd) {
			return
		}
		has := cmd.Flags().Lookup("json") != nil
		if reason := withoutJSON[path]; has == (reason != "") {
			t.Errorf("%s: --json is there: %v; reason against it: %q", path, has, reason)
		}
	})
	for name, commands := range commandsWith {
		for _, path := range commands {
			cmd := paths[path]
			switch {
			case cmd == nil && !slices.Contains(pending, strings.Fields(path)[0]):
				t.Errorf("there is no longhaul %s", path)
			case cmd != nil && !isPending(cmd) && cmd.Flags().Lookup(name) == nil:
				t.Errorf("longhaul %s has no --%s", path, name)
			}
		}
	}
}

// isGroup reports whether a command only groups others.
func isGroup(cmd *cobra.Command) bool {
	return cmd.HasSubCommands() && !hasFlags(cmd) || !cmd.HasParent()
}

// pflagTypes are the placeholders that the flag library makes up.
var pflagTypes = regexp.MustCompile(
	`(?m)^ +(-\w, )?--[a-z-]+ (string|ints?|uint\d*|float|duration|value|VALUE|stringArray|strings)\b`)

// TestGrammarHelp holds what the help of every command has.
func TestGrammarHelp(t *testing.T) {
	eachCommand(t, func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Hidden || isPending(cmd) {
			return
		}
		if cmd.Short == "" || len(cmd.Long) <= len(cmd.Short) || !strings.Contains(cmd.Example, "longhaul") {
			t.Errorf("%s lacks a summary, a longer description, or an example", path)
		}
		code, help, _ := grammarRun(append(strings.Fields(path)[1:], "--help")...)
		if code != exitOK || !strings.Contains(help, "Examples:") {
			t.Errorf("%s --help ends with %d", path, code)
		}
		if found := pflagTypes.FindString(help); found != "" {
			t.Errorf("%s --help prints a type of the flag library: %s", path, found)
		}
		for line, next := range broken(cmd.Long) {
			t.Errorf("%s: the line %q of the description breaks early, before %q", path, line, next)
		}
		other := slices.Contains(exitStatuses, strings.TrimPrefix(path, "longhaul "))
		if said := strings.Contains(cmd.Long, "Exit codes: "); other != said && cmd.HasParent() {
			t.Errorf("%s: exit codes of its own: %v; its description must say so, and no other's", path, other)
		}
		for line := range strings.Lines(help) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > helpWidth {
				t.Errorf("%s --help has a line of %d columns: %s", path, n, line)
			}
		}
	})
}

// broken are the lines of paragraphs that the next line's first word would have fit by far.
func broken(text string) map[string]string {
	all := map[string]string{}
	lines := strings.Split(text, "\n")
	for i, line := range lines[:len(lines)-1] {
		next := lines[i+1]
		word, _, _ := strings.Cut(next, " ")
		if line != "" && next != "" && line[0] != ' ' && next[0] != ' ' && len(line)+1+len(word) < helpWidth-20 {
			all[line] = next
		}
	}
	return all
}

// TestGrammarExamples holds that the examples of the help are command lines that the
// program takes.
func TestGrammarExamples(t *testing.T) {
	taken := 0
	eachCommand(t, func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			for _, command := range commandLines("    "+line, false) {
				words := strings.Fields(command)[1:]
				if isPending(cmd) || slices.Contains(pending, words[0]) {
					continue
				}
				taken++
				if err := takes(testRoot(t), words); err != nil {
					t.Errorf("%s: example %s: %v", cmd.CommandPath(), command, err)
				}
			}
		}
	})
	if taken < 40 {
		t.Errorf("only %d examples found", taken)
	}
}

// mistake is the output of a wrong command line: one sentence, and what to do.
var mistake = regexp.MustCompile(`\Alonghaul: [^\n]*[^.\n]\nlonghaul: hint: [^\n]+\n\z`)

// TestGrammarExitStatuses holds that wrong command lines end with status 2, one sentence
// and a hint.
func TestGrammarExitStatuses(t *testing.T) {
	surplus := strings.Fields("a b c d e f g")
	// Commands that take any number of arguments.
	takesMany := []string{"longhaul lab exec", "longhaul cc load", "longhaul cc unload", "longhaul cc undo"}
	eachCommand(t, func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if isPending(cmd) {
			return
		}
		words := strings.Fields(path)[1:]
		for name, more := range map[string][]string{
			"unknown flag": {"--no-such-flag"}, "unknown letter": {"-Z"}, "surplus argument": surplus,
			"flag after a surplus argument": {"surplus", "--no-such-flag"},
		} {
			if strings.Contains(name, "argument") && slices.Contains(takesMany, path) {
				continue
			}
			code, out, errs := grammarRun(append(slices.Clone(words), more...)...)
			if code != exitUsage || out != "" || !mistake.MatchString(errs) {
				t.Errorf("%s, %s: status %d, output %q, error %q", path, name, code, out, errs)
			}
		}
	})
}

// TestGrammarSuggestions holds that every suggestion names something that is there.
func TestGrammarSuggestions(t *testing.T) {
	root := testRoot(t)
	groups := []*cobra.Command{root}
	flags := map[string]bool{}
	eachCommand(t, func(cmd *cobra.Command) {
		if cmd.HasSubCommands() && cmd.HasParent() {
			groups = append(groups, cmd)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
	})
	for word, paths := range verbSynonyms {
		for _, path := range paths {
			there := path == "." || slices.ContainsFunc(groups, func(g *cobra.Command) bool { return subcommand(g, path) != nil })
			// "undo" is a verb of pending commands only.
			waits := len(pending) > 0 && (path == "undo" || slices.Contains(pending, strings.Fields(path)[0]))
			if !there && !waits {
				t.Errorf("%s suggests %s, which no command has", word, path)
			}
		}
		helps := func(g *cobra.Command) bool { return subcommand(g, word) != nil || meantVerb(g, word) != "" }
		if !slices.ContainsFunc(groups, helps) && len(pending) == 0 {
			t.Errorf("%s suggests nothing to any command", word)
		}
	}
	for word, names := range flagSynonyms {
		for _, name := range names {
			if !flags[name] && len(pending) == 0 {
				t.Errorf("--%s suggests --%s, which no command has", word, name)
			}
		}
	}
	for name, right := range forbiddenFlags {
		cmd := &cobra.Command{Use: "x"}
		cmd.Flags().String(right, "", "")
		if meant := meantFlag(cmd, name); !strings.HasPrefix(meant, "--"+right) {
			t.Errorf("--%s suggests %q, want --%s", name, meant, right)
		}
	}
}

// TestMeantVerb holds what words of other tools are taken for.
func TestMeantVerb(t *testing.T) {
	root := testRoot(t)
	for line, want := range map[string]string{
		"ps": "status", "ls": "status", "show": "status", "statsu": "status", "logs": "history", "restart": "upgrade",
		"start": "relay", "run": "relay", "diagnose": "doctor", "iperf3": "measure", "speedtest": "measure",
		"validate": "config check", "install": "service install", "use": "cc use", "frobnicate": "",
		"cc show": "cc list", "cc paths clear": "cc paths forget", "cc paths disable": "cc paths off",
		"cc paths ls": "cc paths", "cc paths list": "cc paths", "lab ls": "lab list", "lab show": "lab status", "lab start": "lab up",
		"history list": "history", "history get": "history show", "history diff": "history compare",
		"history verify": "history check", "service start": "service install", "service rm": "service uninstall",
		"service restart": "upgrade", "config validate": "config check", "config sample": "config example",
		"cc restart": "", "lab diagnose": "doctor", "pair rm": "pair remove", "pair ls": "pair list", "pair show": "pair list",
		"pair keygen": "pair key", "pair add": "pair join", "unpair": "pair remove", "peers": "pair list",
	} {
		words := strings.Fields(line)
		cmd := subcommand(root, strings.Join(words[:len(words)-1], " "))
		if got := strings.TrimPrefix(meantVerb(cmd, words[len(words)-1]), "longhaul "); got != want {
			t.Errorf("longhaul %s is taken for %q, want %q", line, got, want)
		}
	}
	_, _, errs := grammarRun("lab", "down")
	if !strings.Contains(errs, "hint: "+endLab) {
		t.Errorf("longhaul lab down: %s", errs)
	}
}

// TestGrammarGroups holds that the root's help lists each command in one group.
func TestGrammarGroups(t *testing.T) {
	grouped := map[string]int{}
	for _, group := range verbGroups {
		for _, verb := range group.verbs {
			grouped[verb]++
		}
	}
	root := testRoot(t)
	for _, cmd := range root.Commands() {
		if name := cmd.Name(); !cmd.Hidden && grouped[name] != 1 {
			t.Errorf("%s stands in %d groups", name, grouped[name])
		}
		delete(grouped, cmd.Name())
	}
	for _, name := range slices.Sorted(maps.Keys(grouped)) {
		if !slices.Contains(pending, name) {
			t.Errorf("a group has %s, which is no command", name)
		}
	}
}

// takes returns why the program refuses a command line, or nil.
func takes(root *cobra.Command, words []string) error {
	cmd, rest, err := root.Find(words)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if errors.Is(err, fs.ErrNotExist) { // an example may name a file of the reader's
		return nil
	}
	if err == nil && cmd.Args != nil {
		err = cmd.Args(cmd, cmd.Flags().Args())
	}
	if err == nil && (!cmd.Runnable() || isGroup(cmd) && len(rest) > 0 && cmd.HasParent()) {
		err = fmt.Errorf("it wants a command")
	}
	return err
}
