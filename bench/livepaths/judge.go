package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"longhaul/internal/find/doctor"
	"longhaul/internal/words/display"
)

// verdict is what doctor says of a path.
type verdict struct {
	Cause        doctor.Cause    `json:"cause,omitempty"`
	Strength     doctor.Strength `json:"strength,omitempty"`
	Refusal      string          `json:"refusal,omitempty"` // in place of a cause
	GoodputBps   float64         `json:"goodput_bps"`
	PredictedBps float64         `json:"predicted_bps,omitempty"`
	Evidence     []string        `json:"evidence,omitempty"`
	Judged       judgement       `json:"judged"`
}

// judgement is what a verdict is worth.
type judgement string

// The judgements. Cautious names no cause, or says that the host has no CPU time to know it.
const (
	right    judgement = "right"
	cautious judgement = "cautious"
	wrong    judgement = "wrong"
)

// outcome is what was said of a path in a round.
type outcome struct {
	Path    string         `json:"path"`
	What    string         `json:"what"`
	Round   int            `json:"round"`
	Truth   []doctor.Cause `json:"truth"`
	Watched verdict        `json:"watched"`
	Tested  verdict        `json:"tested"` // with --test
	Top     []string       `json:"top"`
	// TopContradicted are causes of top that doctor contradicts with certainty.
	TopContradicted []string `json:"top_contradicted,omitempty"`
	TopWrong        []string `json:"top_wrong,omitempty"` // that are not the truth
	Error           string   `json:"error,omitempty"`
}

// judge holds what was said against the truth.
func (o *outcome) judge(p path) {
	for _, v := range []*verdict{&o.Watched, &o.Tested} {
		v.Judged = p.judge(*v)
	}
	for _, cause := range o.Top {
		if cause == "-" {
			continue
		}
		if !p.accepts(doctor.Cause(cause)) && !slices.Contains(o.TopWrong, cause) {
			o.TopWrong = append(o.TopWrong, cause)
		}
		for _, v := range []verdict{o.Watched, o.Tested} {
			if v.Strength == doctor.Certain && !agree(doctor.Cause(cause), v.Cause) && !slices.Contains(o.TopContradicted, cause) {
				o.TopContradicted = append(o.TopContradicted, cause)
			}
		}
	}
}

func (p path) accepts(c doctor.Cause) bool {
	return slices.ContainsFunc(p.truth, func(truth doctor.Cause) bool { return agree(c, truth) })
}

// agree reports whether a cause of top, which may be one that covers several, is doctor's.
func agree(glanced, cause doctor.Cause) bool {
	switch glanced {
	case doctor.Loss:
		return cause == doctor.RandomLoss || cause == doctor.Policer
	case doctor.Stalled:
		return cause == doctor.BlackHole || cause == doctor.Outage
	}
	return glanced == cause
}

func (p path) judge(v verdict) judgement {
	switch {
	case p.accepts(v.Cause):
		return right
	case p.starved && v.Refusal == "" && v.Strength != doctor.Certain:
		return right
	case v.Refusal != "" && len(p.truth) == 0:
		return right
	case v.Refusal != "" || v.Cause == doctor.Unexplained || v.Cause == "":
		return cautious
	}
	return wrong
}

// text is a verdict in a few words.
func (v verdict) text() string {
	switch {
	case v.Refusal != "":
		return "no verdict"
	case v.Strength == doctor.Certain:
		return string(v.Cause)
	}
	return string(v.Cause) + ", " + string(v.Strength)
}

// line is an outcome in a line.
func (o outcome) line() string {
	if o.Error != "" {
		return fmt.Sprintf("%s: %s", o.Path, o.Error)
	}
	return fmt.Sprintf("%-22s %-8s %-34s %-8s %-34s %s", o.Path, o.Watched.Judged, o.Watched.text(), o.Tested.Judged, o.Tested.text(), strings.Join(o.Top, " "))
}

// tally counts judgements.
type tally struct {
	right, cautious, wrong, wrongCertain, all int
}

func (t *tally) add(v verdict) {
	t.all++
	switch v.Judged {
	case right:
		t.right++
	case cautious:
		t.cautious++
	default:
		t.wrong++
		if v.Strength == doctor.Certain {
			t.wrongCertain++
		}
	}
}

func (t tally) String() string {
	return fmt.Sprintf("%d of %d right (%.0f %%), %d cautious, %d wrong, of which %d certain",
		t.right, t.all, 100*float64(t.right)/float64(max(t.all, 1)), t.cautious, t.wrong, t.wrongCertain)
}

// writeTable writes the outcomes and their sums.
func writeTable(w io.Writer, all []outcome) {
	var watched, tested tally
	failed, contradicted, topWrong, named := 0, 0, 0, 0
	fmt.Fprintln(w, "| path | truth | doctor | | with --test | | Mb/s | top |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|")
	for _, o := range all {
		if o.Error != "" {
			failed++
			fmt.Fprintf(w, "| %s | | %s | | | | | |\n", o.Path, display.FirstLine(o.Error))
			continue
		}
		watched.add(o.Watched)
		tested.add(o.Tested)
		top := strings.Join(o.Top, " ")
		if len(o.TopContradicted) > 0 {
			top += " **contradicted**"
			contradicted++
		}
		if len(o.TopWrong) > 0 {
			topWrong++
		}
		if slices.ContainsFunc(o.Top, func(c string) bool { return c != "-" }) {
			named++
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %.2f | %s |\n", o.Path, path{truth: o.Truth}.truthText(),
			o.Watched.text(), o.Watched.Judged, o.Tested.text(), o.Tested.Judged, o.Tested.GoodputBps/1e6, top)
	}
	fmt.Fprintf(w, "\ndoctor: %s\nwith --test: %s\n", watched, tested)
	fmt.Fprintf(w, "top named a cause on %d of %d, another than the truth on %d, one that doctor contradicts with certainty on %d\n",
		named, len(all)-failed, topWrong, contradicted)
	if failed > 0 {
		fmt.Fprintf(w, "%d could not be looked at\n", failed)
	}
}
