// Package printable makes foreign text safe to print: names of processes and
// tunnels, errors of other hosts. A terminal executes control characters as
// commands; some rewrite the screen or type text at the next prompt.
package printable

import (
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// String returns s as one line. A question mark replaces control characters
// (including newlines and tabs), directional formatting, characters that show
// nothing, and invalid UTF-8. The result is never longer than s.
func String(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !shown(r) {
			return '?'
		}
		return r
	}, s)
}

// shown reports whether a rune is plain text. It excludes terminal commands (C0
// and C1, ECMA-48), directional formatting characters (Unicode UAX #9), and what
// shows nothing, such as zero-width characters (Unicode UTS #39): two names that
// look alike are alike.
func shown(r rune) bool {
	switch {
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
		return false
	case r == '\u2028', r == '\u2029': // line and paragraph separators
		return false
	}
	return true
}

// Writer copies text to another writer, filtered like [String] but with
// newlines and tabs. Several goroutines may use it.
type Writer struct {
	mu   sync.Mutex
	to   io.Writer
	rest []byte // an incomplete rune at the end of the last write
}

// NewWriter returns a Writer on top of another writer.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Unwrap returns the underlying writer.
func (w *Writer) Unwrap() io.Writer { return w.to }

// Write writes the filtered text.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) == 0 && plain(p) {
		return w.to.Write(p)
	}
	text := append(w.rest, p...)
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		if !utf8.FullRune(text) {
			break
		}
		r, size := utf8.DecodeRune(text)
		switch {
		case r == '\n' || r == '\t' || r == utf8.RuneError && size > 1:
			out = append(out, text[:size]...)
		case r == utf8.RuneError || !shown(r):
			out = append(out, '?')
		default:
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	w.rest = append([]byte(nil), text...)
	if _, err := w.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// plain reports whether bytes are ASCII without anything to replace.
func plain(p []byte) bool {
	for _, b := range p {
		if (b < ' ' || b > '~') && b != '\n' && b != '\t' {
			return false
		}
	}
	return true
}
