//go:build linux

package main

import (
	"fmt"
	"io"
	"time"

	"longhaul/internal/display"
	"longhaul/internal/lab"
	"longhaul/internal/lab/congestion"
	"longhaul/internal/lab/diagnosis"
	"longhaul/internal/printable"
)

// progress shows how far a run is: on a terminal by one line that is
// rewritten, elsewhere by a line every few seconds.
type progress struct {
	w        io.Writer
	terminal bool
	shown    bool
	last     time.Time
}

func newProgress(w io.Writer) *progress {
	return &progress{w: display.Raw(w), terminal: display.IsTerminal(w)}
}

const quietReporting = 5 * time.Second

// due says whether it is time to show something again: on a terminal it always
// is.
func (p *progress) due() bool {
	if p.terminal {
		return true
	}
	if time.Since(p.last) < quietReporting {
		return false
	}
	p.last = time.Now()
	return true
}

// line shows a line in the place of the last.
func (p *progress) line(text string) {
	text = printable.String(text)
	if p.terminal {
		fmt.Fprintf(p.w, "\r%s\x1b[K", text)
		p.shown = true
		return
	}
	fmt.Fprintln(p.w, text)
}

func (p *progress) show(at lab.Progress) {
	if !p.due() {
		return
	}
	share := float64(at.Received) / float64(at.Bytes)
	name := at.Case
	if at.Runs > 1 {
		name = fmt.Sprintf("%s %d/%d", name, at.Run, at.Runs)
	}
	line := fmt.Sprintf("%-26s %s %3.0f %%  %10s  %3.0f s", name,
		display.Bar(share), 100*share, display.Rate(at.NowBps), at.Elapsed.Seconds())
	p.line(line)
}

// timed shows how far a run of a set time is.
func (p *progress) timed(at congestion.Progress) {
	if !p.due() {
		return
	}
	share := min(at.Elapsed.Seconds()/at.Total.Seconds(), 1)
	line := fmt.Sprintf("%-26s %s %3.0f s  %10s", fmt.Sprintf("%s %d/%d", at.Case, at.Run, at.Runs),
		display.Bar(share), at.Elapsed.Seconds(), display.Rate(at.NowBps))
	p.line(line)
}

// zone shows how far a zone transfer is.
func (p *progress) zone(at lab.ZoneProgress) {
	if !p.due() {
		return
	}
	line := fmt.Sprintf("%-16s %-10s %6.1f MB  %3.0f s", at.Case, at.What, float64(at.Bytes)/1e6, at.Elapsed.Seconds())
	p.line(line)
}

// note prints a line that stays.
func (p *progress) note(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.w, "longhaul: %s\n", printable.String(fmt.Sprintf(format, args...)))
}

// clear takes the progress line away.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// scenario shows how many scenarios are done, and what became of the last.
func (p *progress) scenario(done, of int, last diagnosis.Result) {
	said := "right"
	switch {
	case last.Error != "":
		said = last.Error
	case !last.Right:
		said = "wrong"
	}
	line := fmt.Sprintf("%4d/%d  %-22s %-16s %s", done, of, last.Name, last.Verdict, said)
	p.line(line)
}

// scripts shows how many scripts are done.
func (p *progress) scripts(done, of uint64, violations int) {
	if !p.due() {
		return
	}
	p.line(fmt.Sprintf("%d of %d scripts, %d outcomes that direct TCP does not allow", done, of, violations))
}
