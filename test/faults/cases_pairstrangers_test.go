package faults

import (
	"context"
	"crypto/tls"
	"errors"
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

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/lab/pattern"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// otherALPN is what a relay of a later major version of the protocol offers.
const otherALPN = "longhaul-pair/2"

// Case 60: the far relay is of another version. The near one names that, and resets
// clients.
func TestCase60OtherVersionAtFarRelay(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct {
		alpn  string
		hello wire.Hello
	}{
		"its HELLO has later versions": {preface.ALPN, wire.Hello{Lowest: 8, Highest: 9, Instance: 1}},
		"it refuses this one":          {preface.ALPN, wire.Hello{Lowest: 8, Highest: 9, Instance: 1, Problem: string(flow.PairVersion)}},
		"its TLS has another ALPN":     {otherALPN, wire.Hello{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := loopbackPair(t)
			p.pairKeys()
			p.forward = serve(t, p.wan, func(c net.Conn) {
				if _, err := io.ReadFull(c, make([]byte, preface.Size)); err != nil {
					return
				}
				config := identity.New(p.farKeys).ServerTLS(nil)
				config.NextProtos = []string{answer.alpn}
				over := tls.Server(c, config)
				if _, err := wire.ReadHello(over); err == nil {
					_, _ = over.Write(answer.hello.Append(nil))
				}
				_, _ = io.Copy(io.Discard, c)
			})
			p.settings = "    connect_timeout: 1s\n"
			p.withoutWaitForPair = true
			p.startNear()
			p.expectProblem(flow.PairVersion)
			expectReset(t, p.dial(), patience)
			p.near.expectLog(`msg=flow .*\bend=pair-down .*error="version: `)
			for verb, text := range map[string]string{"check": "upgrade the older", "status": "version"} {
				args := []string{verb, "--control-socket", p.near.socket()}
				if verb == "check" {
					args = append(args, "main")
				}
				if output, _ := command(t, args...); !strings.Contains(output, text) {
					t.Errorf("%s does not say %q:\n%s", verb, text, output)
				}
			}
		})
	}
}

// Case 60: a near relay of another version. The far one refuses it by name; others'
// flows go on.
func TestCase60OtherVersionAtNearRelay(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.target = echo(t, p.target)
	p.start()
	h := hold(t, p.dial())
	for i, c := range []struct {
		alpn  string
		hello wire.Hello
	}{
		{preface.ALPN, wire.Hello{Lowest: 8, Highest: 9, Instance: 1, Session: 1}},
		{otherALPN, wire.Hello{}},
	} {
		near := identity.New(p.nearKeys)
		config, err := near.ClientTLS("far")
		nettest.Must(t, err)
		config.NextProtos = []string{c.alpn}
		over := tls.Client(p.stranger(preface.Preface{Kind: preface.Control}.Append(nil, near.PeerKeys("far")[0])), config)
		err = over.Handshake()
		if c.alpn == otherALPN {
			if err == nil || !strings.Contains(err.Error(), "no application protocol") {
				t.Errorf("the handshake with another ALPN ends with %v", err)
			}
		} else {
			nettest.Must(t, err)
			_, err = over.Write(c.hello.Append(nil))
			nettest.Must(t, err)
			if answer, err := wire.ReadHello(over); err != nil || answer.Problem != string(flow.PairVersion) {
				t.Errorf("the answer is %+v, %v", answer, err)
			}
		}
		nettest.Eventually(t, patience, func() bool { return p.far.status().Pairs.Strangers[flow.PairVersion] == int64(i+1) },
			func() string { return fmt.Sprintf("the far relay counts %+v", p.far.status().Pairs.Strangers) })
	}
	p.far.expectLog(`msg="pair: connections are part of no session" .*problem=version`)
	h.alive(t, "beside a relay of another version")
	h.release(t)
	p.expectNoFlows()
}

// Case 63: connections to the far relay that send their preface slowly, or nothing. They
// are ended in time, and a pair gets its connections beside any number of them.
func TestCase63SlowPrefaces(t *testing.T) {
	t.Parallel()
	p, m := loopbackPair(t)
	p.target = echo(t, p.target)
	p.start()
	h := hold(t, p.dial())
	valid := preface.Preface{Kind: preface.Lane}.Append(nil, identity.New(p.nearKeys).PeerKeys("far")[0])
	slow := map[string]net.Conn{
		"half a preface":              p.stranger(valid[:20]),
		"a preface, and then nothing": p.stranger(valid),
		"a preface and half a hello":  p.stranger(append(append([]byte{}, valid...), 22, 3, 1, 2, 0)),
	}
	const more = 2200 // than the far relay keeps
	for range more {
		p.stranger(nil)
	}
	m.reset(preface.Lane)
	m.reset(preface.Control)
	h.alive(t, "on new connections, beside many that say nothing")
	var held []held
	for range 2 * warmLanes {
		held = append(held, hold(t, p.dial()))
	}
	for name, c := range slow {
		if n, err := c.Read(make([]byte, 64)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got %d bytes, %v; want an end or a reset", name, n, err)
		}
	}
	p.far.expectLog(`msg="connection refused" .*reason=denied .*no preface of a paired relay`)
	for _, h := range held {
		h.release(t)
	}
	h.release(t)
	p.expectNoFlows()
}

// Case 50: bits are altered anywhere: in prefaces, handshakes, lanes and the control
// connection. No altered byte arrives, and flows go on.
func TestCase50AlteredAnywhere(t *testing.T) {
	t.Parallel()
	p, m := loopbackPair(t)
	p.start()
	p.run(bothDirections, map[string]func(){"fault": func() {
		m.set(func() { m.altersAny = 25 })
		m.reset(preface.Lane)
		m.reset(preface.Control)
	}})
	m.set(func() { m.altersAny = 0 })
	p.near.expectLog(`msg=flow .*\bend=end `)
	p.far.expectLog(`msg=flow .*\bend=end `)
	p.expectNoFlows()
	for _, d := range []*daemon{p.near, p.far} {
		if strings.Contains(d.log.String(), "end=damaged") {
			t.Errorf("altered bytes got past TLS:\n%s", d.log)
		}
	}
}

// Case 50: bits are altered of lanes in clear, where nothing but the checksum at the end
// finds them. A stream with altered bytes has no clean end, and both logs say why.
func TestCase50AlteredInClear(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	p, m := loopbackPair(t)
	p.in(inClear)
	type got struct {
		whole bool
		err   error // nil: a clean end
	}
	results := make(chan got, 1)
	serve(t, p.target, func(c net.Conn) {
		b, err := io.ReadAll(c)
		results <- got{len(b) == size && pattern.Match(0, b), err}
	})
	p.start()
	const rounds = 8
	damaged := 0
	for round := range rounds {
		m.set(func() { m.alters = 1 })
		c, err := p.dial()(t.Context())
		nettest.Must(t, err)
		nettest.Must(t, c.SetDeadline(time.Now().Add(patience)))
		for sent := int64(0); sent < size && err == nil; {
			var n int
			n, err = c.Write(pattern.At(sent, size-sent))
			sent += int64(n)
		}
		_ = c.(*net.TCPConn).CloseWrite() // of one that is reset already, too
		r := <-results
		switch {
		case r.err == nil && !r.whole:
			t.Errorf("round %d: the target sees a clean end behind altered bytes", round)
		case r.err != nil:
			damaged++
		}
		c.Close()
	}
	if damaged == 0 {
		t.Errorf("no flow of %d was damaged", rounds)
	}
	p.near.expectLog(`msg=flow .*\bend=damaged `)
	p.far.expectLog(`msg=flow .*\bend=damaged `)
	m.set(func() { m.alters = 0 })
	p.expectNoFlows()
}

// Case 51: socat and sshd listen in place of the far relay.
func TestCase51OtherPrograms(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	host, port := "127.79.0.1", ""
	for name, program := range map[string]func(t *testing.T) []string{
		"socat": func(t *testing.T) []string {
			return []string{nettest.RequireProgram(t, "socat", "socat"), "TCP-LISTEN:" + port + ",bind=" + host + ",fork,reuseaddr", "PIPE"}
		},
		"sshd": func(t *testing.T) []string {
			key := filepath.Join(t.TempDir(), "key")
			if out, err := exec.Command(nettest.RequireProgram(t, "ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
				t.Fatalf("ssh-keygen: %v: %s", err, out)
			}
			sshd := nettest.RequireProgram(t, "sshd", "openssh-server")
			// sshd wants a directory that only its service makes.
			return []string{nettest.RequireProgram(t, "unshare", "util-linux"), "--mount", "sh", "-ec", `mount -t tmpfs none /run; mkdir /run/sshd; exec "$@"`, "sh",
				sshd, "-D", "-e", "-f", "/dev/null", "-h", key, "-o", "ListenAddress=" + host, "-o", "PidFile=none", "-p", port}
		},
	} {
		p, _ := loopbackPair(t)
		_, port, _ = net.SplitHostPort(p.wan)
		args := program(t)
		t.Run(name, func(t *testing.T) {
			p.t = t
			cmd := exec.Command(args[0], args[1:]...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			cmd.Stderr = t.Output()
			nettest.Must(t, cmd.Start())
			t.Cleanup(func() {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				_ = cmd.Wait()
			})
			nettest.Eventually(t, patience, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				c, err := tcpscript.DialTo(p.wan)(ctx)
				if err == nil {
					c.Close()
				}
				return err == nil
			}, func() string { return "it does not listen" })
			p.pairKeys()
			p.forward = p.wan
			p.settings = "    connect_timeout: 1s\n"
			p.withoutWaitForPair = true
			p.startNear()
			p.expectProblem(flow.PairUnpaired)
			expectReset(t, p.dial(), patience)
			p.near.expectLog(`msg=flow .*\bend=pair-down .*error="unpaired: `)
		})
	}
}
