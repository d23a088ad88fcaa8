package httpd

import (
	"net/http"
	"time"
)

// keptBuffer bounds the bytes that the kernel buffers for a client that does
// not read, so that a write soon fails.
const keptBuffer = 64 << 10

// Keep makes the answer to a request long-lived, such as a stream of events.
// The connection no longer counts towards Limits.Connections, but towards
// Limits.Kept. At that limit it replaces the oldest connection of the source
// with most, if its own source has at least two fewer. Otherwise ok is false.
//
// The server's deadlines no longer apply: set one for each write with
// [http.ResponseController]. The handler must return soon after leave is
// closed. On a server without bounds, ok is true and leave is nil.
func Keep(w http.ResponseWriter, r *http.Request) (leave <-chan struct{}, ok bool) {
	g, bounded := r.Context().Value(connKey{}).(*limitedConn)
	if bounded {
		if !g.limiter.keepOpen(g) {
			return nil, false
		}
		leave = g.limiter.leave
		if c, ok := g.Conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
			_ = c.SetWriteBuffer(keptBuffer)
		}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // otherwise the server considers the client gone
	_ = control.SetWriteDeadline(time.Time{})
	return leave, true
}
