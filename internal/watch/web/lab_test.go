package web_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/relays"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// site is two sites with a real relay each and real flows between them. The
// near relay has a dashboard and a history:
//
//	clients, targets ──LAN── relay-a ══40 ms, 0.1 % lost══ relay-b ──LAN── targets
type site struct {
	t     *testing.T
	lab   *lab.Lab
	all   sync.WaitGroup
	flows []*pulse
}

// The dashboard's address on relay-a, and the ports of its tunnels. relay-b and
// the targets use the same ports.
const (
	boardAddress = "127.0.0.1:9464"
	echoPort     = 6000 // echoes
	sinkPort     = 6001 // discards
	sourcePort   = 6002 // sends as many bytes as requested
	nearPort     = 6003 // echoes, within site A
	pairPort     = 6004 // echoes, between paired tunnels
)

// newSite builds the two sites and starts the relays.
func newSite(t *testing.T) *site {
	t.Helper()
	nettest.RequireSandbox(t)
	dir, err := os.MkdirTemp("", "lh") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := nettest.Longhaul(t)
	c := lab.MitreConditions()
	c.RTT, c.RateBps, c.Loss = 40*time.Millisecond, 50e6, link.Loss{Probability: 0.001}
	built, err := lab.Build(lab.TwoSites(c))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, lab: built}
	t.Cleanup(func() { built.Close() })
	t.Cleanup(s.all.Wait)

	s.listen("host-a", lab.HostA, nearPort, tcpserver.Echo)
	s.listen("host-b", lab.HostB, echoPort, tcpserver.Echo)
	s.listen("host-b", lab.HostB, sinkPort, tcpserver.Discard)
	s.listen("host-b", lab.HostB, sourcePort, func(c net.Conn) {
		var size uint32
		if binary.Read(c, binary.BigEndian, &size) == nil {
			_, _ = io.CopyN(c, zeros{t.Context()}, int64(size))
		}
	})
	key := filepath.Join(dir, "check.key")
	if out, err := exec.CommandContext(t.Context(), program, "check", "--new-key", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nearKeys, farKeys := pairHosts(t, dir)
	s.start(program, dir, "relay-b", fmt.Sprintf(`
  - {name: echo, listen: %[1]v:%[3]d, forward: %[2]v:%[3]d, check: {key_file: %[6]q, next: target}}
  - {name: replication, listen: %[1]v:%[4]d, forward: %[2]v:%[4]d}
  - {name: zone-transfers, listen: %[1]v:%[5]d, forward: %[2]v:%[5]d}
  - {name: from-site-a, listen: %[1]v:%[7]d, forward: %[2]v:%[3]d, pair_from: site-a}
`, lab.WANB, lab.HostB, echoPort, sinkPort, sourcePort, key, pairPort), "pair_keys: "+farKeys+"\n")
	// Nobody listens at the second hop of replication.
	s.start(program, dir, "relay-a", fmt.Sprintf(`
  - {name: to-site-b, listen: %[1]v:%[3]d, forward: %[2]v:%[3]d, max_flows: 4000, check: {key_file: %[6]q, next: relay, interval: 5s}}
  - {name: replication, listen: %[1]v:%[4]d, forward: [%[2]v:%[4]d, %[2]v:6009], health: {check: connect, interval: 1s}, wan: {pacing_rate: 12Mbit}}
  - {name: zone-transfers, listen: %[1]v:%[5]d, forward: %[2]v:%[5]d}
  - {name: site-a, listen: %[1]v:%[7]d, forward: %[8]v:%[7]d}
  - {name: sessions, listen: %[1]v:%[9]d, forward: %[2]v:%[9]d, pair: site-b}
`, lab.RelayA, lab.WANB, echoPort, sinkPort, sourcePort, key, nearPort, lab.HostA, pairPort),
		fmt.Sprintf("history: {file: %q}\ndashboard: {listen: %s}\npair_keys: %s\n", filepath.Join(dir, "history.db"), boardAddress, nearKeys))
	return s
}

// pairHosts makes the keys of two sites that know each other, and returns their
// directories.
func pairHosts(t *testing.T, dir string) (near, far string) {
	t.Helper()
	near, far = filepath.Join(dir, "keys-a"), filepath.Join(dir, "keys-b")
	for _, one := range []struct{ dir, peer, name string }{{near, far, "site-b"}, {far, near, "site-a"}} {
		key, _, _, err := identity.New(one.peer).Key()
		nettest.Must(t, err)
		_, err = identity.New(one.dir).Pin(one.name, key)
		nettest.Must(t, err)
	}
	return near, far
}

func (s *site) start(program, dir, name, tunnels, more string) {
	s.t.Helper()
	r := &relays.Process{Name: name, Host: s.lab.Host(name), Program: program, Dir: dir}
	config := fmt.Sprintf("control_socket: %s\nmemory_limit: 1GiB\n%stunnels:%s", r.Socket(), more, tunnels)
	if err := r.Start(s.t.Context(), config); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("%s said:\n%s", name, r.Log())
		}
		_ = r.Kill()
	})
}

// listen starts a target that serves connections until the test ends.
func (s *site) listen(host string, address netip.Addr, port int, serve func(net.Conn)) {
	s.t.Helper()
	var l net.Listener
	err := s.lab.Host(host).Do(func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(s.t.Context(), "tcp4", netip.AddrPortFrom(address, uint16(port)).String())
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(tcpserver.Serve(l, serve))
}

// connect opens n client connections to a tunnel one after another, so that the
// accept queue never fills.
func (s *site) connect(port, n int) (all []net.Conn, err error) {
	err = s.lab.Host("host-a").Do(func() error {
		d := net.Dialer{Timeout: patience}
		d.SetMultipathTCP(false)
		for range n {
			c, err := d.DialContext(s.t.Context(), "tcp4", netip.AddrPortFrom(lab.RelayA, uint16(port)).String())
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		return nil
	})
	return all, err
}

// mustConnect fails the test if connect fails.
func (s *site) mustConnect(port, n int) []net.Conn {
	s.t.Helper()
	all, err := s.connect(port, n)
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// board is the address at which this host reaches the dashboard of relay-a, as
// with ssh -L.
func (s *site) board() string {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(tcpserver.Serve(l, s.pass))
	return l.Addr().String()
}

func (s *site) pass(near net.Conn) {
	var far net.Conn
	err := s.lab.Host("relay-a").Do(func() (err error) {
		far, err = net.Dial("tcp", boardAddress)
		return err
	})
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(far, near)
		far.Close()
	}()
	_, _ = io.Copy(near, far)
}

// pulse is a flow that sends a message every second and reads its echo.
type pulse struct{ echoes atomic.Int64 }

const pulseEvery = time.Second

// begin starts flows that carry data each second until ctx ends: near ones
// within site A, far ones between the sites, half as many through the pair.
// Beside them some flows fill the path, and clients fetch data repeatedly.
func (s *site) begin(ctx context.Context, near, far int) {
	s.t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for port, n := range map[int]int{nearPort: near - far/2, echoPort: far, pairPort: far / 2} {
		for _, c := range s.mustConnect(port, n) {
			f := &pulse{}
			s.flows = append(s.flows, f)
			message := make([]byte, 200+random.IntN(3000))
			late := time.Duration(random.Int64N(int64(pulseEvery)))
			s.flow(ctx, c, func() error { return f.heartbeat(ctx, c, message, late) })
		}
	}
	for _, c := range s.mustConnect(sinkPort, 2) {
		s.flow(ctx, c, func() error {
			_, err := io.Copy(c, zeros{ctx})
			return err
		})
	}
	s.fetchOften(ctx, 4, 1<<20, 2<<20, time.Second)
}

// fetchOften starts clients that fetch data repeatedly, with pauses.
func (s *site) fetchOften(ctx context.Context, clients int, minSize, maxSize uint32, pause time.Duration) {
	for i := range clients {
		random := rand.New(rand.NewPCG(uint64(maxSize), uint64(i)))
		s.all.Go(func() {
			for ctx.Err() == nil {
				wait(ctx, time.Duration(random.Int64N(int64(pause))))
				if err := s.fetch(minSize + random.Uint32N(maxSize-minSize)); err != nil && ctx.Err() == nil {
					s.t.Errorf("a transfer under the dashboard: %v", err)
				}
			}
		})
	}
}

// flow runs a client on a connection. It must not fail before ctx ends.
func (s *site) flow(ctx context.Context, c net.Conn, do func() error) {
	s.all.Go(func() {
		defer c.Close()
		if err := do(); err != nil && ctx.Err() == nil {
			s.t.Errorf("a flow under the dashboard: %v", err)
		}
	})
}

func (f *pulse) heartbeat(ctx context.Context, c net.Conn, message []byte, late time.Duration) error {
	wait(ctx, late)
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	echo := make([]byte, len(message))
	for {
		if _, err := c.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, echo); err != nil {
			return err
		}
		f.echoes.Add(1)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// fetch reads size bytes from the far site.
func (s *site) fetch(size uint32) error {
	all, err := s.connect(sourcePort, 1)
	if err != nil {
		return err
	}
	c := all[0]
	defer c.Close()
	if err := binary.Write(c, binary.BigEndian, size); err != nil {
		return err
	}
	_, err = io.CopyN(io.Discard, c, int64(size))
	return err
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// zeros is a reader of zeros that ends with ctx.
type zeros struct{ context.Context }

func (z zeros) Read(p []byte) (int, error) {
	if z.Err() != nil {
		return 0, io.EOF
	}
	clear(p)
	return len(p), nil
}
