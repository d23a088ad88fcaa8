package faults

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// cut resets all connections between the relays, and those to come until mend.
func (m *middle) cut() (mend func()) {
	m.set(func() { m.refuses = true })
	m.reset(preface.Lane)
	m.reset(preface.Control)
	return func() { m.set(func() { m.refuses = false }) }
}

// Case 58: lanes are full both ways, again and again, since client and target send until
// nothing gets away. Linux 6.17 and later may then drop acknowledgements for good. Every
// byte arrives.
func TestCase58FullBothWays(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.forward = p.wan // segments of the loopback are the largest
	p.moreNear, p.moreFar = "memory_limit: 96MiB\n", "memory_limit: 96MiB\n"
	l, err := listenAsEthernet(p.target)(t.Context()) // only lanes are to meet the fault: a relay replaces no other connection
	nettest.Must(t, err)
	serveEcho(t, l)
	p.start()
	const size, rounds = 192 << 20, 4
	var flows []*bulk
	for range 3 {
		flows = append(flows, startBulk(t, dialAsEthernet(p.listen), size))
	}
	for round := range rounds {
		for _, b := range flows {
			b.reading.Lock()
		}
		for _, b := range flows {
			b.expectStuck(t)
		}
		for _, b := range flows {
			b.reading.Unlock()
		}
		for _, b := range flows {
			b.expectGot(t, int64(round+1)*size/(rounds+1))
		}
	}
	for i, b := range flows {
		b.expectWhole(t, fmt.Sprintf("flow %d", i))
	}
	p.expectNoFlows()
	t.Logf("%d lanes were replaced", p.near.session().Resumes)
}

// Case 59: the wall clocks of both relays jump by an hour, ahead and back, while flows
// are busy, silent or without a path. Nothing times out earlier or later. The clocks are
// those that the relays see (see supervisor).
func TestCase59ClocksJump(t *testing.T) {
	t.Parallel()
	p, m := loopbackPair(t)
	p.supervision = clockSupervised
	p.settings = "    idle_timeout: 30m\n    connect_timeout: 1m\n"
	p.target = echo(t, p.target)
	p.start()
	jump := func(ahead time.Duration) {
		p.near.supervisor.jump(ahead)
		p.far.supervisor.jump(-ahead)
	}
	busy, silent := openTraffic(t, p.dial(), 4), hold(t, p.dial())
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, time.Hour} {
		jump(ahead)
		hold(t, p.dial()).release(t)
		mend := m.cut()
		jump(ahead / 2)
		began := begin(t, p.dial())
		nettest.Eventually(t, patience, func() bool { return !p.near.session().Up && !p.far.session().Up },
			func() string { return "the path is not down" })
		jump(ahead)
		mend()
		silent.alive(t, fmt.Sprintf("after an outage in which the clock jumped by %v", ahead/2))
		if err := <-began; err != nil {
			t.Errorf("a flow that began when the clock jumped: %v", err)
		}
	}
	busy.release(t)
	silent.release(t)
	p.expectNoFlows()
	for _, d := range []*daemon{p.near, p.far} {
		if s := d.supervisor; s.wallReads.Load() == 0 || s.wallWaits.Load() > 0 {
			t.Errorf("a relay read the wall clock %d times, and asked %d times for a timer of it", s.wallReads.Load(), s.wallWaits.Load())
		}
		if log := d.log.String(); strings.Contains(log, "wan-lost") || strings.Contains(log, "pair-down") || strings.Contains(log, "idle") {
			t.Errorf("a flow timed out:\n%s", log)
		}
	}
}

// Case 59: clocks that jump back do not prolong resume.
func TestCase59ClocksJumpPastResume(t *testing.T) {
	t.Parallel()
	p, m := loopbackPair(t)
	p.supervision = clockSupervised
	p.tunnelNear = ", resume: 2s"
	p.target = echo(t, p.target)
	p.start()
	h := hold(t, p.dial())
	mend := m.cut()
	p.near.supervisor.jump(-time.Hour)
	p.far.supervisor.jump(-time.Hour)
	expectGone(t, h)
	p.near.expectLog(`msg=flow .*\bend=wan-lost `)
	p.far.expectLog(`msg=flow .*\bend=wan-lost `)
	mend()
	p.expectServed(p.dial())
}

// smallDisk mounts a file system of its own, with room for little.
func smallDisk(t *testing.T, size string) (dir string) {
	t.Helper()
	nettest.RequireSandbox(t)
	dir = t.TempDir()
	nettest.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// Case 61: the disk with a host's keys is full while keys change. Flows and new
// connections go on with the old keys, the log names the trouble, and the change comes
// to its end once there is room.
func TestCase61KeysDiskFull(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ full, said string }{
		{"far", `msg="peer's new key is not stored" .*no space left on device`},
		{"near", `msg="peer's receipt of the new key is not stored" .*no space left on device`},
	} {
		t.Run(c.full, func(t *testing.T) {
			t.Parallel()
			p, m := loopbackPair(t)
			keys := filepath.Join(smallDisk(t, "256k"), "pair")
			if p.farKeys = keys; c.full == "near" {
				p.nearKeys, p.farKeys = keys, ""
			}
			p.pairKeys()
			p.target = echo(t, p.target)
			p.start()
			full := map[string]*daemon{"near": p.near, "far": p.far}[c.full]
			h := hold(t, p.dial())
			mend := m.cut() // else the rotation could be over before the disk is full
			_, err := identity.New(p.nearKeys).Rotate()
			nettest.Must(t, err)
			room := fillDisk(t, keys)
			mend()
			full.expectLog(c.said)
			h.alive(t, "with a full disk")
			m.reset(preface.Lane)
			m.reset(preface.Control)
			h.alive(t, "on new connections, with a full disk")
			for _, verb := range [][]string{{"rotate", "--now"}, {"invite", "site-c", "--address", "127.0.0.1:6000"}} {
				output, status := command(t, append(append([]string{"pair"}, verb...), "--dir", keys)...)
				if status == 0 || !strings.Contains(output, "no space left on device") {
					t.Errorf("pair %s exits with %d: %s", verb[0], status, output)
				}
			}
			room()
			nettest.Eventually(t, patience, func() bool {
				l, err := identity.New(p.nearKeys).List()
				return err == nil && l.NextKey == ""
			}, func() string { return "the rotation does not end" })
			h.alive(t, "with new keys")
			h.release(t)
		})
	}
}

// Case 61: the disk of both relays' history is full. Forwarding goes on, and both logs
// have the remedy.
func TestCase61HistoryDiskFull(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	dir := smallDisk(t, "8m")
	near, far := filepath.Join(dir, "near.db"), filepath.Join(dir, "far.db")
	p.moreNear, p.moreFar = "history: {file: "+near+"}\n", "history: {file: "+far+"}\n"
	p.target = echo(t, p.target)
	p.start()
	lasting := hold(t, p.dial())
	for _, file := range []string{near, far} {
		nettest.Eventually(t, patience, func() bool {
			_, status := command(t, "history", "check", "--file", file)
			return status == 0
		}, func() string { return "there is no history" })
	}
	room := fillDisk(t, near)
	for range 20 {
		hold(t, p.dial()).release(t)
	}
	for _, d := range []*daemon{p.near, p.far} {
		d.expectLog(`the history cannot be written, forwarding goes on without it.*make room on the disk`)
	}
	lasting.alive(t, "while the history cannot be written")
	room()
	for _, d := range []*daemon{p.near, p.far} {
		d.expectLog("the history is written again")
	}
	lasting.release(t)
	for _, d := range []*daemon{p.near, p.far} {
		d.signal(unix.SIGTERM)
		d.expectExit(0)
	}
	for _, file := range []string{near, far} {
		if output, status := command(t, "history", "check", "--file", file); status != 0 {
			t.Errorf("the history is not sound: %s", output)
		}
	}
}

// Case 64: many targets and many clients read nothing, under memory_limit. What both
// relays hold is bounded, others are served, and flows that go on deliver every byte. One
// that was given up is reset.
func TestCase64ManyStall(t *testing.T) {
	t.Parallel()
	const limit, stalled = 64 << 20, 12
	p, _ := loopbackPair(t)
	p.moreNear = fmt.Sprintf("memory_limit: %d\n", limit)
	p.moreFar = p.moreNear
	l, err := tcpscript.ListenOn(p.target)(t.Context())
	nettest.Must(t, err)
	stalls := make(chan struct{})
	var connections atomic.Int32
	t.Cleanup(tcpserver.Serve(l, func(c net.Conn) {
		if connections.Add(1) <= stalled {
			<-stalls
		}
		tcpserver.Echo(c)
	}))
	p.start()
	const size = 48 << 20
	var flows []*bulk
	dial := dialFromMany(p.listen) // no source holds more than its share
	for i := range stalled {
		b := startBulk(t, dial, size)
		if i%2 == 0 {
			b.reading.Lock() // nor does this client read the echo that begins later
		}
		flows = append(flows, b)
	}
	for _, b := range flows {
		b.expectStuck(t)
	}
	bounded := func(when string) {
		t.Helper()
		for name, d := range map[string]*daemon{"near": p.near, "far": p.far} {
			s := d.status()
			if s.Pairs.RetainedBytes > limit/4+stalled<<20 || s.Process.ResidentBytes > 3*limit {
				t.Errorf("%s: the %s relay retains %d bytes, and %d are resident", when, name, s.Pairs.RetainedBytes, s.Process.ResidentBytes)
			}
		}
	}
	bounded("while targets stall")
	h := hold(t, dial)
	h.alive(t, "beside stalled flows")
	close(stalls)
	for i, b := range flows {
		if i%2 == 0 {
			b.expectStuck(t)
		}
	}
	bounded("while clients stall")
	h.alive(t, "beside stalled clients")
	for i, b := range flows {
		if i%2 == 0 {
			b.reading.Unlock()
		}
	}
	for i, b := range flows {
		b.expectWhole(t, fmt.Sprintf("flow %d, which stalled", i))
	}
	h.release(t)
	p.expectNoFlows()
}
