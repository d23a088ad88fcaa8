package pair

import (
	"io"
	"time"

	"longhaul/internal/carry/pair/wire"
)

// connection is one that has been through its handshake.
type connection struct {
	bulk   *bulkConn
	stream io.ReadWriter // TLS, or bulk in clear
	hello  wire.Hello    // of the other end
	who    host          // that has proved its key
	path   *wanPath      // of a near end
	listed bool          // of a near end: HELLO's address is one of the tunnel's
	both   wire.Features // that both ends want
	leave  func()        // ends the turn of a control connection
}

// readHello reads the far relay's answer to a HELLO with these features.
func readHello(r io.Reader, want wire.Features) (wire.Hello, error) {
	hello, err := wire.ReadHello(r)
	if err != nil {
		return hello, handshakeProblem(err)
	}
	if err := refusedBy(hello); err != nil {
		return hello, err
	}
	return hello, agreed(want, hello.Features)
}

// finish ends the handshake's deadline, and TLS of a lane if both ends want that.
func (c *connection) finish(lane bool) *connection {
	c.bulk.flushReads, c.bulk.strained = false, nil
	c.bulk.endBy(time.Time{})
	c.bulk.rtt, c.bulk.repeats = pathOf(c.bulk)
	c.bulk.control(keepAlive)
	if lane && c.both&wire.FeatureClear != 0 {
		c.bulk.goClear()
		c.stream = c.bulk
	}
	return c
}

// sums reports whether frames have sums: in clear nothing else finds an altered head.
func (c *connection) sums() bool {
	const both = wire.FeatureClear | wire.FeatureSums
	return c.both&both == both
}
