package transfers

import (
	"os"
	"testing"

	"longhaul/internal/nettest"
)

// TestPairsPage executes "Set it up" of docs/pairs.md on two hosts that have no keys yet, as it is
// written: each command at the host that the comment above it names. The invitation's line goes
// into the file line.
func TestPairsPage(t *testing.T) {
	nettest.RequireRoot(t)
	p := readPage(t, "docs/pairs.md", "Set it up")
	s := newPageSites(t, t.TempDir())
	s.useProgram()
	s.follow(p, []place{
		{begins: "longhaul pair invite ", prints: `^longhaul-pair-invite-\S+\n$`, then: func(said string) {
			nettest.Must(t, os.WriteFile("line", []byte(said), 0o600))
		}},
		{begins: "longhaul pair join ", prints: `^site-b is a peer now, and has the key\s+of\s+this\s+host\n$`},
		{begins: "longhaul check files", prints: `^files: accepts: the pair with site-b stands, (?s:.*)accepts`},
	})
	s.execute(pageCommand{line: "scp -P 9000 -o HostKeyAlias=host-b my.data root@relay-a:/srv/", hosts: []string{"host-a"}})
	s.copied()
}
