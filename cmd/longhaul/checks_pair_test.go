//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/integrity"
	"longhaul/internal/run/control"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// relayPair are two relays: the first asks the second about its health, by way of
// a proxy of the test.
type relayPair struct {
	t       testing.TB
	dir     string
	relays  map[string]pairRelay // "first" and "second"
	onwards string               // address of the second
}

type pairRelay struct {
	cmd  *exec.Cmd
	said string // file with what it says
}

const pairPatience = time.Minute

// startPair starts the relays. before is called with each connection through the
// proxy and the first bytes of it, before they go on to the second relay.
func startPair(t *testing.T, key string, before func(first []byte, onwards string)) *relayPair {
	t.Helper()
	p := &relayPair{t: t, dir: t.TempDir(), relays: map[string]pairRelay{}, onwards: nettest.FreeAddress(t, "127.0.0.1")}
	target := listenEcho(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tcpserver.Serve(l, func(conn net.Conn) {
		hello := make([]byte, integrity.HelloBytes)
		if _, err := io.ReadFull(conn, hello); err != nil {
			return
		}
		before(hello, p.onwards)
		second, err := net.Dial("tcp4", p.onwards)
		if err != nil {
			return
		}
		defer second.Close()
		if _, err := second.Write(hello); err != nil {
			return
		}
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(conn, second)
			conn.Close()
		})
		_, _ = io.Copy(second, conn)
		second.Close()
		back.Wait()
	}))
	p.start("second", key, fmt.Sprintf("{name: t, listen: %q, forward: %v, check: {key_file: %q}}",
		p.onwards, target.Addr(), p.key("second")))
	p.start("first", key, fmt.Sprintf(
		"{name: t, listen: %q, forward: %v, check: {key_file: %q, next: relay}, health: {check: end-to-end, interval: 100ms, timeout: 10s, fall: 1}}",
		nettest.FreeAddress(t, "127.0.0.1"), l.Addr(), p.key("first")))
	return p
}

func (p *relayPair) key(name string) string    { return filepath.Join(p.dir, name+".key") }
func (p *relayPair) socket(name string) string { return filepath.Join(p.dir, name) }

// start starts a relay with a key of its own file.
func (p *relayPair) start(name, key, tunnel string) {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	file := filepath.Join(p.dir, name+".yaml")
	for path, text := range map[string]string{
		p.key(name): key,
		file:        fmt.Sprintf("control_socket: %q\nworkers: 1\ntunnels:\n  - %s\n", p.socket(name), tunnel),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	cmd := &exec.Cmd{Path: self, Args: []string{"longhaul", "relay", "-c", file}}
	said := runProgram(p.t, cmd)
	p.relays[name] = pairRelay{cmd, said}
	nettest.Eventually(p.t, pairPatience, func() bool { return strings.Contains(readText(p.t, said), "relay started") },
		func() string { return name + " does not start" })
}

func readText(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// newKeyText makes what a key file holds.
func newKeyText(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := integrity.NewKey().Create(path); err != nil {
		t.Fatal(err)
	}
	return readText(t, path)
}

// whole has the first relay check the tunnel, which must be whole.
func (p *relayPair) whole(when string) {
	p.t.Helper()
	cmd := &exec.Cmd{Path: p.relays["first"].cmd.Path, Args: []string{"longhaul", "check", "t", "--bytes", "4KiB", "--control-socket", p.socket("first")}}
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v: %s", when, err, out)
	}
}

// hopIsUp says that no health check has failed so far.
func (p *relayPair) hopIsUp() {
	p.t.Helper()
	if text := readText(p.t, p.relays["first"].said); strings.Contains(text, "hop gets no new flows") {
		p.t.Error("the second relay was taken for one that is down")
	}
	body, err := control.Status(p.t.Context(), p.socket("first"))
	if err != nil || !strings.Contains(string(body), `"state":"up"`) {
		p.t.Errorf("%v: want a hop that is up: %s", err, body)
	}
}

// At 1818be3 a recorded hello was answered each time, and held one of 16 slots for
// 5 s: soon none was left, and the relay's health checks failed.
func TestRecordedHello(t *testing.T) {
	t.Parallel()
	const probes, repeats = 20, 5
	var (
		mu       sync.Mutex
		recorded []byte
		passed   int
		held     []net.Conn
		answered int
	)
	again := func(onwards string) {
		conn, err := net.Dial("tcp4", onwards)
		if err != nil {
			return
		}
		held = append(held, conn)
		_ = conn.SetReadDeadline(time.Now().Add(pairPatience))
		if _, err := conn.Write(recorded); err == nil {
			if n, _ := conn.Read(make([]byte, 1)); n > 0 {
				answered++
			}
		}
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		for _, conn := range held {
			conn.Close()
		}
	})
	p := startPair(t, newKeyText(t), func(hello []byte, onwards string) {
		mu.Lock()
		defer mu.Unlock()
		if passed++; passed == probes+1 {
			close(done)
		}
		switch {
		case passed == 2:
			recorded = hello // by then the hop is known to be up
		case passed > 2 && passed <= probes:
			for range repeats {
				again(onwards)
			}
		}
	})
	select {
	case <-done:
	case <-time.After(pairPatience):
		t.Fatal("the health checks have ended")
	}
	mu.Lock()
	if answered > 0 {
		t.Errorf("a hello was answered %d times more", answered)
	}
	mu.Unlock()
	p.whole("while a hello is repeated")
	p.hopIsUp()
}

// The key is changed step by step, and no check fails in between, whichever relay
// comes first. At 1818be3 a key file with two keys was refused.
func TestChangeKey(t *testing.T) {
	for _, order := range [][]string{{"first", "second"}, {"second", "first"}} {
		t.Run(order[0]+" relay first", func(t *testing.T) {
			t.Parallel()
			old, fresh := newKeyText(t), newKeyText(t)
			p := startPair(t, old, func([]byte, string) {})
			p.whole("before")
			for i, key := range []string{old + fresh, fresh + old, fresh} {
				for _, name := range order {
					p.reload(name, key)
					p.whole(fmt.Sprintf("after step %d of the %s relay", i+1, name))
				}
			}
			p.hopIsUp()
		})
	}
}

// reload gives a relay another key.
func (p *relayPair) reload(name, key string) {
	p.t.Helper()
	if err := os.WriteFile(p.key(name), []byte(key), 0o600); err != nil {
		p.t.Fatal(err)
	}
	r := p.relays[name]
	before := strings.Count(readText(p.t, r.said), "msg=reloaded")
	if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
	var text string
	nettest.Eventually(p.t, pairPatience, func() bool {
		text = readText(p.t, r.said)
		return strings.Count(text, "msg=reloaded") > before || strings.Contains(text, "reload failed")
	}, func() string { return name + " does not reload" })
	if strings.Contains(text, "reload failed") {
		p.t.Fatalf("%s does not take the key: %s", name, text)
	}
}
