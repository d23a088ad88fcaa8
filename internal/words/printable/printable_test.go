package printable

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

var texts = []struct{ in, line, text string }{
	{"to-b", "to-b", "to-b"},
	{"Zürich — 東京 █░", "Zürich — 東京 █░", "Zürich — 東京 █░"},
	{"a\tb\n", "a?b?", "a\tb\n"},
	{"\x1b]0;owned\x07\x1b[2J", "?]0;owned??[2J", "?]0;owned??[2J"},
	{"over\rwritten\b", "over?written?", "over?written?"},
	{"\u009b2J", "?2J", "?2J"}, // CSI as one character
	{"\x9b2J", "?2J", "?2J"},   // CSI as one byte
	{"txt.\u202egpj", "txt.?gpj", "txt.?gpj"},
	{"a\u2028b\x7f", "a?b?", "a?b?"},
	{"\u202a\u202b\u202c\u202d\u2066\u2067\u2068\u2069", "????????", "????????"}, // embeddings, overrides, isolates
	{"\u200e\u200f\u061c", "???", "???"},                                         // marks
	{"si\u200bte\u200c-\u200db\u2060\ufeff", "si?te?-?b??", "si?te?-?b??"},       // of no width
	{"a\u00ad\u034f\u115f\u3164\uffa0\ufe0f", "a??????", "a??????"},              // that show nothing
	{"\U000e0041\U000e0100", "??", "??"},                                         // tags, more selectors
	{"cut \xe6\x9d", "cut ??", "cut "},                                           // the rest of the rune may follow
}

func TestString(t *testing.T) {
	for _, test := range texts {
		if got := String(test.in); got != test.line {
			t.Errorf("%q: %q, want %q", test.in, got, test.line)
		}
	}
}

// TestWriter: the output does not depend on how the text is split into writes.
func TestWriter(t *testing.T) {
	for _, test := range texts {
		for size := 1; size <= len(test.in); size++ {
			var out bytes.Buffer
			w := NewWriter(&out)
			for rest := test.in; rest != ""; {
				n := min(size, len(rest))
				if wrote, err := w.Write([]byte(rest[:n])); wrote != n || err != nil {
					t.Fatal(wrote, err)
				}
				rest = rest[n:]
			}
			if out.String() != test.text {
				t.Errorf("%q in pieces of %d: %q, want %q", test.in, size, out.String(), test.text)
			}
		}
	}
}

func FuzzWriter(f *testing.F) {
	for _, test := range texts {
		f.Add(test.in, 1)
	}
	f.Fuzz(func(t *testing.T, in string, size int) {
		size = 1 + size&0xff
		var out bytes.Buffer
		w := NewWriter(&out)
		for rest := in; rest != ""; {
			n := min(size, len(rest))
			if wrote, err := w.Write([]byte(rest[:n])); wrote != n || err != nil {
				t.Fatal(wrote, err)
			}
			rest = rest[n:]
		}
		if !utf8.Valid(out.Bytes()) {
			t.Errorf("%q is no UTF-8", out.Bytes())
		}
		for _, line := range strings.Split(strings.ReplaceAll(out.String(), "\t", ""), "\n") {
			if String(line) != strings.ReplaceAll(line, string(utf8.RuneError), "?") {
				t.Errorf("%q of %q is not to be shown", line, in)
			}
		}
	})
}
