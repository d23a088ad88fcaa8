package faults

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// pair are two relays that share an address through keepalived.
type pair struct {
	*site
	keepalived  string // the program
	otherWords  []string
	relays      map[string]*daemon
	keepaliveds map[string]*peer
}

var pairNames = []string{"relay-a1", "relay-a2"}

// patientKeepalived has keepalived send its adverts and wait for the answers of relays
// on a busy machine. It finds the dead all the same: they do not answer at all.
var patientKeepalived = []string{
	"--timeout 2s", "--timeout 30s", "    timeout 3\n", "    timeout 60\n",
}

// newPair starts them, listening on the virtual address alone or on all, with other
// words in place of some of keepalived's example.
func newPair(t *testing.T, virtualAlone bool, otherWords ...string) *pair {
	t.Helper()
	nettest.RequireRoot(t) // keepalived makes addresses and raw sockets
	p := &pair{keepalived: nettest.RequireProgram(t, "keepalived", "keepalived"), otherWords: otherWords, relays: map[string]*daemon{}, keepaliveds: map[string]*peer{}}
	p.site = newSite(t, false)
	for _, name := range pairNames {
		var listening []string
		if virtualAlone {
			nettest.Must(t, p.hosts[name].Sysctl("net.ipv4.ip_nonlocal_bind", "1"))
			listening = []string{`":6000"`, service.String()}
		}
		p.relays[name] = p.relay(name, "longhaul.yaml", listening...)
	}
	for _, name := range pairNames {
		p.startKeepalived(name)
	}
	p.expectServed("at the beginning")
	return p
}

func (p *pair) startKeepalived(name string) {
	p.t.Helper()
	dir := p.t.TempDir()
	file := filepath.Join(dir, "keepalived.conf")
	config := example(p.t, "keepalived-"+strings.TrimPrefix(name, "relay-")+".conf",
		append(p.otherWords, "/usr/bin/longhaul ready", nettest.Longhaul(p.t)+" ready --control-socket "+p.relays[name].socket())...)
	writeFile(p.t, file, config)
	k := p.start(name, p.keepalived, "--dont-fork", "--log-console", "--log-detail", "--vrrp", "--use-file", file,
		"--pid", filepath.Join(dir, "pid"), "--vrrp_pid", filepath.Join(dir, "vrrp.pid"))
	p.keepaliveds[name] = k
	k.expectLog(p.t, "VRRP_Script(longhaul) succeeded")
}

// active is which relay has the flow of a connection that is open now.
func (p *pair) active() string {
	p.t.Helper()
	h := hold(p.t, p.dial(patience))
	defer h.release(p.t)
	return relayOf(p.t, h, p.relays)
}

func other(name string) string { return pairNames[1-slices.Index(pairNames, name)] }

// expectGone sees a flow of a relay that is no more be reset.
func expectGone(t *testing.T, h held) {
	t.Helper()
	if err := h.ping(patience); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a flow of the relay that is gone: %v, want a reset", err)
	}
}

// Two relays share an address through keepalived. The active one is killed: its flows
// are reset, and new ones are served by the other. When it is back the address stays
// where it is, and with it the flows there. Then the address is moved on purpose.
func TestKeepalivedRelayKilled(t *testing.T) {
	t.Parallel()
	p := newPair(t, false, patientKeepalived...)
	p.killRelay(p.untilServed)
	p.moveAddress(p.untilServed)
}

// untilServed waits until new connections are served, however long that takes.
func (p *pair) untilServed(when string, _ time.Time) {
	p.t.Helper()
	p.expectServed(when)
}

// killRelay kills the active relay, calls again, which waits until new connections are
// served, and has the relay come back.
func (p *pair) killRelay(again func(when string, begin time.Time)) {
	t := p.t
	t.Helper()
	active := p.active()
	h := hold(t, p.dial(patience))
	begin := time.Now()
	p.relays[active].signal(syscall.SIGKILL)
	again("after the kill", begin)
	expectGone(t, h)
	now := p.active()
	if now == active {
		t.Fatalf("%s, which was killed, serves", active)
	}
	staying := hold(t, p.dial(patience))
	seen := p.keepaliveds[active].log.count("Entering BACKUP STATE")
	p.relays[active] = restartDaemon(t, p.hosts[active], p.relays[active])
	nettest.Eventually(t, patience, func() bool { return p.keepaliveds[active].log.count("Entering BACKUP STATE") > seen },
		func() string { return "keepalived does not take the relay back\n" + p.keepaliveds[active].log.String() })
	staying.alive(t, "after the first relay is back")
	if again := p.active(); again != now {
		t.Errorf("the address went back to %s", again)
	}
	staying.alive(t, "later")
	staying.release(t)
}

// moveAddress stops the keepalived of the active relay.
func (p *pair) moveAddress(again func(when string, begin time.Time)) {
	t := p.t
	t.Helper()
	active := p.active()
	begin := time.Now()
	nettest.Must(t, p.keepaliveds[active].cmd.Process.Signal(syscall.SIGTERM))
	<-p.keepaliveds[active].exited // until then it has the address
	again("after keepalived was stopped", begin)
	if now := p.active(); now == active {
		t.Fatalf("%s, whose keepalived was stopped, serves", now)
	}
}

// The same when the whole host dies: nothing leaves it any more, no word of
// goodbye either. These relays listen on the virtual address alone.
func TestKeepalivedHostKilled(t *testing.T) {
	t.Parallel()
	p := newPair(t, true, patientKeepalived...)
	p.killHost(p.untilServed)
}

// killHost has the host of the active relay die, and calls again, which waits until new
// connections are served. It returns how long after the death somebody was served who
// connected right then, and waited as long as the kernel repeats its SYN.
func (p *pair) killHost(again func(when string, begin time.Time)) (waited time.Duration) {
	t := p.t
	t.Helper()
	active := p.active()
	h := hold(t, p.dial(patience))
	begin := time.Now()
	nettest.Must(t, p.sw.Down(active))
	p.keepaliveds[active].kill()
	p.relays[active].signal(syscall.SIGKILL)
	waiting := make(chan error, 1)
	go func() {
		h, err := tryHold(t.Context(), p.dial(patience), patience)
		if waited = time.Since(begin); err == nil {
			h.Close()
		}
		waiting <- err
	}()
	again("after the host's death", begin)
	if err := <-waiting; err != nil {
		t.Fatalf("who connected right after the host's death was never served: %v", err)
	}
	expectGone(t, h)
	if now := p.active(); now != other(active) {
		t.Errorf("after the death of %s the relay that serves is %s", active, now)
	}
	return waited
}
