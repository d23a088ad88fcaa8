package faults

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/lab/hosts"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// site is a LAN of hosts, with the addresses of the examples in
// packaging/examples/ha:
//
//	client  10.10.10.10 ─┐          ┌─ relay-a1 10.10.10.21
//	balancer 10.10.10.20 ┼─ switch ─┤
//	relay-b 10.10.10.30 ─┘          └─ relay-a2 10.10.10.22
//
// relay-b stands for the way to the other site: it echoes. Where there is no
// balancer its address is virtual.
type site struct {
	t     *testing.T
	hosts map[string]*hosts.Host
	sw    *hosts.Host
}

var service = netip.MustParseAddrPort("10.10.10.20:6000")

func newSite(t *testing.T, withBalancer bool) *site {
	t.Helper()
	nettest.RequireSandbox(t)
	s := &site{t: t, hosts: map[string]*hosts.Host{}}
	var ports []string
	host := func(name string) *hosts.Host {
		h, err := hosts.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.Close)
		return h
	}
	s.sw = host("switch")
	for _, spec := range []struct{ name, address string }{
		{"client", "10.10.10.10/24"}, {"balancer", "10.10.10.20/24"},
		{"relay-a1", "10.10.10.21/24"}, {"relay-a2", "10.10.10.22/24"}, {"relay-b", "10.10.10.30/24"},
	} {
		if spec.name == "balancer" && !withBalancer {
			continue
		}
		h := host(spec.name)
		s.hosts[spec.name] = h
		if err := hosts.Cable(h, "eth0", s.sw, spec.name, 1500); err != nil {
			t.Fatal(err)
		}
		if err := h.Address("eth0", netip.MustParsePrefix(spec.address)); err != nil {
			t.Fatal(err)
		}
		ports = append(ports, spec.name)
	}
	if err := s.sw.Switch("switch", ports...); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	err := s.hosts["relay-b"].Do(func() (err error) {
		l, err = tcpscript.ListenOn("10.10.10.30:6000")(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	serveEcho(t, l)
	for name := range s.hosts {
		s.expectPath(name)
	}
	return s
}

// expectPath waits until a host reaches relay-b. It does not while the kernel's table of
// neighbours, one for all namespaces (gc_thresh3), is full of other tests' addresses.
func (s *site) expectPath(from string) {
	s.t.Helper()
	var last error
	nettest.Eventually(s.t, patience, func() bool {
		last = s.hosts[from].Do(func() error {
			ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
			defer cancel()
			c, err := tcpscript.DialTo("10.10.10.30:6000")(ctx)
			if err == nil {
				c.Close()
			}
			return err
		})
		return last == nil
	}, func() string { return fmt.Sprintf("%s does not reach relay-b: %v", from, last) })
}

// example reads a file of packaging/examples/ha, with other words in place of
// some, each of which must be there.
func example(t *testing.T, name string, other ...string) string {
	t.Helper()
	return exampleOf(t, "ha", name, other...)
}

// exampleOf is example for another folder of packaging/examples.
func exampleOf(t *testing.T, folder, name string, other ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../packaging/examples", folder, name))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i := 0; i < len(other); i += 2 {
		if !strings.Contains(text, other[i]) {
			t.Fatalf("%s does not have %q", name, other[i])
		}
		text = strings.ReplaceAll(text, other[i], other[i+1])
	}
	return text
}

// relay starts a relay of the site with an example as its configuration, and
// other words in place of some.
func (s *site) relay(name, config string, otherWords ...string) *daemon {
	s.t.Helper()
	text := example(s.t, config, append(otherWords, "relay-b.example.net", "10.10.10.30")...)
	return startDaemon(s.t, s.hosts[name], unsupervised, "control_socket: SOCKET\n"+text)
}

// peer is a program of others that runs on a host of the site.
type peer struct {
	cmd    *exec.Cmd
	log    *logText
	exited chan struct{}
}

func (s *site) start(host, path string, args ...string) *peer {
	s.t.Helper()
	p := &peer{cmd: exec.Command(path, args...), log: &logText{filepath.Join(s.t.TempDir(), "log")}, exited: make(chan struct{})}
	output, err := os.Create(p.log.path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer output.Close()
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has processes of its own
	if err := s.hosts[host].Start(p.cmd); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("%s on %s said:\n%s", filepath.Base(path), host, p.log)
		}
		p.kill()
	})
	return p
}

// kill ends it and all its processes at once.
func (p *peer) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.exited
}

func (p *peer) expectLog(t *testing.T, text string) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool { return strings.Contains(p.log.String(), text) }, func() string { return "it does not say " + text + "\n" + p.log.String() })
}

// dial connects from the client to the service.
func (s *site) dial(within time.Duration) dialFunc {
	return func(ctx context.Context) (c net.Conn, err error) {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		err = s.hosts["client"].Do(func() error {
			c, err = tcpscript.DialTo(service.String())(ctx)
			return err
		})
		return c, err
	}
}

// expectServed tries new connections, one after the other, until one echoes.
func (s *site) expectServed(when string) {
	s.t.Helper()
	const each = time.Second // one that gets no answer is given up, and the next is tried
	var last error
	nettest.Eventually(s.t, patience, func() bool {
		var h held
		if h, last = tryHold(s.t.Context(), s.dial(each), each); last == nil {
			h.Close()
		}
		return last == nil
	}, func() string { return fmt.Sprintf("%s: no new connection is served: %v", when, last) })
}

// relayOf returns which of some relays has a flow.
func relayOf(t *testing.T, h held, relays map[string]*daemon) (name string) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool {
		for name = range relays {
			if ended(relays[name]) {
				continue
			}
			for _, f := range relays[name].status().Flows {
				if f.Client == h.LocalAddr().String() {
					return true
				}
			}
		}
		return false
	}, func() string { return "no relay has the flow from " + h.LocalAddr().String() })
	return name
}

func ended(d *daemon) bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}
