package tcpserver_test

import (
	"io"
	"net"
	"testing"

	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

func TestEcho(t *testing.T) {
	nettest.CheckLeaks(t)
	l := listen(t)
	stop := tcpserver.Serve(l, tcpserver.Echo)
	t.Cleanup(stop)
	c := dial(t, l)
	if _, err := io.WriteString(c, "there and back"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "there and back" {
		t.Errorf("got %q, %v", got, err)
	}
	// The server ends connections whose clients do not.
	silent := dial(t, l)
	if _, err := io.WriteString(silent, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(silent, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	stop()
	if n, err := silent.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes came after the server's end", n)
	}
	stop()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dial(t *testing.T, l net.Listener) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}
