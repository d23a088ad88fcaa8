package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"longhaul/internal/words/display"
)

// document returns the result as Markdown.
func (r Result) document() []byte {
	var b bytes.Buffer
	r.head(&b)
	r.summary(&b)
	for _, it := range items {
		r.section(&b, it)
	}
	return b.Bytes()
}

func (r Result) head(b *bytes.Buffer) {
	fmt.Fprintf(b, "# Congestion dossier of %s\n\n", r.Algorithm)
	paragraph(b, "`go run ./bench/dossier` writes this page from stored results. It holds "+r.Algorithm+
		" against the criteria of RFC 9743, sections 5 to 7, beside "+joined(r.Rivals)+".")
	n := count(r.Families, func(FamilyResult) bool { return true })
	paragraph(b, fmt.Sprintf("Of %d cells %d pass, %d fail and %d were not run.", n[Pass]+n[Fail]+n[NotRun], n[Pass], n[Fail], n[NotRun]))
	if n := excluded(r.Families); n > 0 {
		paragraph(b, fmt.Sprintf("In %d of the cells that fail no flow at all could hold all bounds (†): the least share that it shall get costs the others "+
			"more than it may, even if the path is full. There a flow of the standard's own kind gets much less than that share.", n))
	}
	for _, lack := range r.Lacks {
		paragraph(b, "Not run: "+lack+".")
	}
	if r.Runs.Count > 0 {
		text := fmt.Sprintf("%d runs on Linux %s, from %s to %s, up to %d at once. Of all CPUs' time %.0f %% was busy in the median run, and %.0f %% in the busiest. "+
			"The lab's threads ran late by %.0f ms (p99) in the median run, by %.0f ms in the worst: delays of that size are the machine's.",
			r.Runs.Count, joined(versions(r.Runs.Kernels)), r.Runs.From.Format("2006-01-02 15:04"), r.Runs.To.Format("2006-01-02 15:04 MST"),
			r.Runs.Parallel, 100*r.Runs.BusyP50, 100*r.Runs.BusyMax, r.Runs.LateP50, r.Runs.LateMax)
		if r.Runs.Disturbed > 0 {
			text += fmt.Sprintf(" Runs that do not count, as threads were late by more than %d ms or the machine lost packets: %d.", maxLateMs, r.Runs.Disturbed)
		}
		paragraph(b, text)
	}
	if r.Notes != "" {
		b.WriteString(r.Notes + "\n\n")
	}
	paragraph(b, "A figure is the median of its runs, or is computed from medians. The range behind it is the 95 % interval by percentile "+
		"bootstrap over the runs of every trial (1000 draws), given from 3 runs on; with 5 runs that of a single median is the "+
		"range of the runs, which covers the true median with 94 %. ≤ and ≥ precede a bound; **bold** is a figure outside of it. "+
		"A figure without a bound stands there to compare. The verdict is by the figures; ~ marks one that the interval does not settle.")
}

// versions returns releases of kernels without what their builders append, each once.
func versions(releases []string) []string {
	var all []string
	for _, release := range releases {
		version, _, _ := strings.Cut(strings.ReplaceAll(release, "+", "-"), "-")
		if !slices.Contains(all, version) {
			all = append(all, version)
		}
	}
	return all
}

// summary lists the items.
func (r Result) summary(b *bytes.Buffer) {
	b.WriteString("## Items\n\n| RFC 9743 | item | pass | fail | not run | cells |\n|---|---|---|---|---|---|\n")
	for _, it := range items {
		var names []string
		in := func(f FamilyResult) bool { return slices.Contains(f.Items, it.Section) }
		for _, f := range r.Families {
			if in(f) {
				names = append(names, fmt.Sprintf("[%s](#%s)", f.Name, anchor(f.heading())))
			}
		}
		if len(names) == 0 && it.Reason != "" {
			names = append(names, "none, for a reason")
		}
		n := count(r.Families, in)
		fmt.Fprintf(b, "| [%s](#%s) | %s | %s | %s | %s | %s |\n", it.Section, anchor(it.heading()), it.Title,
			number(n[Pass]), number(n[Fail]), number(n[NotRun]), strings.Join(names, ", "))
	}
	b.WriteString("\n")
}

// number writes nothing for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func (it item) heading() string { return it.Section + " " + it.Title }

func (f FamilyResult) heading() string { return f.Title }

// anchor returns the fragment of a heading, as GitHub makes it.
func anchor(heading string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(heading) {
		switch {
		case c == ' ':
			b.WriteByte('-')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-':
			b.WriteRune(c)
		}
	}
	return b.String()
}

// section writes an item with the families that stand there.
func (r Result) section(b *bytes.Buffer, it item) {
	fmt.Fprintf(b, "## %s\n\n", it.heading())
	if it.Reason != "" {
		paragraph(b, it.Reason)
	}
	var elsewhere []string
	for _, f := range r.Families {
		switch {
		case f.Items[0] == it.Section:
			r.family(b, f)
		case slices.Contains(f.Items, it.Section):
			elsewhere = append(elsewhere, fmt.Sprintf("[%s](#%s)", f.Title, anchor(f.heading())))
		}
	}
	if len(elsewhere) > 0 {
		paragraph(b, "Also: "+strings.Join(elsewhere, ", ")+".")
	}
}

// family writes the table of a family.
func (r Result) family(b *bytes.Buffer, f FamilyResult) {
	fmt.Fprintf(b, "### %s\n\n", f.heading())
	paragraph(b, f.about)
	fmt.Fprintf(b, "    go run ./bench/dossier --case %s\n\n", f.Name)
	titles := f.titles()
	fmt.Fprintf(b, "| cell | path | %s | runs | verdict |\n|---|---|%s---|---|\n", strings.Join(titles, " | "), strings.Repeat("---|", len(titles)))
	missing := map[string][]string{}
	var reasons []string
	for _, c := range f.Cells {
		if c.Verdict == NotRun {
			if missing[c.Reason] == nil {
				reasons = append(reasons, c.Reason)
			}
			missing[c.Reason] = append(missing[c.Reason], c.Name)
			continue
		}
		fmt.Fprintf(b, "| %s | %s |", c.Name, c.About)
		for _, title := range titles {
			text := ""
			for _, cl := range c.Claims {
				if cl.Title == title {
					text = cl.text()
				}
			}
			fmt.Fprintf(b, " %s |", text)
		}
		verdict := c.mark()
		if c.Verdict == Fail {
			verdict = "**" + verdict + "**"
		}
		if c.Reason != "" {
			verdict += ": " + strings.ReplaceAll(c.Reason, "|", "\\|")
		}
		fmt.Fprintf(b, " %d | %s |\n", c.Runs, verdict)
	}
	b.WriteString("\n")
	for _, reason := range reasons {
		paragraph(b, fmt.Sprintf("Not run, %s: %s.", reason, joined(missing[reason])))
	}
}

// titles are the heads of the claims' columns.
func (f FamilyResult) titles() []string {
	var titles []string
	for _, c := range f.Cells {
		for _, cl := range c.Claims {
			if !slices.Contains(titles, cl.Title) {
				titles = append(titles, cl.Title)
			}
		}
	}
	return titles
}

// text writes the parts of a claim.
func (c ClaimResult) text() string {
	var parts []string
	for _, p := range c.Parts {
		parts = append(parts, p.text())
	}
	return strings.Join(parts, "; ")
}

func (p PartResult) text() string {
	write := p.unit.write
	text := write(float64(p.Value))
	if !p.OK {
		text = "**" + text + "**"
	}
	if p.Label != "" {
		text = p.Label + " " + text
	}
	if p.Low.Some() && p.High.Some() {
		lo, hi := write(float64(p.Low)), write(float64(p.High))
		text += fmt.Sprintf(" (%s to %s)", strings.TrimSuffix(lo, unitIn(lo)), hi)
	}
	if p.Least.Some() {
		text += " ≥ " + write(float64(p.Least))
	}
	if p.Most.Some() {
		text += " ≤ " + write(float64(p.Most))
	}
	return text
}

// unitIn returns the unit of a figure with its space, if it has one.
func unitIn(s string) string {
	if i := strings.IndexByte(s, ' '); i >= 0 {
		return s[i:]
	}
	return ""
}

// paragraph writes text in lines of at most 100 columns.
func paragraph(b *bytes.Buffer, text string) {
	b.WriteString(display.Fold(text, 100, 0) + "\n\n")
}

// joined lists names.
func joined(names []string) string { return strings.Join(names, ", ") }

// checkDir refuses a document whose directory is missing.
func checkDir(file string) error {
	dir := filepath.Dir(file)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("no directory %s for the document: choose a file with --doc", dir)
	}
	return nil
}
