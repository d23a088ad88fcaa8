package httpd

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// Clients are the connections of an [http.Server], counted. They are what
// http.Server's Shutdown does not wait for while their request is on its way.
type Clients struct{ here sync.WaitGroup }

// Count begins to count those of a server that does not serve yet.
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

// Finish ends a server that accepts no more, as [http.Server].Serve having
// returned says: it waits until its clients are answered, or ctx ends.
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
