package transfers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/test/nettest"
)

// TestBINDSecondary holds docs/protocols.md: BIND asks for the SOA by UDP and never transfers
// through a listening tunnel, unless its configuration has tcp-only for the relay.
func TestBINDSecondary(t *testing.T) {
	t.Parallel()
	nettest.RequireRoot(t)
	named := nettest.RequireProgram(t, "named", "bind9")
	s := newSites(t)
	const zone = "example.test"
	start := func(host, address, text string) (dir string) {
		dir = t.TempDir()
		nettest.Must(t, os.WriteFile(filepath.Join(dir, "zone"), []byte("$TTL 300\n@ SOA ns a 1 30 10 3600 60\n@ NS ns\nns A 192.0.2.1\n"), 0o644))
		config := strings.NewReplacer("DIR", dir, "ADDRESS", address, "REST", text).Replace(`
options {
	directory "DIR"; pid-file "DIR/pid"; session-keyfile "DIR/key"; managed-keys-directory "DIR";
	listen-on { ADDRESS; }; listen-on-v6 { none; }; recursion no; notify no; allow-transfer { any; };
};
controls { };
REST
`)
		nettest.Must(t, os.WriteFile(filepath.Join(dir, "named.conf"), []byte(config), 0o644))
		s.spawn(host, 53, named, "-f", "-L", filepath.Join(dir, "log"), "-c", filepath.Join(dir, "named.conf"))
		return dir
	}
	start("host-b", lab.HostB.String(), `zone "`+zone+`" { type primary; file "zone"; };`)
	s.relay(53)
	secondary := fmt.Sprintf(`zone %q { type secondary; file "copy"; primaries { %s port %d; }; };`, zone, lab.RelayA, lab.RelayPort)
	waitFor := func(dir, text string) {
		t.Helper()
		var log []byte
		nettest.Eventually(t, time.Minute, func() bool {
			log, _ = os.ReadFile(filepath.Join(dir, "log"))
			return strings.Contains(string(log), text)
		}, func() string { return fmt.Sprintf("the log lacks %q:\n%s", text, log) })
	}
	plain := start("host-a", lab.HostA.String(), secondary)
	waitFor(plain, "refresh: failure trying primary "+lab.RelayA.String())
	if _, err := os.Stat(filepath.Join(plain, "copy")); err == nil {
		t.Error("BIND asked by TCP: docs/protocols.md says that it does not")
	}
	s.kill(s.daemonOn("host-a"))
	asked := start("host-a", lab.HostA.String(), fmt.Sprintf("server %s { tcp-only yes; };\n", lab.RelayA)+secondary)
	waitFor(asked, "zone "+zone+"/IN: transferred serial 1")
}

// TestFTP holds docs/protocols.md: the passive mode passes tunnels for its ports, and a server
// refuses the active mode, as it comes for another address.
func TestFTP(t *testing.T) {
	t.Parallel()
	nettest.RequireRoot(t)
	vsftpd := nettest.RequireProgram(t, "vsftpd", "vsftpd")
	curl := nettest.RequireProgram(t, "curl", "curl")
	s := newSites(t)
	data, sum := randomFile(t, miB)
	root, empty := t.TempDir(), t.TempDir()
	text, err := os.ReadFile(data)
	nettest.Must(t, err)
	nettest.Must(t, os.WriteFile(filepath.Join(root, "f"), text, 0o644))
	for _, dir := range []string{root, empty, filepath.Dir(root)} {
		nettest.Must(t, os.Chmod(dir, 0o555)) // vsftpd refuses a root that its user may write to
	}
	t.Cleanup(func() { os.Chmod(filepath.Dir(root), 0o755) })
	config := filepath.Join(t.TempDir(), "vsftpd.conf")
	nettest.Must(t, os.WriteFile(config, []byte("listen=YES\nlisten_ipv6=NO\nanonymous_enable=YES\nlocal_enable=NO\nbackground=NO\nseccomp_sandbox=NO\n"+
		"anon_root="+root+"\nsecure_chroot_dir="+empty+"\npasv_min_port=50000\npasv_max_port=50010\n"), 0o644))
	s.spawn("host-b", 21, vsftpd, config)
	s.spawn("relay-a", 21, s.Program, "relay", "--config", relayConfig(t, fmt.Sprintf(`
  - {name: ftp, listen: "%[1]v:21", forward: "%[2]v:21"}
  - {name: ftp-data, listen: "%[1]v:50000-50010", forward: "%[2]v:50000-50010"}
`, lab.RelayA, lab.HostB)))
	copied := filepath.Join(t.TempDir(), "copied")
	get := func(more ...string) error {
		_, err := s.run("host-a", nil, curl, append([]string{"-sS", "-o", copied, "ftp://" + lab.RelayA.String() + "/f"}, more...)...)
		return err
	}
	nettest.Must(t, get())
	if fileSum(t, copied) != sum {
		t.Error("the copy differs")
	}
	if err := get("-P", "-"); err == nil {
		t.Error("the active mode passes: docs/protocols.md says that the server refuses it")
	}
}

// relayConfig writes the configuration of a relay with some tunnels.
func relayConfig(t *testing.T, tunnels string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "relay.yaml")
	nettest.Must(t, os.WriteFile(path, []byte("control_socket: "+filepath.Join(dir, "c")+"\ntunnels:"+tunnels), 0o600))
	return path
}

// TestRedisCluster holds docs/protocols.md: a node answers with the address of another one,
// which passes the tunnel by; with the relay as the name that nodes announce, the client stays on it.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	nettest.RequireRoot(t)
	server := nettest.RequireProgram(t, "redis-server", "redis-server")
	cli := nettest.RequireProgram(t, "redis-cli", "redis-tools")
	s := newSites(t)
	create := []string{"--cluster", "create", "--cluster-yes"}
	for port := 7001; port <= 7003; port++ {
		dir := t.TempDir()
		s.spawn("host-b", uint16(port), server, "--port", fmt.Sprint(port), "--bind", lab.HostB.String(), "--dir", dir, "--save", "",
			"--protected-mode", "no", "--cluster-enabled", "yes", "--cluster-announce-hostname", lab.RelayA.String())
		create = append(create, fmt.Sprintf("%s:%d", lab.HostB, port))
	}
	s.must("host-b", nil, cli, create...)
	for port := 7001; port <= 7003; port++ { // each node finds by itself that the cluster is up
		state := func() string {
			return s.must("host-b", nil, cli, "-h", lab.HostB.String(), "-p", fmt.Sprint(port), "cluster", "info")
		}
		nettest.Eventually(t, time.Minute, func() bool { return strings.Contains(state(), "cluster_state:ok") }, state)
	}
	s.spawn("relay-a", 7001, s.Program, "relay", "--config", relayConfig(t, fmt.Sprintf(`
  - {name: redis, listen: "%v:7001-7003", forward: "%v:7001-7003"}
`, lab.RelayA, lab.HostB)))
	moved := func() (answer string) { // the key foo is on the third node
		nettest.Eventually(t, time.Minute, func() bool {
			answer = s.must("host-a", nil, cli, "-h", lab.RelayA.String(), "-p", "7001", "get", "foo")
			return strings.HasPrefix(answer, "MOVED ")
		}, func() string { return answer })
		return answer
	}
	if got, want := moved(), fmt.Sprintf("MOVED 12182 %v:7003", lab.HostB); !strings.HasPrefix(got, want) {
		t.Errorf("a node answers %q, want %q", got, want)
	}
	for port := 7001; port <= 7003; port++ {
		s.must("host-b", nil, cli, "-h", lab.HostB.String(), "-p", fmt.Sprint(port), "config", "set", "cluster-preferred-endpoint-type", "hostname")
	}
	if got, want := moved(), fmt.Sprintf("MOVED 12182 %v:7003", lab.RelayA); !strings.HasPrefix(got, want) {
		t.Errorf("a node answers %q, want %q", got, want)
	}
	if got := s.must("host-a", nil, cli, "-c", "-h", lab.RelayA.String(), "-p", "7001", "set", "foo", "bar"); strings.TrimSpace(got) != "OK" {
		t.Errorf("set by way of the relay: %q", got)
	}
}
