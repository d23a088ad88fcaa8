package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/run/control"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// startTunnel starts a relay with one tunnel, of which more are further
// settings, in front of a target that answers every connection with what it
// was sent.
func startTunnel(t *testing.T, listen, more string) *daemon {
	t.Helper()
	return startDaemon(t, nil, unsupervised, fmt.Sprintf("control_socket: SOCKET\ntunnels:\n  - name: main\n    listen: %q\n    forward: %q\n%s",
		listen, echo(t, "127.79.1.1:0"), more))
}

// exchange connects, from an address if one is given, sends, and returns what
// comes back until the connection ends or is reset.
func exchange(t *testing.T, from, to string, sends []byte) (reply []byte, err error) {
	t.Helper()
	var d net.Dialer
	d.SetMultipathTCP(false)
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(sends); err != nil {
		return nil, err
	}
	// Of a connection that has been reset already, the read tells.
	if err := c.(*net.TCPConn).CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
		return nil, err
	}
	return io.ReadAll(c)
}

// Case 26: a PROXY header that is partial, oversized, wrong, or from a source
// that is not trusted ends in a reset, and the target is never dialed.
func TestCase26ProxyHeader(t *testing.T) {
	t.Parallel()
	listen := nettest.FreeAddress(t, "127.79.1.2")
	d := startTunnel(t, listen, "    proxy_protocol:\n      in: {trusted: [127.0.0.1/32]}\n")
	const good = "PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n"
	v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x03\xe8\x07\xd0"
	for _, tt := range []struct {
		name, from, sends string
		reply             string // "": a reset
	}{
		{"version 1", "127.0.0.1", good + "hello", "hello"},
		{"version 2", "127.0.0.1", v2 + "hello", "hello"},
		{"partial version 1", "127.0.0.1", good[:20], ""},
		{"partial version 2", "127.0.0.1", v2[:20], ""},
		{"oversized version 1", "127.0.0.1", "PROXY TCP4 " + strings.Repeat("1", 200), ""},
		{"oversized version 2", "127.0.0.1", v2[:14] + "\xff\xff" + strings.Repeat("x", 70_000), ""},
		{"none", "127.0.0.1", "GET / HTTP/1.0\r\n\r\n", ""},
		{"nothing at all", "127.0.0.1", "", ""},
		{"not trusted", "127.0.0.9", good + "hello", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reply, err := exchange(t, tt.from, listen, []byte(tt.sends))
			if tt.reply != "" {
				if err != nil || string(reply) != tt.reply {
					t.Errorf("the client got %q, %v; want %q", reply, err, tt.reply)
				}
				return
			}
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) || len(reply) > 0 {
				t.Errorf("the client got %q, %v; want a reset", reply, err)
			}
		})
	}
	d.expectLog(`msg="connection refused" tunnel=main .*reason=bad-proxy-header`)
	// A client sees its connection end before the relay has closed the other side.
	nettest.Eventually(t, patience, func() bool { return d.status().FlowsNow == 0 }, func() string { return "flows are left after the headers" })
}

// Case 26, more of it: a client that sends half a header and then nothing is
// not waited for long.
func TestCase26HeaderThatStops(t *testing.T) {
	t.Parallel()
	listen := nettest.FreeAddress(t, "127.79.1.3")
	startTunnel(t, listen, "    proxy_protocol:\n      in: {trusted: [127.0.0.0/8]}\n")
	c, err := tcpscript.DialTo(listen)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "PROXY TCP4 192.0.2.1")
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client that stops within its header got %v, want a reset", err)
	}
}

// Case 27: who is not in the list is reset, whether the client's address
// arrives as IPv4 or as IPv4 mapped into IPv6, and whichever of several
// prefixes is the longest.
func TestCase27Access(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, listen, allow, from string
		allowed                   bool
	}{
		{"IPv4 listener, IPv4 prefix", "127.79.2.1:0", "127.0.0.0/24", "127.0.0.7", true},
		{"IPv4 listener, other IPv4 prefix", "127.79.2.1:0", "127.0.0.0/24", "127.0.1.7", false},
		{"both-family listener, IPv4 prefix", "[::]:0", "127.0.0.0/24", "127.0.0.7", true},
		{"both-family listener, other IPv4 prefix", "[::]:0", "127.0.0.0/24", "127.0.1.7", false},
		{"both-family listener, IPv6 prefix", "[::]:0", "'fd00::/8'", "127.0.0.7", false},
		{"the IPv6 loopback is not IPv4's", "[::]:0", "127.0.0.0/8", "::1", false},
		{"IPv6", "[::]:0", "'::1/128'", "::1", true},
		{"overlapping, in the larger", "127.79.2.1:0", "127.0.0.0/8, 127.0.0.0/32", "127.0.0.7", true},
		{"overlapping, in the smaller", "127.79.2.1:0", "127.0.0.0/16, 127.0.0.7/32", "127.0.0.7", true},
		{"overlapping, in neither", "127.79.2.1:0", "127.0.0.0/16, 127.0.0.7/32", "127.1.0.7", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			host, _, _ := net.SplitHostPort(tt.listen)
			listen := nettest.FreeAddress(t, host)
			d := startTunnel(t, listen, "    allow: ["+tt.allow+"]\n")
			_, port, _ := net.SplitHostPort(listen)
			to := listen
			if host == "::" {
				to = net.JoinHostPort("127.79.2.2", port)
				if strings.Contains(tt.from, ":") {
					to = net.JoinHostPort("::1", port)
				}
			}
			reply, err := exchange(t, tt.from, to, []byte("hello"))
			if tt.allowed {
				if err != nil || string(reply) != "hello" {
					t.Errorf("the client got %q, %v; want to be let in", reply, err)
				}
				return
			}
			if err == nil || len(reply) > 0 {
				t.Errorf("the client got %q, %v; want a reset", reply, err)
			}
			d.expectLog(`msg="connection refused" tunnel=main client=\S*` + strings.ReplaceAll(tt.from, ".", `\.`) + `\S* .*reason=denied`)
		})
	}
}

// Case 28: garbage on any port is answered by closing, the relay goes on, and
// the log has one line for the lot.
func TestCase28Garbage(t *testing.T) {
	t.Parallel()
	listen := nettest.FreeAddress(t, "127.79.3.1")
	d := startTunnel(t, listen, "    proxy_protocol:\n      in: {trusted: [127.0.0.0/8]}\n")
	garbage := bytes.Repeat([]byte{0x16, 0x03, 0x01, 0xff, 0x00, 'P', 'R'}, 1000)
	const many = 50
	for range many {
		if reply, err := exchange(t, "", listen, garbage); err == nil || len(reply) > 0 {
			t.Fatalf("the client got %q, %v; want a reset", reply, err)
		}
	}
	for range many {
		c, err := net.Dial("unix", d.socket())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		c.Write(garbage)
		c.Write([]byte("\r\n\r\n"))
		reply, err := io.ReadAll(c)
		c.Close()
		if len(reply) > 0 && !bytes.HasPrefix(reply, []byte("HTTP/1.1 400 ")) {
			t.Fatalf("the control socket answered %q, %v", reply, err)
		}
	}
	d.expectLog(`msg="connection refused"`)
	// A flow that works, and its line, come after all of the garbage's.
	if reply, err := exchange(t, "", listen, []byte("PROXY UNKNOWN\r\nhello")); err != nil || string(reply) != "hello" {
		t.Fatalf("after the garbage a client got %q, %v; want an answer", reply, err)
	}
	d.expectLog(`msg=flow .*\bend=end `)
	if lines := d.log.count("\n"); d.log.count("refused") != 1 || lines > 6 {
		t.Errorf("the log has %d lines, %d of them about garbage; want one of these:\n%s", lines, d.log.count("refused"), d.log)
	}
	nettest.Eventually(t, patience, func() bool { return d.status().FlowsNow == 0 }, func() string { return "flows are left" })
}

// Case 29: what could be secret is in no log, status or error: credentials
// that somebody writes into a target, and the environment.
func TestCase29Secrets(t *testing.T) {
	const secret = "hunter2-LxP0"
	t.Setenv("LONGHAUL_TOKEN", secret)
	listen := nettest.FreeAddress(t, "127.79.4.1")
	d := startTunnel(t, listen, "")
	if reply, err := exchange(t, "", listen, []byte(secret)); err != nil || string(reply) != secret {
		t.Fatalf("the client got %q, %v; want the secret back", reply, err)
	}
	d.expectLog(`msg=flow .*\bend=end `)
	d.write(fmt.Sprintf("control_socket: SOCKET\ntunnels:\n  - name: main\n    listen: %q\n    forward: %q\n", listen, "user:"+secret+"@127.0.0.1:5432"))
	d.signal(syscall.SIGHUP)
	d.expectLog(`msg="reload failed`)
	if body, err := control.Status(t.Context(), d.socket()); err != nil || bytes.Contains(body, []byte(secret)) {
		t.Errorf("the status has the secret, or is missing (%v):\n%s", err, body)
	}
	d.signal(syscall.SIGTERM)
	d.expectExit(0)
	if strings.Contains(d.log.String(), secret) {
		t.Errorf("the log has the secret:\n%s", d.log)
	}
	for _, args := range [][]string{
		{"config", "check", d.file()},
		{"relay", "--listen", listen, "--forward", "user:" + secret + "@127.0.0.1:5432"},
	} {
		output, status := command(t, args...)
		if status == 0 {
			t.Errorf("%v: credentials in a target were taken", args)
		}
		if strings.Contains(output, secret) {
			t.Errorf("%v tells the secret:\n%s", args, output)
		}
	}
}
