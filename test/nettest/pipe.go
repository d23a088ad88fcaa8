package nettest

import (
	"net"
	"sync"
)

// PipeListener accepts connections in memory (net.Pipe), for tests with
// testing/synctest: real sockets stop its clock.
type PipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

// ListenPipe makes a listener that only Dial and Offer reach.
func ListenPipe() *PipeListener {
	l := &PipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Dial returns the client's end of a connection once the server has accepted
// the other end.
func (l *PipeListener) Dial() (net.Conn, error) {
	client, server := net.Pipe()
	return client, l.Offer(server)
}

// Offer passes a connection to Accept.
func (l *PipeListener) Offer(conn net.Conn) error {
	select {
	case l.conns <- conn:
		return nil
	case <-l.closed:
		return net.ErrClosed
	}
}

// Accept waits for a connection, or for Close.
func (l *PipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close stops accepting.
func (l *PipeListener) Close() error {
	l.close()
	return nil
}

// Addr returns a placeholder address.
func (l *PipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
