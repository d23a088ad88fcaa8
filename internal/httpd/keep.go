package httpd

import (
	"net/http"
	"time"
)

// keptBuffer bounds what the kernel holds for a client that does not read,
// bytes, so that a write soon says so.
const keptBuffer = 64 << 10

// Keep has the answer to a request last, as a stream of events does. Its
// connection gives its place back to the crowd, so there are at most Limits.Kept
// of them. Another takes the place of the oldest of the source that has the most,
// if its own source has fewer by two at least; else ok is false.
// The server's deadlines no longer hold: each write needs one of its own, by
// [http.ResponseController]. The handler returns soon once leave is closed.
//
// Requests of a server without bounds are kept, and nobody asks them to leave.
func Keep(w http.ResponseWriter, r *http.Request) (leave <-chan struct{}, ok bool) {
	g, bounded := r.Context().Value(guestKey{}).(*guest)
	if bounded {
		if !g.crowd.stays(g) {
			return nil, false
		}
		leave = g.crowd.leave
		if c, ok := g.Conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
			_ = c.SetWriteBuffer(keptBuffer)
		}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // else the server takes the client for gone
	_ = control.SetWriteDeadline(time.Time{})
	return leave, true
}
