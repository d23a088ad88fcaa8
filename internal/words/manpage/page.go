// Package manpage writes manual pages in the man(7) language.
package manpage

import (
	"fmt"
	"strings"
)

// Title is what a page is about.
type Title struct {
	Name    string // of the page: "longhaul-relay"
	Section int
	Date    string // of the release: "2026-11-21"
	Source  string // what it belongs to, with its version
	Summary string // one line
}

// Page is a manual page of a command.
type Page struct {
	Title
	Synopsis []string
	// Description is text as help shows it: paragraphs, between them blank
	// lines; indented lines stay as they are.
	Description string
	Options     []Option
	Commands    []Option
	ExitStatus  string // text as Description
	Examples    string
	Files       []Option
	SeeAlso     []string // "longhaul(1)"
}

// Option is a flag or a command and what it does.
type Option struct {
	Name  string // "--listen", "-c, --config"
	Value string // "ADDRESS:PORT"; empty if it has none
	Text  string
}

// Roff is the page's source.
func (p Page) Roff() []byte {
	var b strings.Builder
	p.write(&b)
	if len(p.Synopsis) > 0 {
		section(&b, "SYNOPSIS")
		for i, line := range p.Synopsis {
			if i > 0 {
				b.WriteString(".br\n")
			}
			b.WriteString("\\fB" + escape(line) + "\\fR\n")
		}
	}
	if p.Description != "" {
		section(&b, "DESCRIPTION")
		text(&b, p.Description)
	}
	options(&b, "COMMANDS", p.Commands)
	options(&b, "OPTIONS", p.Options)
	if p.ExitStatus != "" {
		section(&b, "EXIT STATUS")
		text(&b, p.ExitStatus)
	}
	if p.Examples != "" {
		section(&b, "EXAMPLES")
		literal(&b, strings.Split(strings.Trim(p.Examples, "\n"), "\n"), true)
	}
	options(&b, "FILES", p.Files)
	if len(p.SeeAlso) > 0 {
		section(&b, "SEE ALSO")
		for i, ref := range p.SeeAlso {
			name, number, _ := strings.Cut(ref, "(")
			end := ","
			if i == len(p.SeeAlso)-1 {
				end = ""
			}
			fmt.Fprintf(&b, ".BR %s (%s%s\n", escape(name), number, end)
		}
	}
	return []byte(b.String())
}

// write begins a page. Lines are neither hyphenated nor justified: names of
// flags stay whole.
func (t Title) write(b *strings.Builder) {
	fmt.Fprintf(b, ".TH %s %d %q %s\n.nh\n.ad l\n", quoted(strings.ToUpper(t.Name)), t.Section, t.Date, quoted(t.Source))
	section(b, "NAME")
	fmt.Fprintf(b, "%s \\- %s\n", escape(t.Name), escape(t.Summary))
}

func section(b *strings.Builder, title string) { fmt.Fprintf(b, ".SH %s\n", title) }

func options(b *strings.Builder, title string, list []Option) {
	if len(list) == 0 {
		return
	}
	section(b, title)
	for _, o := range list {
		b.WriteString(".TP\n\\fB" + escape(o.Name) + "\\fR")
		if o.Value != "" {
			b.WriteString(" \\fI" + escape(o.Value) + "\\fR")
		}
		b.WriteString("\n")
		lines(b, strings.Join(strings.Fields(o.Text), " "))
	}
}

// text writes paragraphs, of which indented lines are literal.
func text(b *strings.Builder, s string) {
	first := true
	for block := range strings.SplitSeq(strings.Trim(s, "\n"), "\n\n") {
		rows := strings.Split(strings.Trim(block, "\n"), "\n")
		for len(rows) > 0 {
			n := run(rows)
			if strings.HasPrefix(rows[0], " ") {
				literal(b, rows[:n], first)
			} else {
				if !first {
					b.WriteString(".PP\n")
				}
				lines(b, strings.Join(rows[:n], "\n"))
			}
			first = false
			rows = rows[n:]
		}
	}
}

// run counts the rows from the first on that are indented as it is, or are not
// as it is not.
func run(rows []string) int {
	for i, row := range rows {
		if strings.HasPrefix(row, " ") != strings.HasPrefix(rows[0], " ") {
			return i
		}
	}
	return len(rows)
}

// literal writes lines as they are; after a heading nothing sets them apart.
func literal(b *strings.Builder, rows []string, afterHeading bool) {
	if len(rows) == 0 {
		return
	}
	if !afterHeading {
		b.WriteString(".PP\n")
	}
	b.WriteString(".RS 2\n.nf\n")
	indent := strings.Repeat(" ", len(rows[0])-len(strings.TrimLeft(rows[0], " ")))
	for _, row := range rows {
		lines(b, strings.TrimPrefix(row, indent))
	}
	b.WriteString(".fi\n.RE\n")
}

// lines writes lines of text so that none is taken for a request.
func lines(b *strings.Builder, s string) {
	for line := range strings.SplitSeq(s, "\n") {
		b.WriteString(escape(line) + "\n")
	}
}

var escapes = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`)

// escapeAll makes text mean itself, but for what it is at the beginning of a
// line.
func escapeAll(s string) string { return escapes.Replace(s) }

// escape makes a line mean itself.
func escape(s string) string {
	s = escapeAll(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

// quoted is a word as an argument of a request.
func quoted(s string) string { return `"` + escape(s) + `"` }
