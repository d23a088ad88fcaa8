package transfers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestPairsPage executes every command of docs/pairs.md and then of docs/pair-keys.md in its order, as
// it is written, on two hosts that have no keys yet: each at the host that the comment above it names.
// The invitation's line goes into the file line.
func TestPairsPage(t *testing.T) {
	nettest.RequireRoot(t)
	p, keys := readPage(t, "docs/pairs.md", ""), readPage(t, "docs/pair-keys.md", "")
	p.commands = append(p.commands, keys.commands...)
	s := newPageSites(t, t.TempDir())
	s.useProgram()
	stands := func() {
		s.t.Helper()
		check := pageCommand{line: "longhaul check files", hosts: []string{"relay-a"}}
		nettest.Eventually(t, time.Minute, func() bool { // a relay looks at its keys each second
			_, err := s.shell("relay-a", check.line)
			return err == nil
		}, func() string { return "no session stands" })
	}
	invite, invited := s.serveInvitation()
	s.follow(p, []place{
		invite,
		{begins: "longhaul pair invite ", prints: `^longhaul-pair-invite-\S+\n$`, then: func(said string) {
			nettest.Must(t, os.WriteFile("line", []byte(said), 0o600))
		}},
		{begins: "longhaul pair join - <", prints: `^site-b is a peer now, and has the key\s+of\s+this\s+host\n$`, then: func(string) { invited() }},
		{begins: "longhaul pair join - --as", prints: `^(vm2|site-a) is a peer now`},
		{begins: "longhaul pair remove ", prints: `site-[ab]`},
		{begins: "longhaul pair key ", prints: `^$`},
		{begins: "cat a.peer b.peer", prints: `^$`},
		{begins: "longhaul pair apply", prints: `^(renamed  site-b/b1  \S{12}  was site-b\n1 change made, 0 peers as before; this host is site-a|no change, 1 peer as before; this host is site-b/b1)\n$`},
		{begins: "pair_trust:", instead: func(c pageCommand) { s.checkTrust(c.line) }},
		{begins: "longhaul pair rename vm2 site-b", prints: `site-b`, then: func(string) { stands() }},
		{begins: "longhaul pair list", prints: `^PEER +KEY +SINCE +NOTE\nsite-a .*\ninvited: site-c, for \d+ min\n$`},
		{begins: "longhaul pair rotate --now", prints: `site-b`},
		{begins: "longhaul pair rotate", prints: `(?i)key`, then: func(string) { stands() }},
		{begins: "longhaul status", prints: `\n +pair site-b \(near\): `},
		{begins: "longhaul check files", instead: func(c pageCommand) {
			stands()
			s.execute(c, `^files: accepts: the pair with site-b stands, (?s:.*)accepts`)
		}},
	})
	stands()
	s.execute(pageCommand{line: "scp -P 9000 -o HostKeyAlias=host-b my.data root@relay-a:/srv/", hosts: []string{"host-a"}})
	s.copied()
}

// checkTrust checks the pair_trust of a page, with files that an authority has issued.
func (s *pageSites) checkTrust(trust string) {
	s.t.Helper()
	const paged = "/etc/longhaul/pair/"
	dir := s.t.TempDir()
	certFile, keyFile := nettest.NewIssuer(s.t, dir, "ca").Issue(s.t, dir, "tls", "spiffe://corp/site-a", time.Hour)
	trust = strings.NewReplacer(paged+"ca.crt", dir+"/ca.pem", paged+"tls.crt", certFile, paged+"tls.key", keyFile).Replace(trust)
	file := filepath.Join(dir, "trust.yaml")
	nettest.Must(s.t, os.WriteFile(file, []byte(trust+"tunnels: [{name: t, listen: '127.0.0.1:6000', pair: site-c/c1, forward: '10.20.20.20:6000'}]\npair_keys: "+dir+"/keys\n"), 0o600))
	s.execute(pageCommand{line: "longhaul config check " + file, hosts: []string{"relay-a"}}, `ok, 1 tunnel`)
}

// serveInvitation is the place of an invite that waits for the join, which the next command is. invited
// returns when it has ended, so that the relay gets its port.
func (s *pageSites) serveInvitation() (p place, invited func()) {
	ended := make(chan struct{})
	p = place{begins: "longhaul pair invite site-a --serve", instead: func(c pageCommand) {
		_ = os.Remove("line") // of an earlier one
		go func() {
			defer close(ended)
			_, _ = s.shell(c.hosts[0], c.line+" > line")
		}()
		nettest.Eventually(s.t, time.Minute, func() bool {
			said, err := os.ReadFile("line")
			return err == nil && strings.HasSuffix(string(said), "\n")
		}, func() string { return "invite prints no line" })
	}}
	return p, func() { <-ended }
}
