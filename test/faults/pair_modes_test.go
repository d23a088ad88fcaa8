package faults

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/test/nettest"
)

// pairMode is a mode of a pair, as its configuration has it.
type pairMode struct{ near, far string }

var (
	inClear         = pairMode{", encrypt: off", "{peer: near, encrypt: off}"}
	withoutResume   = pairMode{", resume: off", "near"}
	inClearNoResume = pairMode{", encrypt: off, resume: off", "{peer: near, encrypt: off}"}
)

func (p *pairOf) in(m pairMode) *pairOf {
	p.tunnelNear, p.peerName = m.near, m.far
	return p
}

// clearWarning is the warning about a pair in clear, in each command and in the log.
const clearWarning = "bytes cross the WAN unprotected and unauthenticated"

// TestPairModes runs all endings of flows in each mode, and looks whether a box on the path
// reads the bytes. Status and check tell the mode.
func TestPairModes(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pairMode{"usual": {}, "clear": inClear, "no resume": withoutResume, "clear, no resume": inClearNoResume} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, m := loopbackPair(t)
			m.marker = strings.Repeat("marker", 10)
			p.in(mode).start()
			p.run(bothDirections, map[string]func(){"fault": func() {}})
			p.near.expectLog(`msg=flow .*\bend=end `)
			p.run(`
				target listens
				client connects
				target accepts
				target sends 3M
				client expects 3M
				client sends 3M
				client flushes
				client resets
				target expects 3M, reset
			`, nil)
			p.near.expectLog(`msg=flow .*\bend=client-reset `)
			p.far.expectLog(`msg=flow .*\bend=client-reset `)
			p.expectNoFlows()

			echo(t, p.target)
			c, err := p.dial()(t.Context())
			nettest.Must(t, err)
			defer c.Close()
			text := strings.Repeat("marker", 100)
			nettest.Must(t, exchangeText(c, text))
			clear := mode == inClear || mode == inClearNoResume
			m.set(func() {
				if m.saw != clear {
					t.Errorf("the box on the path reads the bytes: %v", m.saw)
				}
			})
			near, far := p.near.session(), p.far.session()
			for _, s := range []flow.Session{near, far} {
				if s.Encrypted == clear || s.Resumable != !strings.Contains(mode.near, "resume") || s.EndsInClear {
					t.Errorf("status has %+v", s)
				}
			}
			output, status := command(t, "check", "main", "--control-socket", p.near.socket())
			if status != 0 || strings.Contains(output, clearWarning) != clear {
				t.Errorf("check exits with %d: %s", status, output)
			}
			output, _ = command(t, "status", "--control-socket", p.near.socket())
			if strings.Contains(output, clearWarning) != clear || strings.Contains(output, "resume: off") == near.Resumable {
				t.Errorf("status prints %s", output)
			}
			if clear {
				p.near.expectLog(clearWarning)
				p.far.expectLog(clearWarning)
			}
		})
	}
}

// exchangeText sends a text and reads it back.
func exchangeText(c net.Conn, text string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("got %q: %w", got, err)
	}
	if string(got) != text {
		return fmt.Errorf("got %q, want %q", got, text)
	}
	return nil
}

// TestPairWithoutResumeLosesItsLane holds that both peers of a flow are reset when its lane
// is, and that the loss of the control connection alone means nothing to it.
func TestPairWithoutResumeLosesItsLane(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pairMode{"TLS": withoutResume, "clear": inClearNoResume} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, m := loopbackPair(t)
			p.in(mode).start()
			p.run(`
				target listens
				client connects
				target accepts
				client sends 32M
				target sends 32M
				target expects 1M
				client expects 1M
				does control
				target expects 4M
				client expects 4M
				does lanes
				client expects any, reset
				target expects any, reset
			`, map[string]func(){
				"control": func() { m.reset(preface.Control) },
				"lanes":   func() { m.reset(preface.Lane) },
			})
			p.near.expectLog(`msg=flow .*\bend=wan-lost `)
			p.far.expectLog(`msg=flow .*\bend=wan-lost `)
			p.expectNoFlows()
		})
	}
}

// TestPairsDifferInEncrypt holds that nothing passes if only one end is to encrypt, that both
// say why, and that a reload of one end mends it.
func TestPairsDifferInEncrypt(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pairMode{"near in clear": {inClear.near, "near"}, "far in clear": {"", inClear.far}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := loopbackPair(t)
			p.settings = "    connect_timeout: 1s\n"
			p.withoutWaitForPair = true
			echo(t, p.target)
			p.in(mode).start()
			p.expectProblem(flow.PairEncrypt)
			expectReset(t, p.dial(), patience)
			p.near.expectLog(`msg=flow .*\bend=pair-down `)
			p.far.expectLog(`encrypt: (on|off), tunnel main has encrypt: (on|off)`)
			if p.in(pairMode{mode.near, inClear.far}); mode.near == "" {
				p.in(pairMode{"", "near"})
			}
			p.far.reload(p.farConfig())
			p.expectServed(p.dial())
		})
	}
}

// TestPairReloadsToClear holds that a flow goes on while both ends change encrypt.
func TestPairReloadsToClear(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	echo(t, p.target)
	p.start()
	c, err := p.dial()(t.Context())
	nettest.Must(t, err)
	defer c.Close()
	nettest.Must(t, exchangeText(c, "encrypted"))
	p.in(inClearNoResume)
	p.far.reload(p.farConfig())
	nettest.Must(t, exchangeText(c, "far changed"))
	p.near.reload(p.nearConfig())
	p.expectServed(p.dial())
	nettest.Must(t, exchangeText(c, "both changed"))
	nettest.Eventually(t, patience, func() bool {
		modes := map[[2]bool]bool{}
		for _, s := range p.near.status().Pairs.Sessions {
			modes[[2]bool{s.Encrypted, s.Resumable}] = s.Up
		}
		return len(modes) == 2 && modes[[2]bool{true, true}] && modes[[2]bool{false, false}]
	}, func() string { return fmt.Sprintf("the sessions are %+v", p.near.status().Pairs) })
}
