package doctor

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"longhaul/internal/words/display"
)

// WriteText writes the verdict, its evidence and the remedies, in lines of 78
// columns but for commands. The error is the writer's.
func (r Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	r.write(&b)
	_, err := w.Write(b.Bytes())
	return err
}

func (r Report) write(b *bytes.Buffer) {
	if text := r.Observation.name(); text != "" {
		display.WriteParagraph(b, "", text)
	}
	display.WriteParagraph(b, "", r.Sentence())
	if text := r.Observation.Pair.text(); text != "" {
		display.WriteParagraph(b, "", text)
	}
	fmt.Fprintln(b)
	for i, finding := range r.Findings {
		switch i {
		case 0:
			fmt.Fprintln(b, "Evidence:")
		case 1:
			fmt.Fprintln(b, "Also found:")
		}
		for _, clause := range finding.Evidence {
			display.WriteParagraph(b, "  - ", clause)
		}
	}
	if r.Strength != Certain {
		r.Counts.writeCounts(b)
	}
	if len(r.Remedies) > 0 {
		fmt.Fprintln(b, "\nRemedies, most effective first:")
	}
	for i, remedy := range r.Remedies {
		display.WriteParagraph(b, fmt.Sprintf("%3d. ", i+1), remedy.Action+remedy.text())
		if remedy.Command != "" {
			fmt.Fprintf(b, "     %s:\n       %s\n", remedy.Place.text(r.Observation.Elsewhere), remedy.Command)
		}
		for _, other := range slices.Concat(remedy.Others, remedy.Notes) {
			display.WriteParagraph(b, "     ", other)
		}
	}
	if r.Together {
		fmt.Fprintln(b)
		display.WriteParagraph(b, "",
			"Several causes limit it to about the same rate: removing one alone brings little.")
	}
	if r.Unpredicted != "" && r.Unpredicted != r.Doubt {
		fmt.Fprintln(b)
		display.WriteParagraph(b, "", "No figure for some gains: "+r.Unpredicted+".")
	}
	fmt.Fprintln(b)
	r.writeStrength(b)
}

// writeStrength says how far the evidence goes.
func (r Report) writeStrength(b *bytes.Buffer) {
	switch {
	case r.Strength == Certain:
		fmt.Fprintln(b, "Certain.")
	case r.Strength == Likely:
		display.WriteParagraph(b, "Likely: ", r.Doubt)
	case r.Doubt != "":
		display.WriteParagraph(b, "Not certain: ", r.Doubt)
	default:
		fmt.Fprintln(b, "Not certain: no rule fits these figures.")
	}
}

// text names a place. Elsewhere is set where this host does not send.
func (p Place) text(elsewhere bool) string {
	switch {
	case p == Sender && !elsewhere:
		return "on this host"
	case p == Sender:
		return "on the sending host"
	case p == Receiver:
		return "on the receiving host"
	case p == Relay:
		return "on the relay's host"
	}
	return "on a host beside it"
}

// text returns the outlook, to print after a remedy's action.
func (o Outlook) text() string {
	switch {
	case o.PredictedBps == 0:
		return ""
	case o.Gain == 0: // nothing moves today
		return fmt.Sprintf(": about %s, then limited by %s", display.Rate(o.PredictedBps), o.Next)
	case o.AtLeast:
		return fmt.Sprintf(": at least %s, %.1f × today's", display.Rate(o.PredictedBps), o.Gain)
	}
	return fmt.Sprintf(": about %s, %.1f × today's, then limited by %s", display.Rate(o.PredictedBps), o.Gain, o.Next)
}

// name says which connection the report is of, if it was one of several, or of a file.
func (o *Observation) name() string {
	if !o.Local.IsValid() || !o.Remote.IsValid() || o.Capture == nil && o.Connections < 2 {
		return ""
	}
	text := fmt.Sprintf("%s > %s", o.Local, o.Remote)
	if o.Connections > 1 {
		text += fmt.Sprintf(", which moved the most of %d connections", o.Connections)
	}
	return text + ":"
}
