// Package printable keeps what others have named or written from meaning
// something to a terminal: names of processes and tunnels, errors of other hosts.
// A terminal takes control characters for commands, some of which rewrite what is
// shown or have text typed at its next prompt.
package printable

import (
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// String is s as one line, with a question mark for everything that is not to be
// shown: control characters, newlines and tabs too, what turns the direction of
// writing, and bytes that are no UTF-8.
func String(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !shown(r) {
			return '?'
		}
		return r
	}, s)
}

// shown says whether a rune is text, and neither a command to a terminal (C0 and
// C1, ECMA-48) nor one that has text read in another order than it stands (the
// explicit directional formatting of Unicode's UAX #9).
func shown(r rune) bool {
	switch {
	case unicode.IsControl(r):
		return false
	case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
		return false
	case r == '\u2028', r == '\u2029': // separators of lines and paragraphs
		return false
	}
	return true
}

// Writer passes text on to another writer as [String] would, but for newlines and
// tabs, which stay. Several goroutines may use it.
type Writer struct {
	mu   sync.Mutex
	to   io.Writer
	rest []byte // the beginning of a rune whose end is still to come
}

// NewWriter returns a Writer that writes to another one.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Unwrap is the writer behind this one.
func (w *Writer) Unwrap() io.Writer { return w.to }

// Write writes what of p can be shown.
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

// plain says whether bytes are ASCII of which nothing is to be replaced.
func plain(p []byte) bool {
	for _, b := range p {
		if (b < ' ' || b > '~') && b != '\n' && b != '\t' {
			return false
		}
	}
	return true
}
