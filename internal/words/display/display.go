// Package display writes counts, rates, times and texts as people read them in a
// terminal of 80 columns.
package display

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"longhaul/internal/words/printable"
)

// Plural writes a number of things: "1 flow", "2 flows".
func Plural(n int, what string) string {
	switch {
	case n == 1:
	case what[len(what)-1] == 's':
		what += "es"
	default:
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Quantity writes a count in at most five characters, with decimal prefixes.
func Quantity(n int64) string {
	v := float64(n)
	for _, prefix := range []string{"", "k", "M", "G", "T", "P", "E"} {
		switch {
		case v < 9.95 && prefix != "":
			return fmt.Sprintf("%.1f%s", v, prefix)
		case v < 999.5:
			return fmt.Sprintf("%.0f%s", v, prefix)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.0fZ", v) // beyond what an int64 holds
}

// Rate writes a rate with three digits or so.
func Rate(bps float64) string {
	switch {
	case bps >= 1e9:
		return fmt.Sprintf("%.2f Gb/s", bps/1e9)
	case bps >= 1e6:
		return fmt.Sprintf("%.1f Mb/s", bps/1e6)
	default:
		return fmt.Sprintf("%.1f kb/s", bps/1e3)
	}
}

// Fold breaks a text between words so that it fits into a width, of which all
// lines but the first are indented; the first is so by what comes before it.
func Fold(text string, width, indent int) string {
	var b strings.Builder
	column := indent
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// Milliseconds is a time in milliseconds, to a microsecond.
func Milliseconds(d time.Duration) float64 {
	return Round(float64(d)/float64(time.Millisecond), 1e3)
}

// Round keeps a figure to 1/parts.
func Round(v, parts float64) float64 { return float64(int64(v*parts+0.5)) / parts }

// WriteJSON writes a value as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// Bar draws a share of a whole.
func Bar(share float64) string {
	const width = 24
	filled := int(min(max(share, 0), 1) * width)
	return strings.Repeat("█", filled) + strings.Repeat("░", width-filled)
}

// Raw is the writer behind one that passes only text on: for what moves a
// terminal's cursor, and for other programs, which want a file.
func Raw(w io.Writer) io.Writer {
	if p, ok := w.(*printable.Writer); ok {
		return p.Unwrap()
	}
	return w
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	if w, ok := stream.(io.Writer); ok {
		stream = Raw(w)
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// TerminalWidth is the number of a terminal's columns; ok is false where nothing
// is written to one.
func TerminalWidth(w io.Writer) (columns int, ok bool) {
	f, ok := Raw(w).(*os.File)
	if !ok {
		return 0, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	return columns, err == nil
}

// Shorten cuts the middle out of what is wider than its column.
func Shorten(s string, width int) string {
	runes := []rune(s)
	if len(runes) <= width {
		return s
	}
	head := (width - 1) / 2
	tail := width - 1 - head
	return string(runes[:head]) + "…" + string(runes[len(runes)-tail:])
}

// Cut leaves what fits the width.
func Cut(s string, width int) string {
	runes := []rune(s)
	return string(runes[:min(len(runes), max(width, 0))])
}

// FirstLine is a text up to its first line break.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// FirstOf writes the first of some values and how many more there are.
func FirstOf[T fmt.Stringer](all []T) string {
	if len(all) == 1 {
		return all[0].String()
	}
	return fmt.Sprintf("%s +%d", all[0], len(all)-1)
}

// Age writes a time in at most four characters: 5s, 12m, 3h, 4d, 2y.
func Age(seconds float64) string {
	for _, u := range []struct {
		below, per float64
		name       string
	}{{100, 1, "s"}, {100 * 60, 60, "m"}, {100 * 3600, 3600, "h"}, {1000 * 86400, 86400, "d"}} {
		if seconds < u.below {
			return fmt.Sprintf("%d%s", int(seconds/u.per), u.name)
		}
	}
	return fmt.Sprintf("%dy", int(seconds/86400/365))
}

// CompactRate writes bits per second in at most eight characters.
func CompactRate(bps float64) string { return Quantity(int64(bps)) + "b/s" }

// ShortTime writes milliseconds with as many digits as say something.
func ShortTime(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.3f ms", Milliseconds(d))
	}
	return fmt.Sprintf("%.1f ms", Milliseconds(d))
}

// Truncate cuts the end off what is wider, and marks the cut with an ellipsis.
func Truncate(s string, width int) string {
	if runes := []rune(s); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return s
}

// reportWidth is the width of paragraphs, in columns.
const reportWidth = 78

// WriteParagraph writes a text in lines of at most 78 columns. The first line
// begins with the lead, and the others are indented by its width.
func WriteParagraph(w io.Writer, lead, text string) {
	fmt.Fprintln(w, lead+Fold(text, reportWidth, len(lead)))
}
