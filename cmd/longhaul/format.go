package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"longhaul/internal/printable"

	"golang.org/x/term"
)

func plural(n int, what string) string {
	switch {
	case n == 1:
	case what[len(what)-1] == 's':
		what += "es"
	default:
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// quantity writes a count in at most five characters, with decimal prefixes.
func quantity(n int64) string {
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

// bitsPerSecond writes a rate with three digits or so.
func bitsPerSecond(bps float64) string {
	switch {
	case bps >= 1e9:
		return fmt.Sprintf("%.2f Gb/s", bps/1e9)
	case bps >= 1e6:
		return fmt.Sprintf("%.1f Mb/s", bps/1e6)
	default:
		return fmt.Sprintf("%.1f kb/s", bps/1e3)
	}
}

// fold breaks a text between words so that it fits into a width, of which all
// lines but the first are indented; the first is so by what comes before it.
func fold(text string, width, indent int) string {
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

func milliseconds(d time.Duration) float64 {
	return round(float64(d)/float64(time.Millisecond), 1e3)
}

// round keeps a figure to 1/parts.
func round(v, parts float64) float64 { return float64(int64(v*parts+0.5)) / parts }

func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// bar draws a share of a whole.
func bar(share float64) string {
	const width = 24
	filled := int(min(max(share, 0), 1) * width)
	return strings.Repeat("█", filled) + strings.Repeat("░", width-filled)
}

// raw is the writer behind one that passes only text on: for what moves a
// terminal's cursor, and for other programs, which want a file.
func raw(w io.Writer) io.Writer {
	if p, ok := w.(*printable.Writer); ok {
		return p.Unwrap()
	}
	return w
}

func isTerminal(stream any) bool {
	if w, ok := stream.(io.Writer); ok {
		stream = raw(w)
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminalWidth is the number of a terminal's columns; ok is false where nothing
// is written to one.
func terminalWidth(w io.Writer) (columns int, ok bool) {
	f, ok := raw(w).(*os.File)
	if !ok {
		return 0, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	return columns, err == nil
}
