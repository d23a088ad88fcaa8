//go:build linux

package main

import (
	"fmt"
	"io"

	"longhaul/internal/display"
	"longhaul/internal/doctor"
	"longhaul/internal/remedy"
)

// note tells of what could not be done.
func note(env *env, err error) { fmt.Fprintf(env.stderr, "longhaul: %v\n", err) }

// progressNote tells somebody who waits what is being done.
func progressNote(env *env, format string, args ...any) {
	if display.IsTerminal(env.stderr) {
		fmt.Fprintf(env.stderr, format+" ...\n", args...)
	}
}

// tell prints the report.
func (f *doctorFlags) tell(env *env, o doctor.Observation) error {
	report, err := doctor.Diagnose(o)
	if err != nil {
		return remedy.New(err, "watch longer with --for, while data are moving")
	}
	if f.json {
		err = display.WriteJSON(env.stdout, report)
	} else {
		writeReport(env.stdout, report)
	}
	if err == nil && f.apply {
		err = applyRemedies(env, report, f.yes)
	}
	return err
}

// writeReport prints the verdict, what it is known by, and what would help.
func writeReport(w io.Writer, r doctor.Report) {
	display.WriteParagraph(w, "", r.Sentence())
	fmt.Fprintln(w)
	for i, finding := range r.Findings {
		switch i {
		case 0:
			fmt.Fprintln(w, "Known by:")
		case 1:
			fmt.Fprintln(w, "Also found:")
		}
		for _, clause := range finding.Evidence {
			display.WriteParagraph(w, "  - ", clause)
		}
	}
	if len(r.Remedies) > 0 {
		fmt.Fprintln(w, "\nWhat would help, the most first:")
	}
	for i, remedy := range r.Remedies {
		display.WriteParagraph(w, fmt.Sprintf("%3d. ", i+1), remedy.Action+outlook(remedy))
		if remedy.Command != "" {
			fmt.Fprintf(w, "     %s:\n       %s\n", where(remedy.Place, r.Observation.Elsewhere), remedy.Command)
		}
		for _, other := range remedy.Others {
			display.WriteParagraph(w, "     ", other)
		}
	}
	if r.Together {
		fmt.Fprintln(w)
		display.WriteParagraph(w, "", "Several causes hold it to about the same rate: removing one alone brings little.")
	}
	if r.Doubt != "" {
		fmt.Fprintln(w)
		display.WriteParagraph(w, "Not certain: ", r.Doubt)
	}
}

// where names a remedy's place.
func where(p doctor.Place, elsewhere bool) string {
	switch {
	case p == doctor.Sender && !elsewhere:
		return "on this host"
	case p == doctor.Sender:
		return "on the host that sends"
	case p == doctor.Receiver:
		return "on the host that receives"
	}
	return "on a host beside it"
}

// outlook says what a remedy is expected to bring.
func outlook(r doctor.Remedy) string {
	if r.PredictedBps == 0 {
		return ""
	}
	return fmt.Sprintf(": about %s, %.1f × today's, then limited by %s", display.Rate(r.PredictedBps), r.Gain, r.Next)
}
