// Command livepaths has longhaul doctor and top judge connections of real programs on
// paths whose limit is known by construction, and prints what they say beside the truth.
//
//	go run ./bench/livepaths
//	go run ./bench/livepaths --only reader-stopped,nagle --runs 3
//	go run ./bench/livepaths --json --keep records > paths.json
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/lab"
	"longhaul/lab/sandbox"
	"longhaul/test/pgserver"
)

func main() { kit.Command("livepaths", run) }

// bench is what to look at.
type bench struct {
	kit.Longhaul
	only  string
	runs  int
	keep  string
	json  bool
	list  bool
	paths []path
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("livepaths", flag.ContinueOnError)
	b := bench{Longhaul: kit.Longhaul{Flags: flags}}
	flags.StringVar(&b.only, "only", "", "names of paths, or numbers, separated by commas (default: all)")
	flags.IntVar(&b.runs, "runs", 1, "of each path")
	flags.StringVar(&b.keep, "keep", "", "directory for doctor's observations, created if missing (default: keep none)")
	flags.BoolVar(&b.json, "json", false, "print the outcomes as JSON")
	flags.BoolVar(&b.list, "list", false, "list the paths, and look at none")
	b.Check = func() (err error) {
		if b.runs < 1 || b.runs > 100 {
			return errors.New("--runs takes 1 to 100")
		}
		if b.paths, err = choose(paths(), b.only); err == nil && b.list {
			for i, p := range b.paths {
				fmt.Fprintf(stdout, "%2d %-22s %-34s %s\n", i+1, p.name, p.truthText(), p.what)
			}
			return flag.ErrHelp // there is nothing else to do
		}
		return err
	}
	if !sandbox.Inside() {
		removeCgroups() // those of a run that was killed
		defer removeCgroups()
	}
	return b.Run(ctx, args, stdout, stderr, func() error { return b.run(ctx, stdout, stderr) })
}

// choose returns the named or numbered paths; all if text is empty.
func choose(all []path, text string) ([]path, error) {
	if text == "" {
		return all, nil
	}
	var chosen []path
	for word := range strings.SplitSeq(text, ",") {
		k := slices.IndexFunc(all, func(p path) bool { return p.name == word })
		if k < 0 {
			if n, err := fmt.Sscanf(word, "%d", &k); err != nil || n != 1 || k < 1 || k > len(all) || fmt.Sprint(k) != word {
				return nil, fmt.Errorf("--only: no path %q; --list lists them", word)
			}
			k--
		}
		chosen = append(chosen, all[k])
	}
	return chosen, nil
}

func (b *bench) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := sandbox.PrivateRun(); err != nil {
		return err
	}
	if b.keep != "" {
		if err := os.MkdirAll(b.keep, 0o755); err != nil {
			return err
		}
	}
	if missing := b.missing(); len(missing) > 0 {
		return fmt.Errorf("missing programs:\n  %s", strings.Join(missing, "\n  "))
	}
	var all []outcome
	for round := range b.runs {
		for _, p := range b.paths {
			o := outcome{Path: p.name, What: p.what, Truth: p.truth, Round: round + 1}
			if err := b.look(ctx, p, &o); err != nil {
				if ctx.Err() != nil {
					return errors.New("interrupted")
				}
				o.Error = err.Error()
			}
			o.judge(p)
			all = append(all, o)
			fmt.Fprintln(stderr, o.line())
		}
	}
	if b.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	writeTable(stdout, all)
	fmt.Fprintf(stdout, "Linux %s\n", peers.KernelVersion())
	return nil
}

// missing names the programs that the paths need and that are not there.
func (b *bench) missing() []string {
	var missing []string
	for _, p := range b.paths {
		for _, name := range p.needs {
			text := lab.MissingProgram(name, packages[name])
			if name == "initdb" && pgserver.Programs() != "" {
				text = ""
			}
			if text != "" && !slices.Contains(missing, text) {
				missing = append(missing, text)
			}
		}
	}
	return missing
}

// packages are the Debian packages of the programs.
var packages = map[string]string{
	"nginx": "nginx-light", "curl": "curl", "rsync": "rsync", "sshd": "openssh-server", "scp": "openssh-client", "ssh": "openssh-client",
	"initdb": "postgresql", "psql": "postgresql-client", "nc": "netcat-openbsd", "iperf3": "iperf3", "python3": "python3", "setpriv": "util-linux",
}

// record is the file of an observation; empty: none is kept.
func (b *bench) record(p path, round int, mode string) string {
	if b.keep == "" {
		return ""
	}
	return filepath.Join(b.keep, fmt.Sprintf("%s-%d-%s.json", p.name, round, mode))
}
