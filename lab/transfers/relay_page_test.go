package transfers

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// TestRelayPage executes every command of docs/relay.md in its order on two fresh hosts, as it is
// written, with these exceptions: service install gets --root, and installs into an empty
// directory; service status needs systemd, and packaging/checks/interception executes it.
func TestRelayPage(t *testing.T) {
	nettest.RequireRoot(t)
	nettest.RequireProgram(t, "curl", "curl")
	p := readPage(t, "docs/relay.md", "")
	s := newPageSites(t, t.TempDir())
	s.useProgram()
	database, err := s.Host("host-a").ListenTCP(s.ctx, 5432)
	nettest.Must(t, err)
	t.Cleanup(tcpserver.Serve(database, tcpserver.Echo))

	const columns = `\nTUNNEL         STATE       FLOWS/MAX  TOTAL     UP    DOWN DENIED LIMITED FAILED\n`
	s.follow(p, []place{
		{begins: "longhaul check main", prints: `^main: accepts: .* accepts`},
		{begins: "longhaul config check", prints: `^site-a.yaml: ok, [23] tunnels`},
		{begins: "longhaul stop --name trial", prints: `^process \d+ stopped after [\d.]+ s, every flow had ended\n$`},
		{begins: "longhaul stop", prints: `^process \d+ stopped after [\d.]+ s, every flow had ended\n$`},
		{begins: "longhaul check to-b && longhaul reload", prints: `^to-b: accepts: (?s:.*)\nno change: 3 tunnels as before\n$`},
		{begins: "longhaul check to-b", prints: `^to-b: accepts: .* accepts`, then: func(string) {
			s.execute(pageCommand{line: "scp -P 6000 -o HostKeyAlias=host-b my.data root@relay-a:/srv/", hosts: []string{"host-a"}})
			s.copied()
			s.fromB()
		}},
		{begins: "longhaul status --name trial", prints: columns + `main +untried +0/- `},
		{begins: "longhaul status", prints: columns + `to-b +up +\d/- +[1-9](?s:.*)\nfrom-b +up +\d/- +[1-9]`},
		{begins: "curl --unix-socket /run/longhaul/control.sock http://longhaul/v1/status", prints: `^\{"name":"control",`},
		{begins: "curl --unix-socket /run/longhaul/control.sock http://longhaul/v1/drain", prints: `^\{"tunnel":"to-b","drained":true,`},
		{begins: "curl --unix-socket /run/longhaul/control.sock http://longhaul/v1/resume", prints: `^\{"tunnel":"to-b","drained":false,`},
		{begins: "longhaul events", prints: `(?m)^\S+ \S+ +tunnel +to-b +untried -> up$`},
		{begins: "longhaul reload --dry-run", prints: `^no change: 3 tunnels as before\ndry run: nothing was changed\n$`},
		{begins: "longhaul reload --confirm", prints: `^no change: (?s:.*)\nunconfirmed: the relay goes back at .* unless longhaul reload confirms\n$`},
		{begins: "longhaul ready", prints: `^ready\n$`},
		{begins: "longhaul reload"},
		{begins: "longhaul service install", instead: func(c pageCommand) {
			s.execute(c.with("--root "+t.TempDir()), `(?m)^wrote /etc/systemd/system/longhaul.service$`)
		}},
		{begins: "longhaul service status", instead: func(pageCommand) {}},
	})
}

// fromB sends through the tunnel of the page that leads from site B to site A.
func (s *pageSites) fromB() {
	s.t.Helper()
	conn, err := s.Host("host-b").DialTCP(s.ctx, netip.MustParseAddrPort("10.10.10.20:7000"), time.Minute)
	nettest.Must(s.t, err)
	defer conn.Close()
	const sent = "to the database of site A"
	_, err = conn.Write([]byte(sent))
	nettest.Must(s.t, err)
	nettest.Must(s.t, conn.CloseWrite())
	if got, err := io.ReadAll(conn); string(got) != sent {
		s.t.Errorf("the database answers %q, %v", got, err)
	}
}
