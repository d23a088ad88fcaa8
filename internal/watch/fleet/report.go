package fleet

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"longhaul/internal/words/display"
	"longhaul/internal/words/sorted"
)

// Report is what all relays answered.
type Report struct {
	At       time.Time `json:"at"`
	Well     bool      `json:"well"`     // every relay is ok
	Relays   []Answer  `json:"relays"`   // in the order in which they were given
	Versions []Version `json:"versions"` // that run, the most frequent first
	Problems []Problem `json:"problems"` // the worst first
}

// Version is a release with the relays that run it.
type Version struct {
	Version string   `json:"version"`
	Relays  []string `json:"relays"`
}

// Problem is a sentence about a relay.
type Problem struct {
	Relay  string `json:"relay"`
	Level  string `json:"level"` // critical, warning or notice
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

func newReport(answers []Answer, now time.Time) *Report {
	r := &Report{At: now.UTC().Truncate(time.Millisecond), Well: true, Relays: answers, Versions: []Version{}, Problems: []Problem{}}
	for i := range answers {
		a := &answers[i]
		r.Well = r.Well && a.State == OK
		r.Problems = append(r.Problems, a.problems()...)
		if a.Figures == nil {
			continue
		}
		at := slices.IndexFunc(r.Versions, func(v Version) bool { return v.Version == a.Version })
		if at < 0 {
			at = len(r.Versions)
			r.Versions = append(r.Versions, Version{Version: a.Version})
		}
		r.Versions[at].Relays = append(r.Versions[at].Relays, a.Name)
	}
	sorted.By(r.Problems, func(a, b Problem) int { return cmp.Compare(rank(a.Level), rank(b.Level)) })
	sorted.By(r.Versions, func(a, b Version) int { return cmp.Compare(len(b.Relays), len(a.Relays)) })
	return r
}

// problems are what there is to say of a relay.
func (a *Answer) problems() (all []Problem) {
	if a.Figures == nil {
		level := critical
		if a.State == Degraded { // it has just started
			level = warning
		}
		return []Problem{{a.Name, level, a.Problem, a.Remedy}}
	}
	for _, alert := range a.Alerts {
		all = append(all, Problem{Relay: a.Name, Level: alert.Level, Text: alert.Text})
	}
	if len(a.PairsDown) > 0 {
		var names []string
		for _, p := range a.PairsDown {
			names = append(names, fmt.Sprintf("%s (tunnel %s: %s)", p.Peer, p.Tunnel, cmp.Or(p.Problem, p.State)))
		}
		all = append(all, Problem{Relay: a.Name, Level: warning, Text: "Pairs down: " + strings.Join(names, ", ")})
	}
	return all
}

// Columns of a terminal.
const (
	width     = 80
	textWidth = 78
	maxName   = 30 // of a relay below the table
)

// maxProblems bounds the sentences about one relay.
const maxProblems = 8

// WriteText writes a summary, the table, and below it a sentence for each problem.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	r.writeSummary(&b)
	r.writeTable(&b)
	r.writeProblems(&b)
	r.writeVersions(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) writeSummary(b *strings.Builder) {
	count := map[State]int{}
	for i := range r.Relays {
		count[r.Relays[i].State]++
	}
	var parts []string
	for _, s := range states {
		if n := count[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	fmt.Fprintf(b, "%s: %s\n\n", display.Plural(len(r.Relays), "relay"), strings.Join(parts, ", "))
}

// writeTable writes a row for each relay. The names get what the other columns leave of the width.
func (r *Report) writeTable(b *strings.Builder) {
	rows := [][]string{{"RELAY", "VERSION", "STATE", "TUNNELS", "PAIRS", "UP", "DOWN", "FLOWS", "ALERTS", "LAG", "LOST"}}
	for i := range r.Relays {
		rows = append(rows, r.Relays[i].row())
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	rest := width
	for _, n := range widths[1:] {
		rest -= n + 1
	}
	widths[0] = min(widths[0], rest)
	for _, row := range rows {
		fmt.Fprintf(b, "%-*s %-*s %-*s", widths[0], display.Shorten(row[0], widths[0]), widths[1], row[1], widths[2], row[2])
		for i := 3; i < len(row); i++ {
			fmt.Fprintf(b, " %*s", widths[i], row[i])
		}
		b.WriteByte('\n')
	}
}

// row is a relay's. Unknown figures are "-".
func (a *Answer) row() []string {
	row := []string{a.Name, "-", string(a.State), "-", "-", "-", "-", "-", "-", "-", "-"}
	f := a.Figures
	if f == nil {
		return row
	}
	row[1] = display.Truncate(f.Version, 9)
	row[3] = ratio(f.TunnelsUsable, f.Tunnels)
	if f.Pairs > 0 {
		row[4] = ratio(f.PairsUp, f.Pairs)
	}
	row[5], row[6] = display.Quantity(int64(f.UpBps)), display.Quantity(int64(f.DownBps))
	row[7], row[8] = display.Quantity(f.FlowsNow), fmt.Sprint(len(f.Alerts))
	if len(f.Ship) > 0 {
		lag, lost := 0.0, int64(0)
		for _, s := range f.Ship {
			lag, lost = max(lag, s.Lag), min(lost+s.Lost, maxCount)
		}
		row[9], row[10] = display.Age(lag), display.Quantity(lost)
	}
	return row
}

// ratio writes a part of a number in at most eight characters.
func ratio(part, all int) string {
	if all < 1000 {
		return fmt.Sprintf("%d/%d", part, all)
	}
	return display.Quantity(int64(part)) + "/" + display.Quantity(int64(all))
}

func (r *Report) writeProblems(b *strings.Builder) {
	if len(r.Problems) > 0 {
		b.WriteByte('\n')
	}
	shown, hidden := map[string]int{}, []string{}
	for _, p := range r.Problems {
		if shown[p.Relay]++; shown[p.Relay] > maxProblems {
			if shown[p.Relay] == maxProblems+1 {
				hidden = append(hidden, p.Relay)
			}
			continue
		}
		text := p.Text
		if p.Remedy != "" {
			text += "; " + p.Remedy
		}
		writeLine(b, p.Relay, text)
	}
	for _, name := range hidden {
		writeLine(b, name, display.Plural(shown[name]-maxProblems, "problem")+" more; --json lists them")
	}
}

func writeLine(b *strings.Builder, relay, text string) {
	fmt.Fprintln(b, display.Fold(display.Shorten(relay, maxName)+": "+text, textWidth, 2))
}

// maxNamed is how many relays are named that run a version which others do not.
const maxNamed = 5

// writeVersions says which versions run if they are not the same.
func (r *Report) writeVersions(b *strings.Builder) {
	if len(r.Versions) < 2 {
		return
	}
	var parts []string
	for i, v := range r.Versions[:min(len(r.Versions), maxNamed)] {
		verb := "run"
		if len(v.Relays) == 1 {
			verb = "runs"
		}
		part := fmt.Sprintf("%s %s %s", display.Plural(len(v.Relays), "relay"), verb, v.Version)
		if i > 0 && len(v.Relays) <= maxNamed {
			part += " (" + strings.Join(v.Relays, ", ") + ")"
		}
		parts = append(parts, part)
	}
	if more := len(r.Versions) - len(parts); more > 0 {
		parts = append(parts, display.Plural(more, "further version"))
	}
	fmt.Fprintln(b, "\n"+display.Fold("Versions differ: "+strings.Join(parts, ", "), textWidth, 2))
}
