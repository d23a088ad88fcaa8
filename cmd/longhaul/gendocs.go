//go:build linux

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"longhaul/docs"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/run/control"
	"longhaul/internal/run/service"
	"longhaul/internal/words/manpage"
	"longhaul/internal/words/manpage/commandpage"
	"longhaul/packaging"
)

// newGenDocs writes the files that packaging/build puts into the packages.
func newGenDocs(env *env) *cobra.Command {
	return &cobra.Command{
		Use:   "gen-docs DIR",
		Short: "Write manual pages, completion and examples below a directory",
		Long: `gen-docs writes the files of an installation's share/: manual pages, completion
for shells, example configurations and the schema.`,
		Example: "  longhaul gen-docs /usr/local/share",
		Hidden:  true,
		Args:    exactArgs(1, "one DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			files, err := sharedFiles(env)
			if err != nil {
				return err
			}
			for path, content := range files {
				path = filepath.Join(args[0], path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(path, content, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// pageDate is the day of the manual pages: of SOURCE_DATE_EPOCH, or else of the commit.
// It is never today's, so that the same build gives the same pages.
func pageDate(getenv func(string) string) string {
	if seconds, err := strconv.ParseInt(getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		return time.Unix(seconds, 0).UTC().Format(time.DateOnly)
	}
	return thisBuild().Date
}

// exitStatus is the section of commands whose description has no exit codes.
const exitStatus = "0 done, or nothing to do; 1 failed; 2 wrong command line or bad configuration."

// relatedVerbs are commands that a reader of a page may need next.
var relatedVerbs = map[string][]string{
	"longhaul relay":   {"service", "config check", "status", "check"},
	"longhaul service": {"relay", "config check", "status"}, "longhaul config": {"relay", "service"},
	"longhaul trace":  {"status", "doctor", "history", "pair"},
	"longhaul events": {"status", "ready", "history"}, "longhaul status": {"events", "history", "top", "check", "relay"}, "longhaul ready": {"status", "check"},
	"longhaul check": {"status", "doctor", "relay"}, "longhaul history": {"status", "doctor"},
	"longhaul drain": {"resume", "upgrade", "status"}, "longhaul resume": {"drain", "status"},
	"longhaul upgrade": {"relay", "drain", "status"}, "longhaul reload": {"config check", "upgrade", "status"},
	"longhaul stop": {"drain", "service", "relay"}, "longhaul pair": {"relay", "config check", "status"}, "longhaul doctor": {"measure", "top", "cc", "route", "mss", "relay"},
	"longhaul measure": {"doctor", "top"}, "longhaul top": {"doctor", "status"}, "longhaul host": {"cc", "route", "mss"}, "longhaul intercept": {"relay", "config check", "host"},
	"longhaul cc": {"route", "host", "doctor"}, "longhaul route": {"cc", "mss", "host", "doctor"},
	"longhaul mss": {"route", "host", "doctor"}, "longhaul demo": {"lab", "relay", "doctor"},
	"longhaul lab": {"demo", "relay", "doctor"}, "longhaul lab calibrate": {"lab up"}, "longhaul completion": {},
	"longhaul version": {"upgrade"},
}

// documents are the pages of docs/ for a verb and the commands below it.
var documents = map[string][]string{
	"relay": {"relay.md", "configuration.md", "availability.md"}, "service": {"install.md"},
	"config": {"configuration.md"}, "status": {"relay.md", "words.md", "metrics.md", "alerts.md"}, "history": {"history.md", "ship.md", "dashboard.md"},
	"check": {"check.md", "words.md"}, "ready": {"availability.md", "redundancy.md"}, "events": {"availability.md"}, "trace": {"pairs.md"}, "drain": {"upgrade.md"}, "resume": {"upgrade.md"},
	"upgrade": {"upgrade.md"}, "reload": {"relay.md"}, "stop": {"relay.md"}, "pair": {"pairs.md", "pair-keys.md", "pair-options.md"}, "intercept": {"interception.md"}, "doctor": {"doctor.md"}, "measure": {"measure.md"},
	"top": {"top.md"}, "cc": {"cc.md"}, "route": {"mss.md"}, "mss": {"mss.md"}, "host": {"host.md", "cc.md", "mss.md"}, "demo": {"lab.md"},
	"lab": {"lab.md"},
}

// docDir has the documents in the packages.
const docDir = "/usr/share/doc/longhaul/"

// filesOf returns the files that a command reads or writes, and its documents.
func filesOf(cmd *cobra.Command) (files []manpage.Option) {
	add := func(name, text string) { files = append(files, manpage.Option{Name: name, Text: text}) }
	has := func(flag string) bool { return cmd.Flags().Lookup(flag) != nil }
	words := strings.Fields(cmd.CommandPath())
	under := func(verb string) bool { return len(words) == 1 || words[1] == verb }
	if has("config") || under("config") || under("service") {
		add(service.ConfigFile, "the configuration of the service: longhaul.yaml(5)")
	}
	if len(words) == 1 || has("control-socket") {
		add("/run/longhaul/"+control.DefaultName+".sock",
			"the control socket of root's relay; a user's is in $XDG_RUNTIME_DIR/longhaul/")
	}
	if under("history") || has("history") {
		add(servicesHistory, "the records of the service")
	}
	if under("pair") {
		add(identity.RootDirectory, "the keys of root's relays and of the service; a user's are in ~/.local/state/longhaul/pair")
	}
	if len(words) == 1 {
		add(docDir, "documents and examples; below /usr/local after longhaul service install")
		return files
	}
	for _, name := range documents[words[1]] {
		add(docDir+name, "below /usr/local after longhaul service install")
	}
	return files
}

// manPages returns the pages of all commands by file name.
func manPages(root *cobra.Command, date string) map[string][]byte {
	return commandpage.All(root, commandpage.Options{
		Date: date, Source: "longhaul " + thisBuild().Release, ExitStatus: exitStatus, Files: filesOf,
		Related: func(cmd *cobra.Command) (pages []string) {
			for _, path := range relatedVerbs[cmd.CommandPath()] {
				if related := subcommand(root, path); related != nil {
					pages = append(pages, commandpage.Name(related)+"(1)")
				}
			}
			if cmd.Flags().Lookup("config") != nil || strings.HasPrefix(cmd.CommandPath(), "longhaul config") {
				pages = append(pages, "longhaul.yaml(5)")
			}
			return pages
		},
	})
}

// completionScripts returns the scripts of all shells by path below share/.
func completionScripts(root *cobra.Command) (map[string][]byte, error) {
	scripts := map[string][]byte{}
	for _, s := range shells {
		var b bytes.Buffer
		if err := s.write(root, &b); err != nil {
			return nil, err
		}
		scripts[s.path] = b.Bytes()
	}
	return scripts, nil
}

// sharedFiles returns the files of share/ by path there.
func sharedFiles(outer *env) (map[string][]byte, error) {
	root := newRoot(outer)
	all, err := packaging.Shared()
	if err != nil {
		return nil, err
	}
	scripts, err := completionScripts(root)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, scripts)
	date := pageDate(outer.getenv)
	for name, page := range manPages(root, date) {
		all["man/man1/"+name] = page
	}
	all["man/man5/longhaul.yaml.5"] = manpage.FromMarkdown(manpage.Title{
		Name: "longhaul.yaml", Section: 5, Date: date, Source: "longhaul " + thisBuild().Release, Summary: "configuration of longhaul relay",
	}, docs.Configuration)
	return all, nil
}
