package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// ending is how a flow is to end.
type ending string

const (
	bothEnd          ending = "both end"
	clientFirst      ending = "client ends first"        // the target sends only after the client's end
	targetFirst      ending = "target ends first"        // the client sends only after the target's end
	clientResets     ending = "client resets"            // before it has ended
	targetResets     ending = "target resets"            // before it has ended
	clientEndsResets ending = "client ends, then resets" // while the target still sends
	targetEndsResets ending = "target ends, then resets"
	targetRefuses    ending = "target refuses"
	noByte           ending = "no byte" // the client connects and ends, and so does the target
)

// endings lists them with the share of flows that each gets, in percent.
var endings = []struct {
	ending ending
	share  int
}{
	{bothEnd, 30}, {clientFirst, 15}, {targetFirst, 10}, {clientResets, 10}, {targetResets, 10},
	{clientEndsResets, 8}, {targetEndsResets, 8}, {targetRefuses, 4}, {noByte, 5},
}

// plan is what both sides of one flow do. It follows from the seed and the
// flow's number alone.
type plan struct {
	number uint64
	ending ending
	client sidePlan
	target sidePlan
}

// sidePlan is what one side does.
type sidePlan struct {
	send      int64 // bytes, the client's first headerBytes included
	write     int   // bytes in one write
	idle      time.Duration
	afterEnd  bool          // send, but for the header, only after the peer's end
	end       bool          // end the stream once all is sent
	reset     bool          // and then, or instead, reset
	resetWait time.Duration // before the reset

	readWait    time.Duration // before the first read
	readSize    int           // bytes in one read
	readEvery   time.Duration // pause between two reads
	smallWindow bool
}

const (
	headerBytes = 8 // the flow's number, with which every client that sends anything begins
	stallLimit  = 60 * time.Second
)

// How long at most a side of a flow is idle or waits before it reads, and how long
// a slow reader reads.
var longestIdle, longestRead = 4 * time.Second, 10 * time.Second

// newPlan draws a flow's plan.
func newPlan(seed, number uint64) plan {
	r := rand.New(rand.NewPCG(seed, number))
	p := plan{number: number}
	at := r.IntN(100)
	for _, e := range endings {
		if at -= e.share; at < 0 {
			p.ending = e.ending
			break
		}
	}
	p.client, p.target = newSide(r), newSide(r)
	p.client.send += headerBytes
	switch p.ending {
	case clientFirst:
		p.target.afterEnd = true
	case targetFirst:
		p.client.afterEnd = true
	case clientResets:
		p.client.end, p.client.reset = false, true
	case targetResets:
		p.target.end, p.target.reset = false, true
	case clientEndsResets:
		p.client.reset = true
		p.target.send += 1 << 20 // something to reset
	case targetEndsResets:
		p.target.reset = true
		p.client.send += 1 << 20
	case noByte:
		p.client = sidePlan{end: true, readSize: 1024}
	}
	return p
}

// newSide draws what a side sends and how it reads.
func newSide(r *rand.Rand) sidePlan {
	s := sidePlan{
		send:     logUniform(r, 1, 2<<20),
		write:    []int{1460, 4096, 16 << 10, 64 << 10, 256 << 10}[r.IntN(5)],
		readSize: []int{1460, 16 << 10, 64 << 10, 256 << 10}[r.IntN(4)],
		end:      true,
	}
	switch r.IntN(20) {
	case 0: // one byte a write
		s.write, s.send = 1, logUniform(r, 1, 3000)
	case 1: // nothing to say
		s.send = 0
	case 2: // much to say
		s.send = logUniform(r, 4<<20, 32<<20)
	}
	if r.IntN(8) == 0 {
		s.idle = time.Duration(r.Int64N(int64(longestIdle)))
	}
	switch r.IntN(12) {
	case 0: // a slow reader: 1 to 16 kB a tick
		s.readSize, s.readEvery = 1<<10<<r.IntN(5), 10*time.Millisecond
		s.smallWindow = r.IntN(2) == 0
	case 1: // one that begins late, behind a closed window
		s.readWait = time.Duration(r.Int64N(int64(longestIdle)))
		s.smallWindow = r.IntN(2) == 0
	}
	if r.IntN(2) == 0 {
		s.resetWait = time.Duration(r.Int64N(int64(500 * time.Millisecond)))
	}
	return s
}

// logUniform draws a size whose order of magnitude is uniform.
func logUniform(r *rand.Rand, low, high int64) int64 {
	l, h := math.Log(float64(low)), math.Log(float64(high))
	return int64(math.Exp(l + (h-l)*r.Float64()))
}

// limitSlow keeps a slow reader from having more to read than it can in
// longestRead.
func (p *plan) limitSlow() {
	for _, d := range []struct{ from, to *sidePlan }{{&p.client, &p.target}, {&p.target, &p.client}} {
		if d.to.readEvery > 0 {
			d.from.send = min(d.from.send, int64(d.to.readSize)*int64(longestRead/d.to.readEvery))
		}
	}
}

func (p plan) String() string {
	return fmt.Sprintf("flow %d, %s: client %+v, target %+v", p.number, p.ending, p.client, p.target)
}
