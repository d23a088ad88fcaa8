// Command dossier evaluates a congestion control by the criteria of RFC 9743, sections 5
// to 7. Families of cells say which flows run over which path, and what bounds their
// figures. Runs are stored, and a document is made from what is stored.
//
//	families ──▶ plan ──▶ measure ──▶ store ──▶ judge ──▶ document
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"longhaul/bench/kit/congestion"
	"longhaul/internal/words/flagvalue"
	"longhaul/lab/experiment"
	"longhaul/lab/tcpcc"
)

// Experiment evaluates a congestion control.
func Experiment() experiment.Experiment {
	return experiment.Experiment{
		Name:    "dossier",
		Summary: "one congestion control held against every criterion of RFC 9743",
		Source:  "RFC 9743, Specifying New Congestion Control Algorithms, sections 5 to 7",
		Cases:   slices.Clone(familyNames),
		Short:   "Evaluate a congestion control by RFC 9743",
		Long: `dossier runs an algorithm alone, beside others and beside real-time and short
flows, on paths of many kinds. It writes a document with every item of RFC 9743,
sections 5 to 7: the command, the figure, its bound, pass or fail.

Each run is kept in a directory. The same command continues an interrupted one,
and makes only runs that are missing. The whole takes many hours: --item and
--case choose parts. --render writes the document from what is there.`,
		Example: `  go run ./bench/dossier --quick
  go run ./bench/dossier --case harm-cubic,pantheon --parallel 4
  go run ./bench/dossier --item 5.2.1,7.1 --repeat 1
  go run ./bench/dossier --list --item 7.8
  go run ./bench/dossier --render --doc dossier.md`,
		New: func() experiment.Run {
			return &command{algorithm: "haul", rivals: usualRivals(), repeat: 5, parallel: 1, dir: "congestion-dossier", doc: "docs/records/congestion-dossier.md"}
		},
	}
}

// familyNames are the names of the families, in their order. Every command of longhaul
// lists the experiments, and should not make all cells for that.
var familyNames = []string{
	"collapse", "bufferbloat", "overload", "fairness", "short", "harm-reno", "bottlenecks", "real-time",
	"harm-cubic", "beside-bbr", "beside-bbr3", "harm-cubic-codel", "beside-bbr-codel", "beside-bbr3-codel",
	"harm-cubic-fq-codel", "beside-bbr-fq-codel", "beside-bbr3-fq-codel", "harm-cubic-pie", "beside-bbr-pie", "beside-bbr3-pie",
	"ecn", "misbehaving", "wired", "wireless", "traces", "pantheon", "satellite", "warm-start", "policers", "varying-delay",
	"slow", "cpu", "high-delay", "reordering", "transients", "traps",
}

// command is a run as flags describe it.
type command struct {
	algorithm    string
	rivals       []string
	items, cases []string
	repeat       int
	parallel     int
	quick        bool
	list, render bool
	dir, doc     string

	chosen []family // by Check
}

func (c *command) Flags(flags *pflag.FlagSet) {
	flagvalue.Add(flags, "NAME", "cc", "congestion control to evaluate", c.algorithm, func(s string) error {
		if s == "" || strings.Contains(s, ",") {
			return fmt.Errorf("invalid name %q: a dossier is of one algorithm", s)
		}
		c.algorithm = s
		return nil
	})
	flagvalue.AddNames(flags, &c.rivals, "against", "algorithms beside it; the kernel's are used")
	flagvalue.AddNames(flags, &c.items, "item", "only these sections of RFC 9743, like 5.2.1,7 (all)")
	flagvalue.AddNames(flags, &c.cases, "case", "only these families, or cells like harm-cubic/fifo-q1-1v1 (all)")
	flagvalue.AddCount(flags, &c.repeat, "repeat", "runs of each trial; figures are medians")
	flagvalue.AddCount(flags, &c.parallel, "parallel", "runs at once, of paths up to 30 Mb/s; faster ones run alone")
	flags.BoolVar(&c.quick, "quick", false, "one run of a few cells: a first look, within 10 minutes")
	flags.StringVar(&c.dir, "out", c.dir, "keep each run in `DIR`, and continue from there")
	flags.StringVar(&c.doc, "doc", c.doc, "write the document to `FILE`")
	flags.BoolVar(&c.list, "list", false, "print the cells, and run nothing")
	flags.BoolVar(&c.render, "render", false, "write the document from the kept runs, and run nothing")
}

// quickParallel is the number of runs at once of --quick.
const quickParallel = 4

func (c *command) Check(flags *pflag.FlagSet) error {
	if c.quick && !flags.Changed("repeat") {
		c.repeat = 1
	}
	if c.quick && !flags.Changed("parallel") {
		c.parallel = quickParallel
	}
	switch {
	case c.repeat < 1:
		return fmt.Errorf("--repeat %d: choose 1 or more", c.repeat)
	case c.parallel < 1:
		return fmt.Errorf("--parallel %d: choose 1 or more", c.parallel)
	case c.list && c.render:
		return errors.New("--list and --render are different: choose one")
	}
	for _, file := range []string{c.dir, c.doc} {
		if err := experiment.CheckFile(file); err != nil {
			return err
		}
	}
	var err error
	c.chosen, err = c.choose(subject{name: c.algorithm, rivals: c.rivals})
	return err
}

// Algorithms returns those of the chosen cells. Rivals that cannot be loaded are left out.
func (c *command) Algorithms() experiment.Algorithms {
	if c.list || c.render {
		return experiment.Algorithms{}
	}
	return experiment.Algorithms{Names: algorithmsOf(c.chosen)}
}

// algorithmsOf returns the algorithms of families' trials, each once.
func algorithmsOf(families []family) []string {
	names := map[string]bool{}
	for _, f := range families {
		for _, c := range f.cells {
			for _, t := range c.trials {
				for _, g := range t.Groups {
					names[g.Algorithm] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// choose returns the families with the chosen cells.
func (c *command) choose(s subject) ([]family, error) {
	for _, section := range c.items {
		if !slices.ContainsFunc(items, func(it item) bool { return within(it.Section, section) }) {
			return nil, fmt.Errorf("unknown item %q: choose sections from 5 to 7 of RFC 9743, like 5.2.1", section)
		}
	}
	all := s.families()
	used := map[string]bool{}
	var chosen []family
	for _, f := range all {
		if len(c.items) > 0 && !slices.ContainsFunc(f.items, func(section string) bool {
			return slices.ContainsFunc(c.items, func(wanted string) bool { return within(section, wanted) })
		}) {
			continue
		}
		f.cells = slices.DeleteFunc(f.cells, func(cell cell) bool { return !c.wants(f.name, cell, used) })
		if len(f.cells) > 0 {
			chosen = append(chosen, f)
		}
	}
	for _, name := range c.cases {
		if !used[name] {
			return nil, fmt.Errorf("no cell %q: go run ./bench/dossier --list prints them", name)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("no cell is in all of these: go run ./bench/dossier --list prints them")
	}
	return chosen, nil
}

// within reports whether a section is another or below it.
func within(section, of string) bool { return section == of || strings.HasPrefix(section, of+".") }

// wants reports whether a cell is chosen by name and --quick.
func (c *command) wants(family string, of cell, used map[string]bool) bool {
	named := len(c.cases) == 0
	for _, name := range c.cases {
		if name == family || name == family+"/"+of.name {
			used[name], named = true, true
		}
	}
	return named && (of.quick || !c.quick)
}

func (c *command) Run(ctx context.Context, env experiment.Environment) (experiment.Result, error) {
	s := subject{name: c.algorithm, rivals: c.rivals}
	var missing lacks
	var err error
	if !c.list && !c.render {
		if missing, err = s.lacks(algorithmsOf(c.chosen)); err != nil {
			return nil, err
		}
	}
	families := c.chosen
	kept := store{c.dir, maxLateMs}
	if c.list {
		return newListing(families, kept, c.repeat)
	}
	if err := checkDir(c.doc); err != nil {
		return nil, err
	}
	if !c.render {
		tasks, err := plan(families, kept, c.repeat, missing)
		if err != nil {
			return nil, err
		}
		if err := measure(ctx, tasks, kept, options{parallel: c.parallel, report: env.Report}); err != nil {
			return nil, err
		}
	}
	// The document has all that is known, not only what was chosen now.
	everything := s.families()
	result := Result{Experiment: "dossier", Algorithm: s.name, Rivals: s.rivals, Document: c.doc}
	for _, name := range s.rivals {
		if why := missing[name]; why != "" {
			result.Lacks = append(result.Lacks, name+" "+why)
		}
	}
	if result.Families, result.Runs, err = judgeAll(everything, kept, c.repeat, missing); err != nil {
		return nil, err
	}
	if result.Notes, err = kept.notes(); err != nil {
		return nil, err
	}
	if err := congestion.WriteFile(c.doc, result.document()); err != nil {
		return result, fmt.Errorf("write the document: %w", err)
	}
	return result, nil
}

// lacks returns the algorithms that the kernel lacks. It must have the subject and the
// standard.
func (s subject) lacks(names []string) (lacks, error) {
	if _, err := tcpcc.Choose(slices.Compact([]string{s.name, standard})); err != nil {
		return nil, err
	}
	missing := lacks{}
	for _, name := range names {
		if _, err := tcpcc.Choose([]string{name}); err != nil {
			missing[name] = "is not a congestion control of this kernel"
		}
	}
	return missing, nil
}

// listing is the result of --list.
type listing struct {
	Cells   []listed `json:"cells"`
	Seconds float64  `json:"seconds"` // of the missing runs, one after the other
}

type listed struct {
	Cell    string   `json:"cell"`
	About   string   `json:"about"`
	Items   []string `json:"items"`
	Missing int      `json:"missing_runs"`
}

func newListing(families []family, s store, repeat int) (listing, error) {
	var l listing
	all, err := plan(families, s, repeat, nil)
	if err != nil {
		return l, err
	}
	var missing []task
	isMissing := map[string]bool{}
	for _, t := range all {
		known, err := s.load(t.file)
		if err != nil {
			return l, err
		}
		if isMissing[t.file] = known == nil || known.isDisturbed(s.maxLateMs); isMissing[t.file] {
			missing = append(missing, t)
		}
	}
	l.Seconds = remaining(missing, 1).Seconds()
	for _, f := range families {
		for _, c := range f.cells {
			one, err := plan([]family{{name: f.name, cells: []cell{c}}}, s, repeat, nil)
			if err != nil {
				return l, err
			}
			entry := listed{Cell: f.name + "/" + c.name, About: c.about, Items: f.items}
			for _, t := range one {
				if isMissing[t.file] {
					entry.Missing++
				}
			}
			l.Cells = append(l.Cells, entry)
		}
	}
	return l, nil
}

// WriteText writes a line for every cell.
func (l listing) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "cell\tmissing runs\tRFC 9743\n")
	for _, c := range l.Cells {
		fmt.Fprintf(table, "%s\t%d\t%s\n", c.Cell, c.Missing, joined(c.Items))
	}
	return table.Flush()
}
