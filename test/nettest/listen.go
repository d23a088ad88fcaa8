package nettest

import (
	"net"
	"testing"
)

// ListenTCP listens on an IPv4 address, without MPTCP.
func ListenTCP(t testing.TB, address string) *net.TCPListener {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	return l.(*net.TCPListener)
}
