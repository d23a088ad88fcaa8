package progress

import (
	"strings"
	"testing"
	"time"
)

// report makes one report of each kind, and a second passing one.
func report(r Reporter) {
	r.Passing(1, 2, "first %d", 1)
	r.Passing(1, 2, "second\x1b[2J")
	r.Step(1, 2, "step")
	r.Linef("line")
	r.Notef("note of %s", "a case")
}

func TestPrinterOfLog(t *testing.T) {
	var b strings.Builder
	p := NewPrinter(&b)
	report(p.Report)
	p.last = time.Now().Add(-quietReporting)
	p.Report(Report{Text: "later"})
	p.Clear()
	if want := "first 1\nstep\nline\nlonghaul: note of a case\nlater\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestPrinterOfTerminal(t *testing.T) {
	var b strings.Builder
	p := NewPrinter(&b)
	p.terminal = true
	report(p.Report)
	p.Clear()
	const end, gone = "\x1b[K", "\r\x1b[K"
	want := "\rfirst 1" + end + "\rsecond?[2J" + end + "\rstep" + end + gone + "line\nlonghaul: note of a case\n"
	if got := b.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	report(nil) // no reporter
}
