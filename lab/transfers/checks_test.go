package transfers

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/test/nettest"
)

// TestProgramsSeeNoChecks: MariaDB, PostgreSQL and sshd see no connection of health checks, on their
// own network and 200 ms away. At each site one relay checks them by connect, and another one, of the
// same process, asks it end-to-end. A relay that gets no processor for 200 ms completes a handshake.
func TestProgramsSeeNoChecks(t *testing.T) {
	nettest.RequireRoot(t)
	client := nettest.RequireProgram(t, "mariadb", "mariadb-client")
	s := newSitesOver(t, 200*time.Millisecond)
	database := s.mariadb()
	_, postgresLog := s.postgresWithLog()
	key, err := startSSHD(s.ctx, s.Stage, "host-b")
	nettest.Must(t, err)
	sshLog := filepath.Dir(key) + "/log"
	s.spawn("host-b", 2222, lab.FindProgram("sshd"), "-D", "-E", sshLog, "-f", filepath.Dir(key)+"/sshd_config", "-p", "2222")

	const checks = 50 // of each tunnel
	file := filepath.Join(t.TempDir(), "key")
	s.must("relay-a", nil, s.Program, "check", "--new-key", file)
	var config strings.Builder
	config.WriteString("tunnels:\n")
	const health = "interval: 100ms, timeout: 10s, fall: 1"
	ports := []uint16{3306, 5432, 2222}
	for i, port := range ports {
		fmt.Fprintf(&config, "  - {name: far%d, listen: \"127.0.0.1:%d\", forward: %q, check: {key_file: %q, next: target}, health: {check: connect, %s}}\n",
			port, 6000+i, netip.AddrPortFrom(lab.HostB, port), file, health)
		fmt.Fprintf(&config, "  - {name: near%d, listen: \"127.0.0.1:%d\", forward: \"127.0.0.1:%d\", check: {key_file: %q, next: relay}, health: {check: end-to-end, %s}}\n",
			port, 7000+i, 6000+i, file, health)
	}
	sockets := map[string]string{}
	for _, host := range []string{"relay-a", "relay-b"} {
		dir := t.TempDir()
		nettest.Must(t, os.WriteFile(dir+"/relay.yaml", []byte(config.String()), 0o600))
		sockets[host] = dir + "/s"
		s.spawn(host, 7000, s.Program, "relay", "-c", dir+"/relay.yaml", "--control-socket", sockets[host])
	}
	before := strings.Count(contents(t, postgresLog), "connection received")
	for host, socket := range sockets {
		for _, port := range ports {
			nettest.Eventually(t, 2*time.Minute, func() bool {
				shown := s.must(host, nil, s.Program, "status", "--json", "--control-socket", socket)
				return checksOf(t, shown, fmt.Sprintf("far%d", port)) >= checks
			}, func() string { return fmt.Sprintf("%s does not check port %d so often", host, port) })
		}
	}
	aborted := s.must("host-b", nil, client, "-S", database+"/s", "-uroot", "-Nse", "show global status like 'Aborted_connects'")
	cached := s.must("host-b", nil, client, "-S", database+"/s", "-uroot", "-Nse", "select ip, sum_connect_errors from performance_schema.host_cache")
	received := strings.Count(contents(t, postgresLog), "connection received") - before
	logged := strings.Count(contents(t, sshLog), " 10.")
	t.Logf("of %d end-to-end checks each, and those by connect: MariaDB %q, its host cache %q; PostgreSQL %d connections; sshd %d lines",
		len(sockets)*checks, aborted, cached, received, logged)
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(aborted, "Aborted_connects")))
	if err != nil || n > checks/10 || received > checks/10 || logged > checks/10 {
		t.Errorf("the programs have seen checks: MariaDB %d (%v), PostgreSQL %d, sshd %d", n, err, received, logged)
	}
}

// checksOf is the number of checks that a tunnel has answered, from a relay's status.
func checksOf(t *testing.T, status, tunnel string) int64 {
	t.Helper()
	var shown struct {
		Tunnels []struct {
			Name   string `json:"name"`
			Checks int64  `json:"checks_total"`
		} `json:"tunnels"`
	}
	nettest.Must(t, json.Unmarshal([]byte(status), &shown))
	for _, one := range shown.Tunnels {
		if one.Name == tunnel {
			return one.Checks
		}
	}
	return 0
}

func contents(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	nettest.Must(t, err)
	return string(text)
}

// mariadb starts a server at host-b that blocks a host after five aborted connects, and returns its
// directory with the socket s.
func (s *sites) mariadb() (dir string) {
	s.t.Helper()
	install := nettest.RequireProgram(s.t, "mariadb-install-db", "mariadb-server")
	server := nettest.RequireProgram(s.t, "mariadbd", "mariadb-server")
	dir, err := os.MkdirTemp("/run", "my-")
	nettest.Must(s.t, err)
	s.must("host-b", nil, "chown", "mysql", dir)
	s.must("host-b", nil, install, "--no-defaults", "--user=mysql", "--datadir="+dir+"/data", "--auth-root-authentication-method=normal")
	s.spawn("host-b", 3306, server, "--no-defaults", "--user=mysql", "--datadir="+dir+"/data", "--socket="+dir+"/s", "--pid-file="+dir+"/pid",
		"--bind-address=0.0.0.0", "--performance-schema=ON", "--max-connect-errors=5", "--skip-name-resolve=0")
	return dir
}
