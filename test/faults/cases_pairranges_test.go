package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/lab/link"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// The first ports of a range of ten at the near relay and at the far one.
const firstListen, firstTarget, portsInRange = 9000, 7000, 10

// rangePair is a pair whose near tunnel has a range of ports, and a target at each port of the far one's
// that says its place in it, and then echoes.
func rangePair(t *testing.T, delay time.Duration) *pairPath {
	t.Helper()
	p := newPairPathOver(t, wan("wan", nearAddress, farAddress, link.Settings{MTU: 1500, Delay: delay / 2}))
	p.listen = fmt.Sprintf("127.0.0.1:%d-%d", firstListen, firstListen+portsInRange-1)
	p.target = targetRange(portsInRange)
	for i := range portsInRange {
		var l net.Listener
		nettest.Must(t, p.farHost.Do(func() (err error) {
			l, err = listenAsEthernet(fmt.Sprintf("127.0.0.1:%d", firstTarget+i))(t.Context())
			return err
		}))
		t.Cleanup(tcpserver.Serve(l, func(c net.Conn) {
			fmt.Fprintln(c, "target", i)
			tcpserver.Echo(c)
		}))
	}
	return p
}

// targetRange is a range at the far relay with so many ports.
func targetRange(n int) string {
	return fmt.Sprintf("127.0.0.1:%d-%d", firstTarget, firstTarget+n-1)
}

// dialPort connects to a port of the near relay's range.
func (p *pairPath) dialPort(i int) (c net.Conn, err error) {
	p.t.Helper()
	err = p.nearHost.Do(func() (err error) {
		c, err = dialAsEthernet(net.JoinHostPort("127.0.0.1", strconv.Itoa(firstListen+i)))(p.t.Context())
		return err
	})
	if err == nil {
		p.t.Cleanup(func() { c.Close() })
		err = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

// holdPort opens a flow to a port of the near relay's range, and expects the target of the same place.
func (p *pairPath) holdPort(i int) held {
	p.t.Helper()
	c, err := p.dialPort(i)
	nettest.Must(p.t, err)
	want := fmt.Sprintln("target", i)
	got, err := bufio.NewReaderSize(io.LimitReader(c, int64(len(want))), 16).ReadString('\n')
	if err != nil || got != want {
		p.t.Fatalf("port %d of the range leads to %q, %v", i, got, err)
	}
	h := held{c.(*net.TCPConn)}
	h.alive(p.t, "at its beginning")
	return h
}

// holdAll opens a flow to each port of the range, all at once.
func (p *pairPath) holdAll() (all []held) {
	p.t.Helper()
	for i := range portsInRange {
		all = append(all, p.holdPort(i))
	}
	return all
}

// expectPortRefused expects that a port of the near relay's range resets its clients.
func (p *pairPath) expectPortRefused(i int) {
	p.t.Helper()
	var b []byte
	c, err := p.dialPort(i)
	if err == nil {
		b, err = io.ReadAll(c)
	}
	if len(b) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		p.t.Errorf("the client of port %d gets %q, %v; want a reset", i, b, err)
	}
}

// nearCommand runs a command of longhaul about the near relay, and returns what it prints as one line.
func (p *pairPath) nearCommand(args ...string) (output string, status int) {
	output, status = command(p.t, append(args, "--control-socket", p.near.socket())...)
	return strings.Join(strings.Fields(output), " "), status
}

// TestRangeOfPorts holds that each port of a near tunnel's range leads to that of the same place at the far
// relay, through upgrades of both; that a far relay with fewer ports refuses those that it lacks, in words
// that status, check and both logs have; and that flows outlive the change of either range.
func TestRangeOfPorts(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{0, 20 * time.Millisecond} {
		for name, mode := range map[string]pairMode{"usual": {}, "clear, no resume": inClearNoResume} {
			t.Run(fmt.Sprint(delay, ", ", name), func(t *testing.T) {
				t.Parallel()
				p := rangePair(t, delay)
				p.in(mode)
				p.start()
				all := p.holdAll()
				if output, status := p.nearCommand("status"); status != 0 || !strings.Contains(output, p.listen+" -> "+p.wan) {
					t.Errorf("status exits with %d: %s", status, output)
				}
				if output, status := p.nearCommand("check", "main"); status != 0 {
					t.Errorf("check exits with %d: %s", status, output)
				}

				p.target = targetRange(portsInRange - 1)
				p.far.reload(p.farConfig())
				p.expectPortRefused(portsInRange - 1)
				all = append(all, p.holdPort(portsInRange-2))
				const words = "number 10 in the near relay's range, and forward of tunnel main, 127.0.0.1:7000-7008, has 9 ports"
				p.near.expectLog(`reason=denied .*` + words)
				p.far.expectLog(`reason=denied .*` + words)
				if output, status := p.nearCommand("check", "main"); status != 1 || !strings.Contains(output, words) {
					t.Errorf("check exits with %d: %s", status, output)
				}
				whole := p.listen
				p.listen = fmt.Sprintf("127.0.0.1:%d-%d", firstListen, firstListen+portsInRange-2)
				p.near.reload(p.nearConfig())
				if output, status := p.nearCommand("check", "main"); status != 0 {
					t.Errorf("check exits with %d: %s", status, output)
				}
				p.listen, p.target = whole, targetRange(portsInRange)
				p.near.reload(p.nearConfig())
				p.far.reload(p.farConfig())

				for _, d := range []*daemon{p.near, p.far} {
					_, err := d.upgrade("")
					nettest.Must(t, err)
					all = append(all, p.holdAll()...)
					for i, h := range all {
						h.alive(t, fmt.Sprint("flow ", i, " after an upgrade"))
					}
				}
				for _, h := range all {
					h.release(t)
				}
				p.near.expectExit(0)
				p.far.expectExit(0)
			})
		}
	}
}

// TestEarlierReleaseHasOnePort holds that a far relay of an earlier release, which leads each flow to its
// only port, gets no flow to another port of the range: the client is reset, and everything says why. An
// upgrade there is all that it takes.
func TestEarlierReleaseHasOnePort(t *testing.T) {
	t.Parallel()
	p := rangePair(t, 0)
	p.farProgram = earlierLonghaul(t)
	p.target = targetRange(1)[:len("127.0.0.1:7000")]
	p.start()
	first := p.holdPort(0)
	for i := 1; i < portsInRange; i++ {
		p.expectPortRefused(i)
	}
	p.near.expectLog(`reason=denied .*` + flow.OnePortWarning)
	if !p.near.session().OnePort {
		t.Errorf("the session is %+v", p.near.session())
	}
	if output, status := p.nearCommand("status"); status != 0 || !strings.Contains(output, flow.OnePortWarning) {
		t.Errorf("status exits with %d: %s", status, output)
	}
	if output, status := p.nearCommand("check", "main"); status != 1 || !strings.Contains(output, flow.OnePortWarning) {
		t.Errorf("check exits with %d: %s", status, output)
	}
	p.target = targetRange(portsInRange)
	p.far.write(p.farConfig())
	_, err := p.far.upgrade(nettest.Longhaul(t))
	nettest.Must(t, err)
	nettest.Eventually(t, patience, func() bool {
		return slices.ContainsFunc(p.near.status().Pairs.Sessions, func(s flow.Session) bool { return s.Up && !s.OnePort && !s.Draining })
	}, func() string { return fmt.Sprintf("the sessions are %+v", p.near.status().Pairs.Sessions) })
	all := p.holdAll()
	first.alive(t, "after the upgrade of the far relay")
	for _, h := range append(all, first) {
		h.release(t)
	}
	p.far.expectExit(0)
}
