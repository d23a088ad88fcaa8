package screen

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestKeys reads keys in one piece and byte by byte.
func TestKeys(t *testing.T) {
	for sent, want := range map[string][]key{
		"s/é ":                         {{text: "s"}, {text: "/"}, {text: "é"}, {"space", " "}},
		"\r\n\x7f\x08":                 {{name: "enter"}, {name: "enter"}, {name: "backspace"}, {name: "backspace"}},
		"\x03\x15\x1a\x01":             {{name: "ctrl+c"}, {name: "ctrl+u"}, {name: "ctrl+z"}, {}},
		"\x1b[A\x1bOB\x1b[5~\x1b[1;5A": {{name: "up"}, {name: "down"}, {name: "pgup"}, {}},
		"\x1b[H\x1bOF\x1b[7~\x1b[8~":   {{name: "home"}, {name: "end"}, {name: "home"}, {name: "end"}},
		"\x1b\x1b[A":                   {{name: "esc"}, {name: "up"}},
		"\x1bxq":                       {{}, {text: "q"}},
		"\x1b":                         {{name: "esc"}},
		"\x1b[1":                       nil,
		"q\xc3":                        {{text: "q"}},
		"\xff\xfeq":                    {{}, {}, {text: "q"}},
		pasteBegins + " a\n\x1b[A b " + pasteEnds + "q": {{"paste", "a [A b"}, {text: "q"}},
		pasteBegins + "a\x03":                           {{"paste", "a"}}, // its end is lost
	} {
		var whole, pieces keyReader
		var got []key
		for _, b := range []byte(sent) {
			got = append(got, pieces.read([]byte{b})...)
		}
		if got = append(got, pieces.rest()...); !slices.Equal(got, want) {
			t.Errorf("%q byte by byte: %q, want %q", sent, got, want)
		}
		if got := append(whole.read([]byte(sent)), whole.rest()...); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", sent, got, want)
		}
		if got := whole.read([]byte("\x03")); !slices.Equal(got, []key{{name: "ctrl+c"}}) {
			t.Errorf("%q, then ctrl+c: %q", sent, got)
		}
	}
}

// TestPatience waits longer for the rest of a paste.
func TestPatience(t *testing.T) {
	for sent, want := range map[string]time.Duration{
		"": escapeTime, "\x1b[20": escapeTime, pasteBegins: pasteTime, pasteBegins + "a\x1b[20": pasteTime, pasteBegins + pasteEnds: escapeTime,
	} {
		var r keyReader
		r.read([]byte(sent))
		if got := r.patience(); got != want {
			t.Errorf("%q: %v, want %v", sent, got, want)
		}
	}
}

// TestLongPaste keeps the beginning of a long paste, and finds its end.
func TestLongPaste(t *testing.T) {
	var r keyReader
	all := r.read([]byte(pasteBegins))
	for range 1000 {
		all = append(all, r.read([]byte(strings.Repeat("x", 100)))...)
		if cap(r.pending) > 4*maxPending {
			t.Fatalf("%d bytes are kept", cap(r.pending))
		}
	}
	all = append(all, r.read([]byte(pasteEnds[:3]))...)
	all = append(all, r.read([]byte(pasteEnds[3:]+"q"))...)
	if len(all) != 2 || all[0].name != "paste" || len(all[0].text) > maxPending || all[1].text != "q" {
		t.Errorf("%d keys", len(all))
	}
}
