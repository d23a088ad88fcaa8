package intercept

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// daemon runs a program on the router until the test ends, in mounts of its own: prepare
// is a shell's line that makes them.
func (s *site) daemon(prepare string, environment []string, program ...string) {
	s.t.Helper()
	nettest.RequireProgram(s.t, "unshare", "util-linux")
	line := prepare + ` exec "$@"`
	cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "/bin/sh", "-ec", line, "sh"}, program...)...)
	cmd.Env = append(append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin"), environment...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(s.t, s.R.Start(cmd))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(patience):
			s.t.Errorf("%s does not end", program[0])
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
		if s.t.Failed() {
			s.t.Logf("%s said:\n%s", program[0], out.String())
		}
	})
}

// answers waits until a command on the router succeeds.
func (s *site) answers(what string, environment []string, command ...string) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = append(os.Environ(), environment...)
		return s.R.Start(cmd) == nil && cmd.Wait() == nil
	}, func() string { return what + " does not answer" })
}

// check is the sentence of Check, empty without a collision.
func (s *site) check(o Options) string {
	if err := s.on(func(h *Host) error { return h.Check(o) }); err != nil {
		return remedy.Line(err)
	}
	return ""
}

// works expects that the check finds nothing, that the relay intercepts, and that
// connections go directly without it.
func (s *site) works(o Options) {
	s.t.Helper()
	if said := s.check(o); said != "" {
		s.t.Fatalf("the check says %s", said)
	}
	s.set(o)
	stop := s.relay(o.Tunnels[0])
	s.expect(byRelay, 5000)
	stop()
	s.expect(direct, 5000)
}

// firewalld runs firewalld itself, and returns what runs a command for it.
func (s *site) firewalld() (firewall func(command string)) {
	t := s.t
	t.Helper()
	nettest.RequireRoot(t) // the bus raises its limit of descriptors
	nettest.RequireProgram(t, "nft", "nftables")
	nettest.RequireProgram(t, "firewalld", "firewalld")
	nettest.RequireProgram(t, "dbus-daemon", "dbus")
	dir := t.TempDir()
	bus := "DBUS_SYSTEM_BUS_ADDRESS=unix:path=" + filepath.Join(dir, "bus")
	must(t, os.WriteFile(filepath.Join(dir, "bus.conf"), []byte(`<busconfig><type>system</type>
<listen>unix:path=`+filepath.Join(dir, "bus")+`</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy></busconfig>`), 0o600))
	s.daemon("", nil, "dbus-daemon", "--nofork", "--nopidfile", "--config-file="+filepath.Join(dir, "bus.conf"))
	s.answers("the bus", []string{bus}, "dbus-send", "--bus="+strings.TrimPrefix(bus, "DBUS_SYSTEM_BUS_ADDRESS="), "--print-reply",
		"--dest=org.freedesktop.DBus", "/", "org.freedesktop.DBus.ListNames")
	s.daemon("", []string{bus}, "firewalld", "--nofork", "--nopid", "--system-config="+filepath.Join(dir, "etc"), "--log-file="+filepath.Join(dir, "log"))
	s.answers("firewalld", []string{bus}, "firewall-cmd", "--state")
	return func(command string) { s.t.Helper(); s.run("export " + bus + "; " + command) }
}

// TestBesideFirewalld runs firewalld itself, with its zones and its reload.
func TestBesideFirewalld(t *testing.T) {
	s := newSite(t)
	firewall := s.firewalld()
	o := options()
	t.Run("the remedy", func(t *testing.T) {
		s.t = t
		// firewalld puts interfaces that nobody assigned into the zone public.
		for _, family := range []string{"ipv4", "ipv6"} {
			said := s.check(o)
			command, found := strings.CutPrefix(said, "the nftables chain inet firewalld filter_INPUT drops connections that tunnel to-b intercepts; ")
			command, _, cut := strings.Cut(command, ", likewise")
			if !found || !cut || !strings.Contains(command, family) {
				t.Fatalf("the check says %q", said)
			}
			firewall(command + "; firewall-cmd --reload")
		}
		if said := s.check(o); said != "" {
			t.Errorf("after the remedy: %s", said)
		}
		s.set(o)
		defer s.relay(o.Tunnels[0])()
		s.expect(byRelay, 5000)
	})
	t.Run("the trusted zone", func(t *testing.T) {
		s.t = t
		firewall("firewall-cmd --permanent --zone=trusted --change-interface=left; firewall-cmd --permanent --zone=external --change-interface=right; firewall-cmd --reload")
		if said := s.check(o); said != "" {
			t.Errorf("in the zone trusted: %s", said)
		}
		s.set(o)
		stop := s.relay(o.Tunnels[0])
		// external masquerades IPv4: the target sees the router.
		s.masqueraded(byRelay)
		firewall("firewall-cmd --reload")
		s.masqueraded(byRelay)
		stop()
		s.masqueraded(direct)
	})
	s.t = t
}

// masqueraded makes a connection for each family, and checks that it goes that way.
func (s *site) masqueraded(want way) {
	s.t.Helper()
	for _, target := range targets {
		before := s.relayed.Load()
		if _, _, err := s.exchange(target, 5000, 1<<20); err != nil {
			s.t.Errorf("to %s: %v\n%s", target, err, s.run("nft list ruleset"))
		} else if got := way(s.relayed.Load() > before); got != want {
			s.t.Errorf("to %s by the relay: %v, want %v", target, got, want)
		}
	}
}

// docker runs Docker's daemon itself on the router.
func (s *site) docker() {
	s.t.Helper()
	nettest.RequireRoot(s.t) // dockerd gives its socket to a group
	nettest.RequireProgram(s.t, "nft", "nftables")
	nettest.RequireProgram(s.t, "iptables", "iptables")
	nettest.RequireProgram(s.t, "dockerd", "docker.io")
	socket := filepath.Join(s.t.TempDir(), "d")
	s.daemon(`mount -t tmpfs tmpfs /run; for d in docker containerd; do mkdir -p /var/lib/$d; mount -t tmpfs tmpfs /var/lib/$d; done;`, nil,
		"dockerd", "--storage-driver=vfs", "--host=unix://"+socket)
	s.answers("Docker's chains", nil, "nft", "list", "chain", "ip", "filter", "DOCKER-USER")
	// It listens when its rules are complete.
	nettest.Eventually(s.t, patience, func() bool {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		defer c.Close()
		_, err = fmt.Fprint(c, "GET /_ping HTTP/1.0\r\n\r\n")
		answer, _ := io.ReadAll(c)
		return err == nil && bytes.Contains(answer, []byte("200 OK"))
	}, func() string { return "Docker does not answer" })
}

// TestBesideDocker runs Docker's daemon itself on the router.
func TestBesideDocker(t *testing.T) {
	s := newSite(t)
	s.docker()
	o := options()
	s.works(o)
}

// ufw returns what runs a command for ufw. Its settings are those of the test, and not the
// machine's.
func (s *site) ufw() (ufw func(command string)) {
	s.t.Helper()
	nettest.RequireRoot(s.t) // only root reads ufw's rules
	nettest.RequireProgram(s.t, "nft", "nftables")
	nettest.RequireProgram(s.t, "ufw", "ufw")
	dir := s.t.TempDir()
	s.run(`cp -a /etc/ufw "$1/etc"; cp /etc/default/ufw "$1/default"`, dir)
	return func(command string) {
		s.t.Helper()
		s.run(`exec unshare --mount --propagation private /bin/sh -ec '
			mount --bind "$1/etc" /etc/ufw; mount --bind "$1/default" /etc/default/ufw; mount -t tmpfs tmpfs /run
			eval "$2"' sh "$1" "$2"`, dir, command)
	}
}

// TestBesideUFW runs ufw's rules, whose default is to refuse what comes in.
func TestBesideUFW(t *testing.T) {
	s := newSite(t)
	ufw := s.ufw()
	ufw("ufw default allow routed; ufw --force enable")
	o := options()
	for _, six := range []string{"", "6"} {
		said := s.check(o)
		command, found := strings.CutPrefix(said, "the nftables chain ip"+six+" filter INPUT drops connections that tunnel to-b intercepts; ")
		if !found {
			t.Fatalf("the check says %q", said)
		}
		ufw(strings.Replace(command, ", then ", "; ", 1))
	}
	s.works(o)
}

// TestBesideKubeProxy has the kinds of rules that kube-proxy keeps in its iptables mode:
// a mark that masquerades, translation of a service's address, and no invalid packets.
func TestBesideKubeProxy(t *testing.T) {
	s := newSite(t)
	nettest.RequireProgram(t, "nft", "nftables")
	nettest.RequireProgram(t, "iptables-restore", "iptables")
	for _, family := range []struct{ restore, service, endpoint string }{
		{"iptables-restore", "10.96.0.10/32", "10.9.2.2:5000"}, {"ip6tables-restore", "fd96::10/128", "[fd09:2::2]:5000"},
	} {
		s.run(`printf %s "$2" | `+family.restore, "", `*filter
:KUBE-FORWARD - [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A FORWARD -j KUBE-FORWARD
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SEP-A - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -d `+family.service+` -p tcp -m tcp --dport 80 -j KUBE-SEP-A
-A KUBE-SEP-A -j KUBE-MARK-MASQ
-A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination `+family.endpoint+`
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
`)
	}
	o := options()
	s.works(o)
	must(t, s.on(func(h *Host) error { return h.Clear(o.Relay) }))
	o.Mark = 0x4000
	if said := s.check(o); !strings.Contains(said, "uses the mark 0x4000; choose another bit") {
		t.Errorf("with kube-proxy's mark the check says %q", said)
	}
}
