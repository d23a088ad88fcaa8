package screen

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// key is a key that was pressed, or pasted text.
type key struct {
	name string // of a key without text, or "paste"; "": an unknown one
	text string
}

// escapeTime is how long the rest of a key's sequence may take to come. The escape
// key sends the first byte of such sequences alone.
const escapeTime = 50 * time.Millisecond

// pasteTime is how long the rest of pasted text may take to come. Without its end, which may be lost, all keys would be
// pasted text.
const pasteTime = time.Second

// maxPending bounds a sequence, and what is kept of pasted text, in bytes.
const maxPending = 4096

// Sequences around pasted text.
const (
	pasteBegins = "\x1b[200~"
	pasteEnds   = "\x1b[201~"
)

// sequences are those of keys without text, after ESC [ and ESC O (xterm, VT220).
var sequences = map[string]string{
	"A": "up", "B": "down", "H": "home", "F": "end",
	"1~": "home", "4~": "end", "5~": "pgup", "6~": "pgdown", "7~": "home", "8~": "end",
}

// controls are keys of one byte.
var controls = map[byte]string{
	0x03: "ctrl+c", 0x08: "backspace", '\n': "enter", '\r': "enter", 0x15: "ctrl+u", 0x1a: "ctrl+z", 0x7f: "backspace",
}

// keyReader takes keys out of the bytes of a terminal.
type keyReader struct{ pending []byte }

// read returns the keys that have come as a whole.
func (r *keyReader) read(b []byte) (all []key) {
	r.pending = append(r.pending, b...)
	for len(r.pending) > 0 {
		k, n := next(r.pending)
		if n == 0 && len(r.pending) <= maxPending {
			return all
		}
		if n == 0 {
			r.shorten()
			return all
		}
		all = append(all, k)
		r.pending = r.pending[n:]
	}
	return all
}

// shorten drops the end of what is pending, but for the last bytes, in which the end
// of a paste may begin.
func (r *keyReader) shorten() {
	keep := maxPending - len(pasteEnds)
	r.pending = append(r.pending[:keep], r.pending[len(r.pending)-len(pasteEnds):]...)
}

// patience is how long the rest of what is pending may take to come.
func (r *keyReader) patience() time.Duration {
	if bytes.HasPrefix(r.pending, []byte(pasteBegins)) {
		return pasteTime
	}
	return escapeTime
}

// rest returns what is pending as keys: nothing more has come for as long as [keyReader.patience] says.
func (r *keyReader) rest() (all []key) {
	if text, pastes := bytes.CutPrefix(r.pending, []byte(pasteBegins)); pastes {
		all = []key{{"paste", pasted(string(text))}}
	} else if string(r.pending) == "\x1b" {
		all = []key{{name: "esc"}}
	}
	r.pending = nil // an unknown sequence, or the beginning of a character
	return all
}

// next is the first key of some bytes and their number, 0 if the key is not complete.
func next(b []byte) (k key, n int) {
	switch {
	case bytes.HasPrefix(b, []byte(pasteBegins)):
		text, _, ended := bytes.Cut(b[len(pasteBegins):], []byte(pasteEnds))
		if !ended {
			return key{}, 0
		}
		return key{"paste", pasted(string(text))}, len(pasteBegins) + len(text) + len(pasteEnds)
	case b[0] == 0x1b:
		return nextSequence(b)
	case b[0] == ' ':
		return key{"space", " "}, 1
	case b[0] < ' ' || b[0] == 0x7f:
		return key{name: controls[b[0]]}, 1
	case !utf8.FullRune(b):
		return key{}, 0
	}
	r, n := utf8.DecodeRune(b)
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return key{}, n
	}
	return key{text: string(r)}, n
}

// pasted is a pasted text as one line.
func pasted(text string) string {
	printed := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) && !unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
	return strings.Join(strings.Fields(printed), " ")
}

// nextSequence is next of bytes that begin with ESC.
func nextSequence(b []byte) (k key, n int) {
	switch {
	case len(b) == 1:
		return key{}, 0
	case b[1] == 0x1b:
		return key{name: "esc"}, 1
	case b[1] != '[' && b[1] != 'O':
		_, n := utf8.DecodeRune(b[1:])
		return key{}, 1 + n // a key with Alt
	}
	for n := 2; n < len(b); n++ {
		if b[n] >= '@' && b[n] <= '~' { // the final byte (ECMA-48, section 5.4)
			return key{name: sequences[string(b[2:n+1])]}, n + 1
		}
	}
	return key{}, 0
}

// moveTo moves the cursor to the beginning of a line, counted from 1.
func moveTo(line int) string { return fmt.Sprintf("\x1b[%d;1H", line) }
