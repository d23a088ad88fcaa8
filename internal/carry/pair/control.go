package pair

import (
	"bufio"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/socket"
)

// ackDelay is how long an ACK waits for others.
const ackDelay = 20 * time.Millisecond

// writeTimeout bounds a write to the control connection, whose reader never pauses.
const writeTimeout = 30 * time.Second

const (
	// maxQueued bounds the messages that wait for the writer, in bytes. Who causes answers
	// and reads none is read no more; messages that are repeated anyway are left out.
	maxQueued = 256 << 10
	// maxFill bounds the messages of flows in one write, but for those of the last flow.
	maxFill = 64 << 10
)

// control is the control connection of a session: one goroutine reads, one writes.
type control struct {
	c    *connection
	kick chan struct{}
	gone chan struct{} // closed by close
	once sync.Once

	heard   atomic.Int64 // stamp of the latest message of the other end
	suspect atomic.Bool  // near relay: the other end owes an answer, see suspectNow

	mu     sync.Mutex
	drain  cond    // of mu: the queue has room, or the connection is closed
	queue  []byte  // messages that wait, besides those of flows
	pong   *uint64 // the number of the latest PING without an answer; nil: none
	pinged time.Time
	ping   uint64 // the number of the ping that is under way; 0: none
	// repeats are the segments that the kernel had sent again when it went out.
	repeats uint32
	pings   uint64
	keys    string // the key that was announced on this connection
	// announced is when.
	announced time.Time
}

// greeter is the attempt for a control connection that has sent HELLO, one at a time. The far relay takes the
// connection that greets last. If a second one greeted beside the first, this end might have the first, and
// would lose both.
type greeter struct {
	mu    sync.Mutex
	bulk  *bulkConn // nil: none
	since time.Time
}

// begin has an attempt send HELLO if it is still needed and no other one waits for its answer. One that has
// waited for longer than within gives way: it is reset, so that nothing of it comes later.
func (g *greeter) begin(bulk *bulkConn, within time.Duration, needed func() bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !needed() || g.bulk != nil && time.Since(g.since) <= within {
		return false
	}
	if g.bulk != nil {
		g.bulk.control(func(fd int) { setReset(fd, true) })
		g.bulk.Close()
	}
	g.bulk, g.since = bulk, time.Now()
	return true
}

// is reports that an attempt has sent HELLO and has not given way since.
func (g *greeter) is(bulk *bulkConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bulk == bulk
}

// end has others greet from now on, if that was up to the attempt.
func (g *greeter) end(bulk *bulkConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bulk == bulk {
		g.bulk = nil
	}
}

func newControl(c *connection) *control {
	c.bulk.corked = false
	return &control{c: c, kick: make(chan struct{}, 1), gone: make(chan struct{})}
}

func (c *control) close() {
	c.once.Do(func() {
		close(c.gone)
		c.c.bulk.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.drain.broadcast()
	})
}

func (c *control) isClosed() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// answered reports that no PING is without an answer, or that there will be none.
func (c *control) answered() bool {
	if c.isClosed() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ping == 0
}

// silent reports that the other end has said nothing for so long. What it has said may
// wait here: a process that gets no processor does not look at it.
func (c *control) silent(now time.Time, within time.Duration) bool {
	if stamp(c.heard.Load()).until(now) <= within {
		return false
	}
	unseen := 0
	c.c.bulk.control(func(fd int) { unseen = socket.Unread(fd) })
	return unseen == 0
}

// suspectNow has the connection be suspect if a PING has had no answer for so long, and nothing else has
// come either. It reports whether it was not so before.
func (c *control) suspectNow(now time.Time, within time.Duration) bool {
	owed := func() bool {
		since, waits := c.waits(now)
		return waits && since > within && c.silent(now, within)
	}
	if c.suspect.Load() || !owed() {
		return false
	}
	c.suspect.Store(true)
	if !owed() { // a message has come meanwhile, whose reader may have looked too early
		c.suspect.Store(false)
		return false
	}
	return true
}

// trusted ends what suspectNow began: a message has come. It reports whether there was something to end.
func (c *control) trusted() bool { return c.suspect.Load() && c.suspect.CompareAndSwap(true, false) }

// ask sends a PING if the latest one has an answer and is not too young for another.
func (c *control) ask(now time.Time) {
	if since, waits := c.waits(now); !waits && since >= tickEvery-tickEvery/4 { // ticks are not exact
		c.sendPing()
	}
}

// post sends a message soon. What the other end can cause at will is a matter of reply.
func (c *control) post(m wire.Message) {
	c.mu.Lock()
	c.queue = m.Append(c.queue)
	c.mu.Unlock()
	c.flush()
}

// offer is post for a message that its sender repeats: it reports false if too much waits.
func (c *control) offer(m wire.Message) bool {
	c.mu.Lock()
	full := len(c.queue) > maxQueued
	if !full {
		c.queue = m.Append(c.queue)
	}
	c.mu.Unlock()
	c.flush()
	return !full
}

// reply is post for an answer. It waits until the other end has read most answers before it:
// the reader of a connection that brings questions reads no more of them meanwhile.
func (c *control) reply(m wire.Message) {
	c.post(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > maxQueued && !c.isClosed() {
		c.drain.wait(&c.mu)
	}
}

// answerPing answers a PING. Of several without an answer the latest counts: who sent them
// waits for that one.
func (c *control) answerPing(number uint64) {
	c.mu.Lock()
	c.pong = &number
	c.mu.Unlock()
	c.flush()
}

func (c *control) flush() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// read handles messages until the connection ends.
func (c *control) read(handle func(wire.Message)) error {
	r := bufio.NewReaderSize(c.c.stream, 4<<10)
	buf := make([]byte, 512) // room for most messages
	for {
		m, err := wire.ReadMessage(r, &buf)
		if err != nil {
			return err
		}
		c.heard.Store(int64(stampNow()))
		handle(m)
	}
}

// write sends what waits, until the connection ends. fill appends the messages of flows.
func (c *control) write(fill func([]byte) []byte) error {
	var out []byte
	for {
		select {
		case <-c.gone:
			return nil
		case <-c.kick:
		}
		c.mu.Lock()
		out = append(out[:0], c.queue...)
		c.queue = c.queue[:0]
		if c.pong != nil {
			out = wire.Message{Type: wire.MessagePong, Bytes: binary.BigEndian.AppendUint64(nil, *c.pong)}.Append(out)
			c.pong = nil
		}
		c.drain.broadcast()
		c.mu.Unlock()
		before := len(out)
		if out = fill(out); len(out) == 0 {
			continue
		}
		if len(out)-before > maxFill {
			c.flush() // other flows may have more
		}
		_ = c.c.bulk.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := c.c.stream.Write(out); err != nil {
			return err
		}
	}
}

// announceEvery is the time between two announcements of a key that the peer has not taken.
const announceEvery = 10 * time.Second

// announce tells the peer a key that a rotation made, and again while it could not store it.
func (c *control) announce(key []byte) {
	if key == nil {
		return
	}
	c.mu.Lock()
	due := c.keys != string(key) || time.Since(c.announced) > announceEvery
	if due {
		c.keys, c.announced = string(key), time.Now()
	}
	c.mu.Unlock()
	if due {
		c.post(wire.Message{Type: wire.MessageKey, Bytes: key})
	}
}

func (c *control) sendPing() {
	_, repeats := pathOf(c.c.bulk)
	c.mu.Lock()
	c.pings++
	id := c.pings
	c.ping, c.pinged, c.repeats = id, time.Now(), repeats
	c.mu.Unlock()
	c.post(wire.Message{Type: wire.MessagePing, Bytes: binary.BigEndian.AppendUint64(nil, id)})
}

// takePong takes the answer to a PING: when that was sent, its round trip, and the kernel's, which is 0
// if segments were sent again meanwhile. It reports false for an answer to another one.
func (c *control) takePong(id uint64) (sent time.Time, rtt, known time.Duration, ok bool) {
	c.mu.Lock()
	sent, repeats := c.pinged, c.repeats
	if ok = c.ping == id && id != 0; ok {
		c.ping = 0
	}
	rtt = time.Since(sent)
	c.mu.Unlock()
	if !ok {
		return sent, 0, 0, false
	}
	if kernels, now := pathOf(c.c.bulk); now == repeats {
		known = max(kernels, 1)
	}
	return sent, rtt, known, true
}

// waits reports whether a PING is without an answer, and for how long.
func (c *control) waits(now time.Time) (long time.Duration, waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(c.pinged), c.ping != 0
}
