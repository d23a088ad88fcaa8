package identity

import (
	"errors"
	"net"
)

// maxJoins bounds the connections that a process holds for joins at a time, in a relay
// and in [Store.ServeInvitation] alike.
const maxJoins = 64

// errCrowded ends a join that had to give its place to another.
var errCrowded = errors.New("too many joins at a time: its place went to another source")

// reset closes a connection as one that nobody here takes.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
