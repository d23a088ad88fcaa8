package pair

import (
	"io"
	"syscall"
	"time"

	"longhaul/internal/carry/pair/wire"
)

// handshakeTimeout bounds the preface of a connection, and the other end's part of TLS and of HELLO each,
// beside the time for which they wait for a processor.
const handshakeTimeout = 10 * time.Second

// nearHandshake is the near relay's bound: it gives up before the far one does, whose reset would say that
// no relay is there.
const nearHandshake = handshakeTimeout - handshakeTimeout/20

// strained is how late this process is.
func (n *Node) strained() time.Duration { return n.strain.now(time.Now()) }

// connection is one that has been through its handshake.
type connection struct {
	bulk   *bulkConn
	stream io.ReadWriter // TLS, or bulk in clear
	hello  wire.Hello    // of the other end
	peer   string
	path   *wanPath      // of a near end
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

// nearHello is the HELLO of a near end, which also says how long its flows wait for a
// lane, since the far end waits as long, and of which tunnel it is.
func (n *Node) nearHello(s *session, o LinkOptions) wire.Hello {
	h := n.hello(s.id, o.Tunnel)
	h.Resume, h.Features, h.Origin = s.waits(o), s.features()|wire.FeatureLanes|wire.FeatureAhead|wire.FeatureHeld|wire.FeatureSent|wire.FeatureTrouble, o.Origin
	h.Features &^= n.options.Without
	h.Boot = n.options.Boot
	return h
}

func (n *Node) hello(session uint64, tunnel string) wire.Hello {
	return wire.Hello{Lowest: wire.LowestVersion, Highest: wire.HighestVersion, Instance: n.instance,
		Session: session, Tunnel: tunnel, Release: n.options.Release}
}

type rawConn = syscall.RawConn
