package remedy

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func TestRemedy(t *testing.T) {
	const outOf = "raise the limit of open files: ulimit -n, or LimitNOFILE= in the unit"
	const ofHost = "raise the limit of open files of the host: sysctl fs.file-max"
	inner := New(fs.ErrNotExist, "make the file")
	for _, c := range []struct {
		err             error
		text, fix, line string
	}{
		{errors.New("no route"), "no route", "", "no route"},
		{New(errors.New("no route"), "add one"), "no route", "add one", "no route; add one"},
		{fmt.Errorf("tunnel a: %w", inner), "tunnel a: file does not exist", "make the file", "tunnel a: file does not exist; make the file"},
		{fmt.Errorf("listen: %w", syscall.EMFILE), "listen: too many open files", outOf, "listen: too many open files; " + outOf},
		{syscall.ENFILE, "too many open files in system", ofHost, "too many open files in system; " + ofHost},
		{New(syscall.ENFILE, "end others"), "too many open files in system", "end others", "too many open files in system; end others"},
		{New(inner, "name another"), "file does not exist", "name another", "file does not exist; name another"},
	} {
		if c.err.Error() != c.text || Of(c.err) != c.fix || Line(c.err) != c.line {
			t.Errorf("%v: %q, %q", c.err, Of(c.err), Line(c.err))
		}
	}
	if !errors.Is(inner, fs.ErrNotExist) {
		t.Error("the problem is hidden")
	}
}

func TestNearest(t *testing.T) {
	known := []string{"status", "stop", "history", "config"}
	for word, want := range map[string]string{
		"statsu": "status", "sotp": "stop", "hist": "history", "confg": "config", "frobnicate": "", "": "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q is taken for %q, want %q", word, got, want)
		}
	}
}
