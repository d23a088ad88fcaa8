package main

import "math/rand/v2"

// slack is how many bytes may be on their way unread while their sender goes
// on: what fits into the smallest buffers.
const slack = 1000

// composer makes a script by making up an order of the steps of both ends. A step
// waits only for steps that come before it in this order, and before more than
// slack bytes are sent their reader is about to read them. So no script can stop
// for ever on direct TCP, whatever the buffers.
type composer struct {
	*rand.Rand
	script *Script
	due    [2]int // bytes sent to an end that its steps do not read yet
	most   int    // bytes at a time
}

// Generate makes the n-th script of a seed.
func Generate(seed, n uint64) *Script {
	c := &composer{Rand: rand.New(rand.NewPCG(seed, n)), script: &Script{}, most: 4 << 20}
	s := c.script
	s.Family = Family(c.IntN(int(families)))
	s.FastOpen = c.one(10)
	s.LateAccept = c.one(10)
	s.Activated = c.one(25)
	if c.one(40) {
		s.Refused, s.LateAccept, s.Activated = true, false, false
	}
	for _, e := range s.ends() {
		e.SendBuffer, e.ReceiveBuffer = c.buffer(1, 16<<10, 64<<10), c.buffer(4<<10, 64<<10, 1<<10)
		e.NoDelay = !c.one(4) // Nagle's waiting costs 40 ms a time
		e.InLine = c.one(2)
		e.TakesUrgent = c.one(2)
	}
	for range c.IntN(6) {
		c.event()
	}
	c.ending()
	if s.Activated {
		s.Client.onlyOneUrgent()
	}
	return s
}

// onlyOneUrgent has an end send its later urgent bytes as ordinary ones. Where a
// second one comes before the first was read, the kernel drops the first unless
// the socket has SO_OOBINLINE, which it lacks before there is a relay.
func (e *End) onlyOneUrgent() {
	first := true
	for i, t := range e.Steps {
		if t.Op == OpUrgent && !first {
			e.Steps[i] = Step{Op: OpSend, Bytes: 1, Chunk: 1}
		}
		first = first && t.Op != OpUrgent
	}
}

// one is true in one of n cases.
func (c *composer) one(n int) bool { return c.IntN(n) == 0 }

// buffer is the size of a buffer. What a script sends at a time is bounded where
// buffers are small: a window below a segment's size, which on loopback is 64 kB,
// opens by timers of 200 ms. The least buffer for sending is the kernel's (4608).
// Its least for receiving (2304) makes direct connections stand still, too: a
// target with both, which sends while 1553 bytes wait for it, the last one urgent,
// did so in 64 of 300 runs, for half a second or more. Whether it does depends on
// how the bytes were divided, so direct TCP cannot judge a relay there.
func (c *composer) buffer(tiny, medium, mostTiny int) int {
	switch c.IntN(16) {
	case 0:
		c.most = min(c.most, mostTiny)
		return tiny
	case 1:
		c.most = min(c.most, 256<<10)
		return medium
	case 2:
		return 8 << 20 // as much as net.core.rmem_max allows
	}
	return 0
}

// size is how many bytes a bulk has: mostly few.
func (c *composer) size() int {
	most := [...]int{10, 100, 4 << 10, 4 << 10, 64 << 10, 64 << 10, 256 << 10, 1 << 20}[c.IntN(8)]
	if c.one(200) {
		most = 4 << 20
	}
	return 1 + c.IntN(min(most, c.most))
}

// chunk is how much of so many bytes one call moves.
func (c *composer) chunk(bytes int) int {
	least := 1 + bytes/64 // so many calls
	switch c.IntN(4) {
	case 0:
		return least
	case 1:
		return least + c.IntN(max(1, bytes))
	case 2:
		return max(least, 4096)
	}
	return max(bytes, 1)
}

func (c *composer) end(i int) *End { return c.script.ends()[i] }

func (c *composer) add(i int, s Step) { e := c.end(i); e.Steps = append(e.Steps, s) }

// send has an end write, without a reader yet.
func (c *composer) send(i, bytes int) {
	c.add(i, Step{Op: OpSend, Bytes: bytes, Chunk: c.chunk(bytes), More: c.one(20)})
	c.due[1-i] += bytes
}

func (c *composer) urgent(i int) {
	c.add(i, Step{Op: OpUrgent})
	c.due[1-i]++
}

// read has an end read of what is due, perhaps in several parts with a stop in
// between.
func (c *composer) read(i, bytes int) {
	for bytes > 0 {
		n := bytes
		if c.one(4) {
			n = 1 + c.IntN(bytes)
		}
		c.add(i, Step{Op: OpRead, Bytes: n, Chunk: c.chunk(n)})
		c.due[i] -= n
		if bytes -= n; bytes > 0 || c.one(8) {
			c.add(i, Step{Op: OpStall})
		}
	}
}

// burst has an end write bulk, with urgent bytes before, within or behind.
func (c *composer) burst(i int) {
	for range 1 + c.IntN(2) {
		if c.one(6) {
			c.urgent(i)
		}
		c.send(i, c.size())
	}
	if c.one(6) {
		c.urgent(i)
	}
}

// event adds what happens before the end.
func (c *composer) event() {
	i := c.IntN(2)
	peer := 1 - i
	switch c.IntN(8) {
	case 0, 1: // a little, which may stay unread for now
		if n := 1 + c.IntN(100); c.due[peer]+n <= slack {
			c.send(i, n)
		}
	case 2, 3: // bulk
		if c.one(3) {
			c.add(peer, Step{Op: OpStall})
		}
		c.burst(i)
		left := 0
		if c.one(3) {
			left = c.IntN(min(c.due[peer], slack) + 1)
		}
		c.read(peer, c.due[peer]-left)
	case 4:
		if c.due[peer] < slack {
			c.urgent(i)
		}
	case 5: // both at once
		up, down := c.size(), c.size()
		most := max(up, down)
		c.add(i, Step{Op: OpSwap, Bytes: up, Take: c.due[i] + down, Chunk: c.chunk(most)})
		c.add(peer, Step{Op: OpSwap, Bytes: down, Take: c.due[peer] + up, Chunk: c.chunk(most)})
		c.due = [2]int{}
	case 6:
		c.read(i, c.due[i])
	case 7:
		c.await(i)
	}
}

// await has an end wait for all that its peer does up to here.
func (c *composer) await(i int) {
	if n := len(c.end(1 - i).Steps); n > 0 {
		c.add(i, Step{Op: OpAwait, Until: n})
	}
}

func (c *composer) readToEnd(i int) {
	if c.one(4) {
		c.add(i, Step{Op: OpStall})
	}
	c.add(i, Step{Op: OpReadEnd, Chunk: max(c.chunk(c.due[i]+4096), c.due[i]/64)})
	c.due[i] = 0
}

// ending adds one of the ways in which a connection can end.
func (c *composer) ending() {
	i := c.IntN(2)
	peer := 1 - i
	if c.one(3) {
		c.await(i)
	}
	switch c.IntN(10) {
	case 0, 1, 2: // one after the other
		c.burst(i)
		c.add(i, Step{Op: OpShutWrite})
		c.readToEnd(peer)
		if c.one(2) {
			c.burst(peer)
		}
		if c.one(2) {
			c.add(peer, Step{Op: OpShutWrite})
		}
		c.readToEnd(i)
	case 3: // the last word, and closed
		c.read(i, c.due[i])
		c.burst(i)
		c.add(i, Step{Op: OpClose})
		c.readToEnd(peer)
	case 4: // closed with bytes unread
		if c.due[i] == 0 {
			c.send(peer, 1+c.IntN(slack))
			if c.one(2) {
				c.await(i)
			}
		}
		if c.one(2) {
			c.burst(i)
			c.readSome(peer)
		}
		c.add(i, Step{Op: OpClose})
		c.finish(peer)
	case 5: // reset, perhaps behind bulk
		if c.one(2) {
			c.burst(i)
			c.readSome(peer)
			if c.one(2) {
				c.await(i)
			}
		}
		if c.one(4) {
			c.add(i, Step{Op: OpShutWrite})
			if c.one(2) {
				c.readToEnd(peer)
				c.await(i)
			}
		}
		c.add(i, Step{Op: OpReset})
		c.finish(peer)
	case 6: // the reader goes while the other still sends
		c.burst(i)
		if c.one(2) {
			c.add(peer, Step{Op: OpStall})
		}
		if n := c.due[peer]; c.one(2) && n > 1 {
			c.read(peer, c.IntN(n))
		}
		if c.one(3) {
			c.add(peer, Step{Op: OpShutRead})
		}
		c.add(peer, Step{Op: [2]Op{OpClose, OpReset}[c.IntN(2)]})
		c.finish(i)
	case 7: // both at once
		for k := range 2 {
			c.add(k, Step{Op: [3]Op{OpShutWrite, OpClose, OpReset}[c.IntN(3)]})
		}
		for k := range 2 {
			if e := c.end(k); e.Steps[len(e.Steps)-1].Op == OpShutWrite {
				c.readToEnd(k)
			}
		}
	case 8: // half-closed, and the other direction goes on
		c.add(i, Step{Op: OpShutWrite})
		if c.one(2) {
			c.readToEnd(peer)
		}
		for range 1 + c.IntN(3) {
			c.burst(peer)
			c.read(i, c.due[i])
		}
		if c.one(3) {
			c.add(peer, Step{Op: OpReset})
		} else if c.one(2) {
			c.add(peer, Step{Op: OpShutWrite})
		}
		c.readToEnd(i)
	case 9: // nothing: closed as it is
		c.readToEnd(peer)
	}
}

// readSome has an end read a part of what is due, or nothing.
func (c *composer) readSome(i int) {
	switch n := c.due[i]; c.IntN(3) {
	case 0:
		c.read(i, n)
	case 1:
		c.read(i, max(n-slack, c.IntN(n+1)))
	default:
		c.read(i, max(n-slack, 0))
	}
}

// finish is what an end does whose peer has gone, or is about to.
func (c *composer) finish(i int) {
	if c.one(3) {
		c.await(i)
	}
	switch c.IntN(4) {
	case 0:
		c.burst(i)
		c.readToEnd(i)
	case 1:
		if c.one(2) {
			c.add(i, Step{Op: OpShutWrite})
		}
		c.readToEnd(i)
	case 2:
		c.readToEnd(i)
		c.burst(i)
	}
}
