package transfers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab"
	"longhaul/test/nettest"
)

// TestFleetPage executes every command of docs/fleet.md in its order, on host-a, with --timeout. The dashboards of
// relay-a and relay-b have TLS and a token, and host-a's resolver asks Knot. The last command finds
// that relay-b has ended.
func TestFleetPage(t *testing.T) {
	nettest.RequireRoot(t)
	knotd := nettest.RequireProgram(t, "knotd", "knot")
	p := readPage(t, "docs/fleet.md", "")
	resolveLocally(t) // before the hosts have mounts of their own
	s := newPageSites(t, t.TempDir())
	s.useProgram()
	const token = "a-token-that-is-long-enough"
	nettest.Must(t, os.WriteFile("relays.token", []byte(token+"\n"), 0o600))
	var authorities []byte
	relays := map[string]*lab.Daemon{}
	names := "relay-a.example.net " + lab.RelayA.String() + "\nrelay-b.example.net " + lab.RelayB.String() + "\n"
	for _, host := range []string{"relay-a", "relay-b"} {
		dir := t.TempDir()
		cert, key := nettest.Certificate(t, dir, host+".example.net")
		pem, err := os.ReadFile(cert)
		nettest.Must(t, err)
		authorities = append(authorities, pem...)
		config := filepath.Join(dir, "longhaul.yaml")
		folder, err := os.Getwd()
		nettest.Must(t, err)
		text := fmt.Sprintf("dashboard: {listen: \":9464\", tls_cert: %q, tls_key: %q, token_file: %q}\ntunnels: [{name: to-b, listen: \":6000\", forward: host-b:22}]\n",
			cert, key, filepath.Join(folder, "relays.token"))
		nettest.Must(t, os.WriteFile(config, []byte(text), 0o600))
		args := s.shellArgs(host, "exec longhaul relay --config "+config)
		relays[host], err = s.Start(s.ctx, host, 9464, args[0], args[1:]...)
		nettest.Must(t, err)
	}
	nettest.Must(t, os.WriteFile("relays.pem", authorities, 0o600))
	serveNames(s, knotd, names)

	// The machine may be busy.
	patient := func(c pageCommand) pageCommand { return c.with("--timeout 30s") }
	var last error
	nettest.Eventually(t, time.Minute, func() bool { // each relay has taken its first sample
		_, last = s.shell("host-a", "longhaul fleet status --srv _longhaul._tcp.example.net --token-file relays.token --ca relays.pem --timeout 30s")
		return last == nil
	}, func() string { return fmt.Sprint("not both relays are well: ", last) })

	const head = `RELAY   VERSION +STATE +TUNNELS PAIRS +UP DOWN FLOWS ALERTS LAG LOST\n`
	well := func(c pageCommand) {
		s.execute(patient(c), `^2 relays: 2 ok\n\n`+head+`relay-a \S+ +ok +1/1 +- +0 +0 +0 +0 +- +-\nrelay-b \S+ +ok +1/1 `)
	}
	s.follow(p, []place{
		{begins: "longhaul fleet status relays.yaml --json", instead: func(c pageCommand) {
			s.End(relays["relay-b"])
			said, err := s.shell("host-a", patient(c).line)
			if err == nil || !matches(`"well": false`, said) || !matches(`"state": "down",\n +"problem": "no connection to relay-b.example.net:9464: connection refused"`, said) {
				t.Errorf("%s: %v\n%s", c.line, err, said)
			}
			if strings.Contains(said, token) || err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("the token is in\n%s%v", said, err)
			}
		}},
		{begins: "longhaul fleet status relays.yaml", instead: well},
		{begins: "longhaul fleet status --srv ", instead: well},
	})
}

// resolveLocally has the hosts of the sandbox ask a DNS server on their own loopback addresses.
func resolveLocally(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	nettest.Must(t, os.WriteFile(file, []byte("nameserver 127.0.0.1\n"), 0o644))
	// Only this sandbox has the mount.
	nettest.Must(t, unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""))
	t.Cleanup(func() { nettest.Must(t, unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH)) })
}

// serveNames starts Knot on host-a with the page's SRV records. Each line is a name and its address.
func serveNames(s *pageSites, knotd, names string) {
	s.t.Helper()
	dir := s.t.TempDir()
	zone := "$ORIGIN example.net.\n$TTL 60\n@ SOA ns hostmaster 1 3600 600 864000 300\n@ NS ns\nns A 127.0.0.1\n"
	for line := range strings.Lines(names) {
		name, address, _ := strings.Cut(strings.TrimSpace(line), " ")
		zone += fmt.Sprintf("%s. A %s\n_longhaul._tcp SRV 0 0 9464 %[1]s.\n", name, address)
	}
	config := fmt.Sprintf("server:\n    rundir: %s\n    listen: 127.0.0.1@53\n    user: root\ndatabase:\n    storage: %[1]s/db\nzone:\n  - domain: example.net\n    storage: %[1]s\n    file: zone\n", dir)
	for path, text := range map[string]string{filepath.Join(dir, "zone"): zone, filepath.Join(dir, "knot.conf"): config} {
		nettest.Must(s.t, os.WriteFile(path, []byte(text), 0o644))
	}
	_, err := s.Start(s.ctx, "host-a", 53, knotd, "-c", filepath.Join(dir, "knot.conf"))
	nettest.Must(s.t, err)
}
