package httpd

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// Clients counts the connections of an [http.Server]. Server.Shutdown does not
// wait for connections whose request is still arriving.
type Clients struct{ here sync.WaitGroup }

// Count starts counting the connections of a server; call it before the server
// serves.
func (c *Clients) Count(s *http.Server) {
	s.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			c.here.Add(1)
		case http.StateClosed:
			c.here.Done()
		}
	}
}

// Finish closes a server whose [http.Server].Serve has returned: it waits until
// its clients are answered or ctx ends.
func (c *Clients) Finish(ctx context.Context, s *http.Server) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.here.Wait()
	}()
	select {
	case <-answered:
	case <-ctx.Done():
	}
	s.Close()
}
