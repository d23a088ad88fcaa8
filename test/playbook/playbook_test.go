package playbook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/run/control"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// patience bounds the waits for something that must happen.
const patience = 2 * time.Minute

// target is the port on which each host echoes.
const target = 9000

// secret is the content of a file that no output may have.
const secret = "correct-horse-battery-staple"

// fleet is sites of the inventory on a switch, the hosts' namespaces by their inventory names:
//
//	site-1 10.20.0.1 ─┐          ┌─ site-2b 10.20.0.3  (site-2/b)
//	site-2a 10.20.0.2 ┼─ switch ─┤
//	 (site-2/a)       │          └─ site-3  10.20.0.4
//
// A site's clients reach the echo of site N at port 7000+N of their own relay.
type fleet struct {
	*Sites
	t       *testing.T
	program string
	hosts   map[string]*hosts.Host
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	nettest.RequireSandbox(t)
	nettest.RequireProgram(t, "ansible-playbook", "ansible-core")
	nettest.RequireProgram(t, "ssh", "openssh-client")
	dir, err := os.MkdirTemp("", "lh") // short, for sockets
	nettest.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sites, err := New(dir, filepath.Join(dir, "{{ inventory_hostname }}", "longhaul"))
	nettest.Must(t, err)
	f := &fleet{sites, t, nettest.Longhaul(t), map[string]*hosts.Host{}}
	f.All["ansible_python_interpreter"] = f.german()
	f.All["longhaul_binary"] = f.program
	for _, name := range []string{"service", "upgrade", "restart", "prove", "check"} {
		f.All["longhaul_"+name] = "false" // as -e longhaul_NAME=false gives it
	}
	f.All["longhaul_secrets"] = Vars{"token": secret}
	sw := f.host("switch")
	for i, h := range []struct{ host, name string }{{"site-1", "site-1"}, {"site-2a", "site-2/a"}, {"site-2b", "site-2/b"}, {"site-3", "site-3"}} {
		site, _, _ := strings.Cut(strings.TrimPrefix(h.name, "site-"), "/")
		address := fmt.Sprintf("10.20.0.%d", i+1)
		f.Hosts[h.host] = Vars{"longhaul_name": h.name, "longhaul_address": address, "longhaul_services": []Vars{{
			"name": "echo-" + site,
			"far":  Vars{"listen": ":6000", "forward": fmt.Sprintf("127.0.0.1:%d", target)},
			"near": Vars{"listen": "127.0.0.1:700" + site},
		}}}
		host := f.host(h.host)
		f.hosts[h.host] = host
		nettest.Must(t, os.Mkdir(f.Path(h.host, ""), 0o755)) // where the role puts the program
		nettest.Must(t, hosts.Cable(host, "eth0", sw, h.host, 1500))
		nettest.Must(t, host.Address("eth0", netip.PrefixFrom(netip.MustParseAddr(address), 24)))
		l, err := host.ListenTCP(t.Context(), target)
		nettest.Must(t, err)
		t.Cleanup(func() { l.Close() })
		go echo(l)
	}
	nettest.Must(t, sw.Switch("switch", slices.Collect(maps.Keys(f.hosts))...))
	return f
}

// german is a Python whose errors are in German unless LC_ALL is C, as on a host with that locale.
func (f *fleet) german() string {
	f.t.Helper()
	nettest.Must(f.t, os.Mkdir(f.Path("german", ""), 0o755))
	nettest.Must(f.t, os.WriteFile(f.Path("german", "sitecustomize.py"), []byte(`import subprocess

popen = subprocess.Popen.__init__

def init(*args, **kwargs):
    try:
        popen(*args, **kwargs)
    except FileNotFoundError as e:
        e.strerror = "Datei oder Verzeichnis nicht gefunden"
        raise

subprocess.Popen.__init__ = init
`), 0o644))
	python := f.Path("german", "python3")
	nettest.Must(f.t, os.WriteFile(python, fmt.Appendf(nil,
		"#!/bin/sh\n[ \"$LC_ALL\" = C ] || export PYTHONPATH=%s\nexec /usr/bin/python3 \"$@\"\n", f.Path("german", "")), 0o755))
	return python
}

func (f *fleet) host(name string) *hosts.Host {
	f.t.Helper()
	h, err := hosts.New(name)
	nettest.Must(f.t, err)
	f.t.Cleanup(h.Close)
	return h
}

func echo(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}()
	}
}

// run runs a command line of the README, which must end with a status.
func (f *fleet) run(status int, line string, more ...string) *Outcome {
	f.t.Helper()
	o, err := f.Run(f.t.Context(), append(strings.Fields(line)[1:], more...)...)
	nettest.Must(f.t, err)
	if o.Status != status {
		f.t.Fatalf("%s ends with %d, want %d:\n%s", line, o.Status, status, o.Output)
	}
	if strings.Contains(o.Output, secret) {
		f.t.Fatalf("%s shows a secret:\n%s", line, o.Output)
	}
	return o
}

// The command lines of packaging/ansible/README.md.
const (
	check   = "ansible-playbook -i inventory.yaml site.yaml --check --diff"
	site    = "ansible-playbook -i inventory.yaml site.yaml"
	upgrade = "ansible-playbook -i inventory.yaml upgrade.yaml -e longhaul_binary=./longhaul-new"
	rotate  = "ansible-playbook -i inventory.yaml rotate.yaml --limit site-1"
)

// again runs site.yaml, which must change nothing.
func (f *fleet) again() {
	f.t.Helper()
	if o := f.run(0, site); o.Changed() != 0 || len(o.Hosts) != len(f.Hosts) {
		f.t.Fatalf("the second run has %d changes on %d hosts:\n%s", o.Changed(), len(o.Hosts), o.Output)
	}
}

// unchanged fails unless all files are as before.
func (f *fleet) unchanged(before map[string]string) {
	f.t.Helper()
	after, err := f.Files()
	nettest.Must(f.t, err)
	if !maps.Equal(before, after) {
		f.t.Fatalf("files differ: %v before, %v after", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	}
}

func (f *fleet) files() map[string]string {
	f.t.Helper()
	all, err := f.Files()
	nettest.Must(f.t, err)
	return all
}

// startOn starts a host's relay. What it returns kills it.
func (f *fleet) startOn(name string) (kill func()) {
	f.t.Helper()
	cmd := exec.Command(f.Path(name, "longhaul"), "relay", "--config", f.Path(name, "etc/longhaul.yaml"))
	cmd.Stderr = os.Stderr
	nettest.Must(f.t, f.hosts[name].Start(cmd))
	kill = func() {
		if pid := f.pid(name); pid > 0 && pid != cmd.Process.Pid { // after an upgrade
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	f.t.Cleanup(kill)
	return kill
}

// pid is the process of a host's relay, 0 if none answers.
func (f *fleet) pid(host string) int {
	pid, _ := control.PIDOf(f.t.Context(), f.Path(host, "control.sock"))
	return pid
}

// dial connects to a port of a host from the host.
func (f *fleet) dial(host string, port int) *net.TCPConn {
	f.t.Helper()
	conn, err := f.hosts[host].DialTCP(f.t.Context(), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)), patience)
	nettest.Must(f.t, err)
	nettest.Must(f.t, conn.SetDeadline(time.Now().Add(patience)))
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// transfer sends bytes to a site's echo and takes them back.
func (f *fleet) transfer(from string, port int) {
	f.t.Helper()
	conn := f.dial(from, port)
	sent := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(port)}).Read(sent)
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		failed <- errors.Join(err, conn.CloseWrite())
	}()
	got, err := io.ReadAll(conn)
	if err = errors.Join(err, <-failed); err != nil || !bytes.Equal(got, sent) {
		f.t.Fatalf("%s to port %d: %d of %d bytes come back, %v", from, port, len(got), len(sent), err)
	}
}

// alive echoes a byte over a flow that stands.
func alive(t *testing.T, conn net.Conn) {
	t.Helper()
	nettest.Must(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err := conn.Write([]byte{'x'})
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	if err != nil {
		t.Fatal("the flow that stood is gone: ", err)
	}
}

// peers are the names of a host's peers.
func (f *fleet) peers(host string) (names []string) {
	f.t.Helper()
	peers, err := identity.New(f.Path(host, "keys")).Peers()
	nettest.Must(f.t, err)
	for _, p := range peers {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

func (f *fleet) expectPeers(host string, want ...string) {
	f.t.Helper()
	if got := f.peers(host); !slices.Equal(got, want) {
		f.t.Fatalf("%s has the peers %v, want %v", host, got, want)
	}
}

// TestRole leads relays on four hosts through the life of a fleet, by the commands of the README in
// their order.
func TestRole(t *testing.T) {
	f := newFleet(t)
	readme, err := os.ReadFile("../../packaging/ansible/README.md")
	nettest.Must(t, err)
	if lines := regexp.MustCompile(`(?m)^    (ansible-playbook .*)$`).FindAllString(string(readme), -1); !slices.Equal(lines,
		[]string{"    " + check, "    " + site, "    " + rotate, "    " + site, "    " + upgrade}) {
		t.Errorf("this test does not run the commands of the README: %q", lines)
	}

	// A check of hosts that have nothing, not even the program that checks a configuration.
	if o := f.run(0, check); strings.Contains(o.Output, "+# Ansible writes this file") || len(o.Hosts) != 4 || o.Changed() < 4 {
		t.Errorf("a check of hosts without longhaul:\n%s", o.Output)
	}
	f.unchanged(map[string]string{})

	o := f.run(0, site)
	for host := range f.Hosts {
		if o.Hosts[host].Changed < 2 {
			t.Fatalf("no change on %s:\n%s", host, o.Output)
		}
	}
	f.expectPeers("site-1", "site-2/a", "site-2/b", "site-3")
	f.expectPeers("site-2a", "site-1", "site-3")
	if info, err := os.Stat(f.Path("site-1", "etc/token")); err != nil || info.Mode() != 0o600 || f.files()[f.Path("site-1", "etc/token")] != secret {
		t.Errorf("the secret: %v, %v", info, err)
	}
	delete(f.All, "longhaul_secrets")
	kill := map[string]func(){}
	for host := range f.Hosts {
		kill[host] = f.startOn(host)
	}
	f.All["longhaul_prove"], f.All["longhaul_check"] = true, true
	f.again()
	f.All["longhaul_check"] = false
	for _, way := range []struct {
		from string
		port int
	}{{"site-1", 7002}, {"site-1", 7003}, {"site-2a", 7003}, {"site-2b", 7001}, {"site-3", 7002}} {
		f.transfer(way.from, way.port)
	}
	held := f.dial("site-1", 7002)
	alive(t, held)

	// A mistyped key stops before anything is replaced, and says what was meant.
	before := f.files()
	settings := f.All["longhaul_settings"].(Vars)
	settings["wrokers"] = 2
	o = f.run(2, site)
	for _, words := range []string{"etc/longhaul.yaml:", "unknown key wrokers", "did you mean workers?"} {
		if !strings.Contains(o.Output, words) {
			t.Errorf("the run does not say %q:\n%s", words, o.Output)
		}
	}
	f.unchanged(before)
	delete(settings, "wrokers")

	// A file that is valid, and that the relay cannot put into force: it gets its file back.
	settings["http_listen"] = fmt.Sprintf("0.0.0.0:%d", target)
	if o = f.run(2, site); !strings.Contains(o.Output, "address already in use") {
		t.Errorf("the run does not say why the relay refuses:\n%s", o.Output)
	}
	f.unchanged(before)
	delete(settings, "http_listen")

	// A host that cannot be reached stops no other and stays their peer.
	f.All["longhaul_tunnels"] = []Vars{{"name": "extra", "listen": "127.0.0.1:7100", "forward": fmt.Sprintf("127.0.0.1:%d", target)}}
	if o = f.run(0, check); strings.Count(o.Output, "127.0.0.1:7100") != 4 || o.Changed() != 4 {
		t.Errorf("a check shows no difference:\n%s", o.Output)
	}
	f.unchanged(before)
	local := f.Hosts["site-3"]
	f.Hosts["site-3"] = maps.Clone(local)
	maps.Copy(f.Hosts["site-3"], Vars{"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1})
	kill["site-3"]()
	ready := func() error {
		return exec.Command(f.program, "ready", "--control-socket", f.Path("site-1", "control.sock")).Run()
	}
	nettest.Eventually(t, patience, func() bool { return ready() != nil }, func() string { return "site-1 has a session to site-3" })
	o = f.run(4, site)
	if o.Hosts["site-3"].Unreachable != 1 || o.Hosts["site-1"].Changed == 0 || o.Hosts["site-2b"].Changed == 0 {
		t.Fatalf("beside a host that cannot be reached:\n%s", o.Output)
	}
	f.transfer("site-1", 7100)
	f.expectPeers("site-1", "site-2/a", "site-2/b", "site-3")
	alive(t, held)
	f.Hosts["site-3"] = local
	f.startOn("site-3")
	nettest.Eventually(t, patience, func() bool { return ready() == nil }, func() string { return "site-1 has no session to site-3" })
	f.run(0, site, "--limit", "site-3")

	// A second key.
	keys := func() []identity.PublicKey {
		peers, err := identity.New(f.Path("site-3", "keys")).Peers()
		nettest.Must(t, err)
		return peers[slices.IndexFunc(peers, func(p identity.Peer) bool { return p.Name == "site-1" })].Keys
	}
	former := keys()[0]
	f.run(0, rotate)
	nettest.Eventually(t, patience, func() bool { return keys()[0] != former },
		func() string { return fmt.Sprintf("site-3 has the keys %v of site-1", keys()) })
	nettest.Eventually(t, patience, func() bool {
		_, next, _, err := identity.New(f.Path("site-1", "keys")).Key()
		return err == nil && next.IsZero()
	}, func() string { return "site-1 does not drop its former key" })
	if o = f.run(0, site); len(keys()) != 1 || !strings.Contains(f.files()[f.Path("", "peers.yaml")], keys()[0].String()) {
		t.Fatalf("after a rotation:\n%s", o.Output)
	}
	alive(t, held)

	// Another program, host by host.
	program, err := os.ReadFile(f.program)
	nettest.Must(t, err)
	nettest.Must(t, os.WriteFile(f.Path("", "longhaul-new"), append(program, "new"...), 0o755))
	// On one of them the copy is there, from a run whose hand-over failed.
	nettest.Must(t, os.WriteFile(f.Path("site-3", "copied"), append(program, "new"...), 0o755))
	nettest.Must(t, os.Rename(f.Path("site-3", "copied"), f.Path("site-3", "longhaul")))
	pids := map[string]int{}
	for host := range f.Hosts {
		pids[host] = f.pid(host)
	}
	o = f.run(0, upgrade)
	if plays := strings.Count(o.Output, "\nPLAY ["); plays != 4 {
		t.Errorf("%d hosts one after the other:\n%s", plays, o.Output)
	}
	for host, former := range pids {
		if now := f.pid(host); now == former || now == 0 {
			t.Errorf("process %d has not taken over from %d on %s:\n%s", now, former, host, o.Output)
		}
	}
	alive(t, held)
	f.transfer("site-3", 7002)

	// Two hosts of one name.
	before = f.files()
	f.Hosts["site-3"]["longhaul_name"] = "site-1"
	if o = f.run(2, site, "--limit", "site-1"); !strings.Contains(o.Output, "two hosts have the same longhaul_name") {
		t.Errorf("the run does not say what is wrong:\n%s", o.Output)
	}
	f.unchanged(before)
	f.Hosts["site-3"]["longhaul_name"] = "site-3"

	// Hub and spokes.
	f.All["longhaul_hubs"] = []string{"site-1"}
	f.run(0, site)
	f.expectPeers("site-1", "site-2/a", "site-2/b", "site-3")
	f.expectPeers("site-2b", "site-1")
	f.expectPeers("site-3", "site-1")
	f.transfer("site-3", 7001)

	// A site that leaves the inventory is nobody's peer.
	left := f.dial("site-1", 7003)
	alive(t, left)
	delete(f.Hosts, "site-3")
	f.run(0, site)
	f.expectPeers("site-1", "site-2/a", "site-2/b")
	if list := f.files()[f.Path("", "peers.yaml")]; strings.Contains(list, "site-3") {
		t.Errorf("the list of keys has a site that left:\n%s", list)
	}
	if _, err := io.ReadAll(left); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the flow to a site that left: %v", err)
	}
	f.again()
}
