//go:build linux

package main

import (
	"io"
	"strings"
	"testing"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/sys/pty"
	"longhaul/internal/tune/hostchanges"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// TestConfirm: an undo of all owners' changes lists them and takes only y for an answer.
// Without a terminal it is a wrong command line.
func TestConfirm(t *testing.T) {
	changes := []hostchanges.Change{{
		Kind: ledger.Default, What: "default", Value: "haul",
		Claims: []ledger.Claim{{By: ledger.By{Owner: "alice", Command: "longhaul cc load haul --default"}}},
	}}
	screen, terminal, err := pty.Open()
	nettest.Must(t, err)
	defer screen.Close()
	defer terminal.Close()
	for answer, want := range map[string]bool{"y\n": true, "Y\n": true, "n\n": false, "\n": false, "yes please\n": false} {
		var out strings.Builder
		_, err := io.WriteString(screen, answer)
		nettest.Must(t, err)
		err = confirm(&env{stdin: terminal, stderr: &out}, changes)
		if (err == nil) != want || err != nil && exitCode(err) != exitFailure {
			t.Errorf("%q: %v", answer, err)
		}
		if !strings.Contains(out.String(), "alice") || !strings.HasSuffix(out.String(), "[y/N] ") {
			t.Errorf("asked %q", out.String())
		}
	}
	err = confirm(&env{stdin: strings.NewReader("y\n"), stderr: io.Discard}, changes)
	if exitCode(err) != exitUsage || !strings.Contains(remedy.Of(err), "--yes") {
		t.Errorf("without a terminal: %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	got := commandLine([]string{"cc", "use", "haul", "--to", "it's a host", ""})
	if want := `longhaul cc use haul --to 'it'\''s a host' ''`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
