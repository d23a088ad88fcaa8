package nettest

import (
	"io"
	"net"
	"runtime/debug"
	"testing"
)

// TestPooledPipes has io.Copy splice between sockets. Its pipes are no leak, though nothing collects garbage.
func TestPooledPipes(t *testing.T) {
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	CheckLeaks(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	Must(t, err)
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			c.Close()
		}
		served <- err
	}()
	c, err := net.Dial("tcp4", l.Addr().String())
	Must(t, err)
	defer c.Close()
	one := []byte{'x'}
	_, err = c.Write(one)
	Must(t, err)
	_, err = io.ReadFull(c, one)
	Must(t, err)
	Must(t, c.(*net.TCPConn).CloseWrite())
	Must(t, <-served)
}
