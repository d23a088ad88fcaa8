package socket

import (
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// TestUrgentDespiteSignals: urgent data that waits is read, whatever signals arrive. recvfrom itself
// returned EAGAIN for 276 of 20 000 urgent bytes on Linux 6.18.
func TestUrgentDespiteSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from, to := connected(t)
	KeepUrgentInLine(to)

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func(thread int) {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default: // by which the runtime preempts: every program takes it at any time
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
			}
		}
	}(unix.Gettid())
	defer func() { close(stop); <-stopped }()

	b := make([]byte, 16)
	deadline := time.Now().Add(time.Minute)
	for round := range 20_000 {
		if n, errno := Send(from, []byte{byte(round)}, unix.MSG_OOB); n != 1 {
			t.Fatalf("round %d: send: %v", round, errno)
		}
		for Unread(to) == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: the urgent byte did not arrive", round)
			}
		}
		if n, errno := Peek(to, b); n != 1 || b[0] != byte(round) {
			t.Fatalf("round %d: peek: %d bytes, first %d; %v", round, n, b[0], errno)
		}
		if n, errno := Recv(to, b); n != 1 || b[0] != byte(round) {
			t.Fatalf("round %d: read: %d bytes, first %d; %v", round, n, b[0], errno)
		}
	}
	if n, errno := Recv(to, b); errno != unix.EAGAIN {
		t.Fatalf("read of an empty socket: %d bytes, %v", n, errno)
	}
}

// TestUrgencyIsSeen: an urgent byte that comes while its socket is read is no ordinary one. With a look at the
// mark before each read 213 of 20 000 were, on Linux 6.18.
func TestUrgencyIsSeen(t *testing.T) {
	from, to := connected(t)
	KeepUrgentInLine(to)
	const rounds = 20_000
	next := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		for range rounds {
			for _, flags := range []uintptr{0, unix.MSG_OOB} {
				if n, errno := Send(from, []byte{byte(flags)}, flags); n != 1 {
					done <- errno
					return
				}
			}
			<-next
		}
		done <- nil
	}()
	missed, b := 0, make([]byte, 16)
	for round := range rounds {
		for got := 0; got < 2; {
			n, urgent, errno := RecvToMark(to, b)
			if errno == unix.EAGAIN {
				continue
			}
			if n == 0 || errno != 0 || urgent && (n != 1 || b[0] != unix.MSG_OOB) {
				t.Fatalf("round %d: read %d bytes, urgent %t, first %d; %v", round, n, urgent, b[0], errno)
			}
			got += n
			missed += btoi(!urgent && b[n-1] == unix.MSG_OOB)
		}
		next <- struct{}{}
	}
	nettest.Must(t, <-done)
	if missed > 0 {
		t.Errorf("of %d urgent bytes %d came as ordinary ones", rounds, missed)
	}
	_ = unix.Shutdown(from, unix.SHUT_WR)
	for {
		if n, _, errno := RecvToMark(to, b); errno != unix.EAGAIN {
			if n != 0 || errno != 0 {
				t.Errorf("at the end: %d bytes, %v", n, errno)
			}
			return
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// connected returns both ends of a connection, which do not block.
func connected(t *testing.T) (from, to int) {
	t.Helper()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	defer l.Close()
	near, err := net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	far, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return descriptor(t, near), descriptor(t, far)
}

// descriptor returns a connection's descriptor, which is valid until the connection is closed.
func descriptor(t *testing.T, c *net.TCPConn) (fd int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	nettest.Must(t, raw.Control(func(of uintptr) { fd = int(of) }))
	return fd
}
