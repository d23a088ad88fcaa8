// Package progress is how the lab's experiments report how far they are, and
// how a terminal or a log shows it.
package progress

import (
	"fmt"
	"io"
	"sync"
	"time"

	"longhaul/internal/display"
	"longhaul/internal/printable"
)

// Kind says how long a report is of interest.
type Kind uint8

// The kinds of reports.
const (
	Passing Kind = iota // until the next report; a few come in every second
	Step                // until the next report; one comes for each thing done
	Line                // for good
	Note                // for good; the user should know it
)

// Report says how far an experiment is.
type Report struct {
	Kind     Kind
	Done, Of int // runs, cases or scripts, the present run included; 0: nothing is counted
	Text     string
}

// Reporter takes an experiment's reports, from one or more goroutines. A nil
// one drops them.
type Reporter func(Report)

// Passing reports that done of so many things are done or under way.
func (r Reporter) Passing(done, of int, format string, args ...any) {
	r.report(Passing, done, of, format, args)
}

// Step reports that another thing is done.
func (r Reporter) Step(done, of int, format string, args ...any) {
	r.report(Step, done, of, format, args)
}

// Linef reports something that stays on the screen.
func (r Reporter) Linef(format string, args ...any) { r.report(Line, 0, 0, format, args) }

// Notef reports something that the user should know.
func (r Reporter) Notef(format string, args ...any) { r.report(Note, 0, 0, format, args) }

func (r Reporter) report(kind Kind, done, of int, format string, args []any) {
	if r != nil {
		r(Report{kind, done, of, fmt.Sprintf(format, args...)})
	}
}

// Printer shows reports: on a terminal the last one, by a line that is
// rewritten; elsewhere a line each, and of the passing ones one every 5 s.
type Printer struct {
	w        io.Writer
	terminal bool

	mu    sync.Mutex
	shown bool      // a line that the next report rewrites
	last  time.Time // when a passing report was last shown
}

// NewPrinter returns a printer that writes to w, such as standard error.
func NewPrinter(w io.Writer) *Printer {
	return &Printer{w: display.Raw(w), terminal: display.IsTerminal(w)}
}

// quietReporting is the time between passing reports that are no terminal's.
const quietReporting = 5 * time.Second

// Report shows a report. It is a Reporter.
func (p *Printer) Report(r Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := printable.String(r.Text)
	switch {
	case r.Kind == Note:
		p.clear()
		fmt.Fprintf(p.w, "longhaul: %s\n", text)
	case r.Kind == Line:
		p.clear()
		fmt.Fprintln(p.w, text)
	case p.terminal:
		fmt.Fprintf(p.w, "\r%s\x1b[K", text)
		p.shown = true
	case r.Kind == Passing && time.Since(p.last) < quietReporting:
	default:
		if r.Kind == Passing {
			p.last = time.Now()
		}
		fmt.Fprintln(p.w, text)
	}
}

// Clear takes away the line that a next report would rewrite.
func (p *Printer) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *Printer) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
