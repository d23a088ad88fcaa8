package measure

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/nettest"
)

// shortPatience is for cases in which something is waited for in vain. It is long
// enough for loopback on a busy machine.
const shortPatience, longPatience = 2 * time.Second, 10 * time.Second

// answering listens, and has do with each connection what it wants after the
// client's cookie, until the test ends.
func answering(t *testing.T, do func(conn net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := io.ReadFull(conn, make([]byte, cookieBytes)); err == nil {
					do(conn)
				}
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	return l.Addr().String()
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
	nettest.CheckLeaks(t)
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	for _, test := range []struct {
		name, address, want string
		patience            time.Duration
	}{
		{"refused", nettest.FreeAddress(t, "127.0.0.1"), "nobody listens at 127.0.0.1:", longPatience},
		{"no such name", "nowhere.invalid:5201", "cannot find the address of nowhere.invalid: ", longPatience},
		{"silent", answering(t, says("")), "it accepts the connection, and then says nothing for 2s", shortPatience},
		{"closed at once", answering(t, func(net.Conn) {}), "it accepts the connection, and closes it without a word", longPatience},
		{"SSH", answering(t, says("SSH-2.0-OpenSSH_9.2p1\r\n")), `it does not speak iperf3's protocol: it begins with "SSH-2.0-OpenSSH_9.2p1"`, longPatience},
		{"HTTP", web.Listener.Addr().String(), "it accepts the connection, and then says nothing for 2s", shortPatience},
		{"HTTP that answers", answering(t, says("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")), `it begins with "HTTP/1.1 400 Bad Request"`, longPatience},
		{"busy", answering(t, says("\xff")), "the server is busy with another test", longPatience},
		{"ended at once", answering(t, says("\x0b")), "accepts the connection, and closes it without a word", longPatience},
		{"iperf3's error", answering(t, says("\xfe\x00\x00\x00\x79\x00\x00\x00\x00")), "it refuses the test: iperf3's error 121", shortPatience},
		{"another step", answering(t, says("\x09\x02")), "it does not speak iperf3's protocol: step 2 where 10 was due", longPatience},
		{"closed later", answering(t, func(conn net.Conn) { _, _ = conn.Write([]byte{9}) }), "ended the test before its time", longPatience},
		{"silent later", answering(t, says("\x09")), "said nothing more in the middle of the test", shortPatience},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Run(t.Context(), test.address, Options{Duration: time.Second, Patience: test.patience})
			if err == nil {
				t.Fatal("it was taken for a server")
			}
			explained := Explain(test.address, err)
			if !strings.Contains(explained.Error(), test.want) {
				t.Errorf("%v, want %q", explained, test.want)
			}
		})
	}
}

// TestNoWay: the sandbox has no route beyond its own host.
func TestNoWay(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	const far = "192.0.2.1:5201"
	_, err := Run(t.Context(), far, Options{})
	if explained := Explain(far, err); explained == nil || explained.Error() != "there is no way to 192.0.2.1:5201: network is unreachable" {
		t.Errorf("%v", explained)
	}
}

// TestFiltered: a host whose queue of new connections is full drops what asks
// for one, as a firewall does.
func TestFiltered(t *testing.T) {
	nettest.CheckLeaks(t)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	must(t, err)
	defer syscall.Close(fd)
	must(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	must(t, err)
	address := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}).String()
	for full := false; !full; {
		conn, err := net.DialTimeout("tcp", address, shortPatience)
		if full = err != nil; !full {
			defer conn.Close()
		}
	}
	_, err = Run(t.Context(), address, Options{Patience: shortPatience})
	if explained := Explain(address, err); explained == nil || explained.Error() != address+": it does not answer within 2s" {
		t.Errorf("%v", explained)
	}
}

// TestServerGoes: the client notices at once that its server has ended, whichever
// way the data go.
func TestServerGoes(t *testing.T) {
	nettest.CheckLeaks(t)
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
			_, err := Run(t.Context(), address, Options{Direction: direction, Duration: time.Minute, Interval: 20 * time.Millisecond, PacingBps: testRate, Report: func(Interval) { running <- struct{}{} }})
			result <- err
		}()
		<-running
		close(gone)
		select {
		case err := <-result:
			if explained := Explain(address, err); explained == nil || explained.Error() != address+" ended the test before its time" {
				t.Errorf("%s: %v", direction, explained)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the client goes on without a server", direction)
		}
	}
}
