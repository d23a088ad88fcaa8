package service

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"longhaul/internal/words/display"
)

// done has the past tense of each printed verb.
var done = map[Verb]string{
	Write: "wrote", Replace: "replaced", Link: "linked", Remove: "removed", Keep: "kept",
}

// name returns the verb for a report of a planned or completed change.
func (v Verb) name(planned bool) string {
	if planned {
		return "would " + string(v)
	}
	return done[v]
}

// changeFiles reports whether any step changes a file or a link.
func changeFiles(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool {
		return s.Verb == Write || s.Verb == Replace || s.Verb == Link || s.Verb == Remove
	})
}

// writeSteps lists changes, and unchanged files with the reason. It only counts the
// files of share.
func writeSteps(b *bytes.Buffer, steps []Step, planned bool) {
	type group struct {
		verb Verb
		dir  string
	}
	counts := map[group]int{}
	var groups []group
	for _, s := range steps {
		dir, _, shared := strings.Cut(s.Path, "/share/")
		switch {
		case s.Verb == Present, s.Verb == Make, s.Verb == Unmake:
		case shared && s.Verb != Keep:
			g := group{s.Verb, dir + "/share"}
			if counts[g]++; counts[g] == 1 {
				groups = append(groups, g)
			}
		case s.Why != "":
			fmt.Fprintf(b, "%s %s: %s\n", s.Verb.name(planned), s.Path, s.Why)
		default:
			fmt.Fprintf(b, "%s %s\n", s.Verb.name(planned), s.Path)
		}
	}
	for _, g := range groups {
		fmt.Fprintf(b, "%s %s below %s: manual pages, completion, examples\n", g.verb.name(planned), display.Plural(counts[g], "file"), g.dir)
	}
}

// writeNotes writes a line for each note.
func writeNotes(b *bytes.Buffer, notes []string) {
	for _, note := range notes {
		fmt.Fprintln(b, "note: "+note)
	}
}
