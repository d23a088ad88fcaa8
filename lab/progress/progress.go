// Package progress reports the progress of the lab's experiments, and shows it on a
// terminal or in a log.
package progress

import (
	"fmt"
	"io"
	"sync"
	"time"

	"longhaul/internal/words/display"
	"longhaul/internal/words/printable"
)

// Kind says how long a report stays visible.
type Kind uint8

// The kinds of reports.
const (
	Passing Kind = iota // until the next report; a few come in every second
	Step                // until the next report; one for each completed item
	Line                // for good
	Note                // for good; important for the user
)

// Report is the progress of an experiment.
type Report struct {
	Kind     Kind
	Done, Of int // runs, cases or scripts, the present run included; 0: nothing is counted
	Text     string
}

// Reporter receives an experiment's reports, from one or more goroutines. A nil
// Reporter drops them.
type Reporter func(Report)

// Passing reports that done of a number of items are done or under way.
func (r Reporter) Passing(done, of int, format string, args ...any) {
	r.report(Passing, done, of, format, args)
}

// Step reports another completed item.
func (r Reporter) Step(done, of int, format string, args ...any) {
	r.report(Step, done, of, format, args)
}

// Linef reports a line that stays on the screen.
func (r Reporter) Linef(format string, args ...any) { r.report(Line, 0, 0, format, args) }

// Notef reports a note for the user.
func (r Reporter) Notef(format string, args ...any) { r.report(Note, 0, 0, format, args) }

func (r Reporter) report(kind Kind, done, of int, format string, args []any) {
	if r != nil {
		r(Report{kind, done, of, fmt.Sprintf(format, args...)})
	}
}

// Printer shows reports. On a terminal it rewrites one line with the last report.
// Elsewhere it prints a line each, and a passing report every 5 s at most.
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

// quietReporting is the time between passing reports without a terminal.
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

// Clear removes the line that the next report would rewrite.
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
