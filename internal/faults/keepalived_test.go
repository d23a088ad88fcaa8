package faults

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/nettest"
)

// failoverBound is within what new connections must be served again.
const failoverBound = 3 * time.Second

// waitingBound is that of a connection that waits: its SYN is sent again 1, 2 and 3
// seconds after the first, so that it may be served a second late.
const waitingBound = failoverBound + time.Second

// pair are two relays that share an address through keepalived.
type pair struct {
	*site
	relays      map[string]*daemon
	keepaliveds map[string]*peer
}

var pairNames = []string{"relay-a1", "relay-a2"}

// newPair starts them, listening on the virtual address alone or on all.
func newPair(t *testing.T, virtualAlone bool) *pair {
	t.Helper()
	nettest.RequireRoot(t) // keepalived makes addresses and raw sockets
	nettest.RequireProgram(t, "keepalived", "keepalived")
	p := &pair{site: newSite(t, false), relays: map[string]*daemon{}, keepaliveds: map[string]*peer{}}
	for _, name := range pairNames {
		var otherWords []string
		if virtualAlone {
			if err := p.hosts[name].Sysctl("net.ipv4.ip_nonlocal_bind", "1"); err != nil {
				t.Fatal(err)
			}
			otherWords = []string{`":6000"`, service.String()}
		}
		p.relays[name] = p.relay(name, "longhaul.yaml", otherWords...)
	}
	for _, name := range pairNames {
		p.startKeepalived(name)
	}
	p.servedAfter(time.Now())
	return p
}

func (p *pair) startKeepalived(name string) {
	p.t.Helper()
	keepalived := nettest.RequireProgram(p.t, "keepalived", "keepalived")
	dir := p.t.TempDir()
	file := filepath.Join(dir, "keepalived.conf")
	config := example(p.t, "keepalived-"+strings.TrimPrefix(name, "relay-")+".conf",
		"/usr/bin/longhaul ready", nettest.Longhaul(p.t)+" ready --control-socket "+p.relays[name].socket())
	writeFile(p.t, file, config)
	k := p.start(name, keepalived, "--dont-fork", "--log-console", "--log-detail", "--vrrp", "--use-file", file,
		"--pid", filepath.Join(dir, "pid"), "--vrrp_pid", filepath.Join(dir, "vrrp.pid"))
	p.keepaliveds[name] = k
	k.expectLog(p.t, "VRRP_Script(longhaul) succeeded")
}

// active is which relay has the flow of a connection that is open now.
func (p *pair) active() string {
	p.t.Helper()
	h := hold(p.t, p.dial(patience))
	defer h.release(p.t)
	for _, name := range pairNames {
		if d := p.relays[name]; !ended(d) && d.status().tunnel("to-site-b").FlowsNow > 0 {
			return name
		}
	}
	p.t.Fatal("no relay has the flow")
	return ""
}

func ended(d *daemon) bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

func other(name string) string { return pairNames[1-slices.Index(pairNames, name)] }

// expectGone sees a flow of a relay that is no more be reset.
func expectGone(t *testing.T, h held) {
	t.Helper()
	if err := h.ping(patience); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a flow of the relay that is gone: %v, want a reset", err)
	}
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// enough says whether a kill has been repeated often enough for a median. Where one
// is enough, and took too long, the machine may have been busy with other things.
func enough(took []time.Duration, bound time.Duration) bool {
	return len(took) >= 5 || testing.Short() && len(took) == 1 && took[0] <= bound
}

// Two relays share an address through keepalived. The active one is killed:
// its flows are reset, and new ones are served by the other within three
// seconds. When it is back the address stays where it is, and with it the flows
// there.
func TestKeepalivedRelayKilled(t *testing.T) {
	t.Parallel()
	p := newPair(t, false)
	var took []time.Duration
	for !enough(took, failoverBound) {
		active := p.active()
		h := hold(t, p.dial(patience))
		begin := time.Now()
		p.relays[active].signal(syscall.SIGKILL)
		took = append(took, p.servedAfter(begin))
		expectGone(t, h)
		now := p.active()
		if now == active {
			t.Fatalf("%s, which was killed, serves", active)
		}
		staying := hold(t, p.dial(patience))
		seen := p.keepaliveds[active].log.count("Entering BACKUP STATE")
		p.relays[active] = p.restart(active)
		nettest.Eventually(t, patience, func() bool { return p.keepaliveds[active].log.count("Entering BACKUP STATE") > seen },
			func() string { return "keepalived does not take the relay back\n" + p.keepaliveds[active].log.String() })
		staying.alive(t, "after the first relay is back")
		if again := p.active(); again != now {
			t.Errorf("the address went back to %s", again)
		}
		staying.alive(t, "later")
		staying.release(t)
	}
	report(t, "kill -9 of longhaul", took, failoverBound)

	// The address can be moved on purpose.
	nettest.Settles(t, func() error {
		active := p.active()
		begin := time.Now()
		if err := p.keepaliveds[active].cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-p.keepaliveds[active].exited
		moved := p.servedAfter(begin)
		t.Logf("keepalived is stopped: served again after %v", moved.Round(time.Millisecond))
		if now := p.active(); now == active {
			t.Fatalf("%s, whose keepalived was stopped, serves", now)
		}
		if moved > failoverBound {
			p.startKeepalived(active)
			return fmt.Errorf("served again after %v", moved)
		}
		return nil
	})
}

// restart starts a relay again with the same control socket.
func (p *pair) restart(name string) *daemon {
	p.t.Helper()
	return restartDaemon(p.t, p.hosts[name], p.relays[name])
}

// The same when the whole host dies: nothing leaves it any more, no word of
// goodbye either. These relays listen on the virtual address alone.
func TestKeepalivedHostKilled(t *testing.T) {
	t.Parallel()
	var took, patient []time.Duration
	for !enough(took, failoverBound) || !enough(patient, waitingBound) {
		p := newPair(t, true)
		active := p.active()
		h := hold(t, p.dial(patience))
		begin := time.Now()
		if err := p.sw.Down(active); err != nil {
			t.Fatal(err)
		}
		p.keepaliveds[active].kill()
		p.relays[active].signal(syscall.SIGKILL)
		// Somebody who connects right then and waits, as long as the kernel
		// repeats its SYN.
		waited := make(chan time.Duration, 1)
		go func() {
			if h, err := tryHold(t.Context(), p.dial(patience), patience); err == nil {
				h.Close()
				waited <- time.Since(begin)
			}
			close(waited)
		}()
		took = append(took, p.servedAfter(begin))
		if w, ok := <-waited; ok {
			patient = append(patient, w)
		} else {
			t.Fatal("who connected right after the kill was never served")
		}
		expectGone(t, h)
		if now := p.active(); now != other(active) {
			t.Errorf("%s serves", now)
		}
	}
	report(t, "the host dies", took, failoverBound)
	report(t, "the host dies, one connection that waits", patient, waitingBound)
}

func report(t *testing.T, what string, took []time.Duration, bound time.Duration) {
	t.Helper()
	t.Logf("%s: served again after %v, median %v of %v", what, slices.Max(took).Round(time.Millisecond), median(took).Round(time.Millisecond), took)
	if m := median(took); m > bound {
		t.Errorf("%s: served again after %v (median), more than %v", what, m, bound)
	}
}
