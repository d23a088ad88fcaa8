package measure

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// answering listens, and has do with each connection what it wants after the
// client's cookie, until the test ends.
func answering(t *testing.T, do func(conn net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(tcpserver.Serve(l, afterCookie(do)))
	return l.Addr().String()
}

func afterCookie(do func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := io.ReadFull(conn, make([]byte, cookieBytes)); err == nil {
			do(conn)
		}
	}
}

// says answers with bytes, and waits for the client to leave.
func says(what string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = io.WriteString(conn, what)
		_, _ = io.Copy(io.Discard, conn)
	}
}

// TestTrouble: whatever is at the other end, the user gets a sentence for it.
func TestTrouble(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, address, want string }{
		{"refused", nettest.FreeAddress(t, "127.0.0.1"), "nobody listens at 127.0.0.1:"},
		{"no such name", "nowhere.invalid:5201", "find the address of nowhere.invalid: "},
		{"closed at once", answering(t, func(net.Conn) {}),
			"it accepts the connection and closes it without an answer"},
		{"SSH", answering(t, says("SSH-2.0-OpenSSH_9.2p1\r\n")), `it does not speak iperf3's protocol: it begins with "SSH-2.0-OpenSSH_9.2p1"`},
		{"HTTP that answers", answering(t, says("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")), `it begins with "HTTP/1.1 400 Bad Request"`},
		{"busy", answering(t, says("\xff")), "the server is busy with another test"},
		{"ended at once", answering(t, says("\x0b")), "accepts the connection and closes it without an answer"},
		{"another step", answering(t, says("\x09\x02")), "it does not speak iperf3's protocol: step 2 where 10 was due"},
		{"closed later", answering(t, func(conn net.Conn) { _, _ = conn.Write([]byte{9}) }), "ended the test early"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Run(t.Context(), test.address, Options{Duration: time.Second, Patience: patience})
			expectTrouble(t, test.address, err, test.want)
		})
	}
}

func expectTrouble(t *testing.T, address string, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatal("it was taken for a server")
	}
	if explained := Explain(address, err); !strings.Contains(explained.Error(), want) {
		t.Errorf("%v, want %q", explained, want)
	}
}

// TestSilence: the other end says nothing, or no more. The connections are in
// memory, and the wait passes on a bubble's clock.
func TestSilence(t *testing.T) {
	web := func(conn net.Conn) {
		l := nettest.ListenPipe()
		go l.Offer(conn)
		server := http.Server{Handler: http.NotFoundHandler(), ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				l.Close()
			}
		}}
		_ = server.Serve(l) // until the client leaves
	}
	for _, test := range []struct {
		name, want string
		serve      func(net.Conn)
	}{
		{"silent", "it accepts the connection and sends nothing for 2s", afterCookie(says(""))},
		{"HTTP", "it accepts the connection and sends nothing for 2s", web},
		{"iperf3's error", "it refuses the test: iperf3's error 121", afterCookie(says("\xfe\x00\x00\x00\x79\x00\x00\x00\x00"))},
		{"silent later", "stopped answering during the test", afterCookie(says("\x09"))},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				go func() {
					defer theirs.Close()
					test.serve(theirs)
				}()
				const address = "192.0.2.1:5201"
				_, err := Run(t.Context(), address, Options{
					Duration: time.Second, Patience: 2 * time.Second,
					Dialer: func(context.Context, string, string, Control) (net.Conn, error) { return ours, nil },
				})
				expectTrouble(t, address, err, test.want)
			})
		})
	}
}

// TestNoWay: the sandbox has no route beyond its own host.
func TestNoWay(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	const far = "192.0.2.1:5201"
	_, err := Run(t.Context(), far, Options{})
	if explained := Explain(far, err); explained == nil || explained.Error() != "no route to 192.0.2.1:5201: network is unreachable" {
		t.Errorf("want no way to the server, got %v", explained)
	}
}

// TestFiltered: a host whose queue of new connections is full drops what asks
// for one, as a firewall does.
func TestFiltered(t *testing.T) {
	t.Parallel()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, unix.Listen(fd, 0))
	name, err := unix.Getsockname(fd)
	must(t, err)
	address := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*unix.SockaddrInet4).Port}).String()
	conn, err := net.Dial("tcp", address) // all that it takes
	must(t, err)
	defer conn.Close()
	nettest.Eventually(t, patience, func() bool {
		info, err := tcpinfo.Get(fd)
		return err == nil && info.Unacked == 1 // of a listener: connections that wait for accept
	}, func() string { return "the connection does not wait in the listener's queue" })
	_, err = Run(t.Context(), address, Options{Patience: 200 * time.Millisecond})
	if explained := Explain(address, err); explained == nil || explained.Error() != address+": it does not answer within 200ms" {
		t.Errorf("want no answer within 200ms, got %v", explained)
	}
}

// TestServerGoes: the client notices at once that its server has ended, whichever
// way the data go.
func TestServerGoes(t *testing.T) {
	t.Parallel()
	for _, direction := range []Direction{Send, Receive, Both} {
		// The server is one of the abuser's kind: it goes in the middle.
		gone := make(chan struct{})
		address := answering(t, func(conn net.Conn) {
			if _, err := conn.Write([]byte{byte(paramExchange)}); err != nil {
				return
			}
			var p Parameters
			if readMessage(conn, maxRequest, &p) != nil {
				<-gone // a stream
				return
			}
			_, _ = conn.Write([]byte{byte(createStreams), byte(testStart), byte(testRunning)})
			<-gone
		})
		running := make(chan struct{}, 1000)
		result := make(chan error, 1)
		go func() {
			_, err := Run(t.Context(), address, Options{Direction: direction, Duration: time.Hour, Interval: 20 * time.Millisecond, PacingBps: testRate, Report: func(Interval) { running <- struct{}{} }})
			result <- err
		}()
		<-running
		close(gone)
		select {
		case err := <-result:
			if explained := Explain(address, err); explained == nil || explained.Error() != address+" ended the test early" {
				t.Errorf("%s: %v", direction, explained)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the client goes on without a server", direction)
		}
	}
}
