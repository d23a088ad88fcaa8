// Package tcpserver serves TCP connections for tests and experiments.
package tcpserver

import (
	"io"
	"net"
	"sync"
)

// Serve accepts connections of l and serves each in its own goroutine. It closes the
// connection when serve returns. stop closes l and the remaining connections, and
// waits for all goroutines. It may be called again.
func Serve(l net.Listener, serve func(net.Conn)) (stop func()) {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		open  = map[net.Conn]bool{}
		ended bool
	)
	keep := func(c net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		open[c] = true
		return !ended
	}
	drop := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		delete(open, c)
		c.Close()
	}
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer drop(c)
				if keep(c) {
					serve(c)
				}
			})
		}
	})
	return func() {
		l.Close()
		mu.Lock()
		ended = true
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	}
}

// Echo sends back the received bytes, and ends its stream after the client's.
func Echo(c net.Conn) {
	// Plain copies: the standard library's splice pipes outlive the connections, and
	// leak checks count them.
	if _, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}); err != nil {
		return
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the connection is about to close
	}
}

// Discard reads until the client's stream ends.
func Discard(c net.Conn) {
	_, _ = io.Copy(io.Discard, c) // an error also ends the connection
}
