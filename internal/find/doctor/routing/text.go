package routing

import (
	"bytes"
	"fmt"
	"io"

	"longhaul/internal/words/display"
)

// WriteText writes the verdict, its evidence and the remedies, in lines of 78 columns but
// for commands. The error is the writer's.
func (v Verdict) WriteText(w io.Writer) error {
	var b bytes.Buffer
	o := v.Observation
	display.WriteParagraph(&b, "", fmt.Sprintf("%s, %s > %s: %s", o.Tunnel, o.Client, o.Target, v.Sentence))
	fmt.Fprintln(&b, "\nEvidence:")
	for _, clause := range v.Evidence {
		display.WriteParagraph(&b, "  - ", clause)
	}
	if len(v.Remedies) > 0 {
		fmt.Fprintln(&b, "\nRemedies:")
	}
	for i, remedy := range v.Remedies {
		display.WriteParagraph(&b, fmt.Sprintf("%3d. ", i+1), remedy.Action)
		if remedy.Command != "" {
			fmt.Fprintf(&b, "     on %s:\n       %s\n", remedy.Place, remedy.Command)
		}
	}
	if v.Doubt != "" {
		fmt.Fprintln(&b)
		display.WriteParagraph(&b, "Not certain: ", v.Doubt+".")
	}
	_, err := w.Write(b.Bytes())
	return err
}
