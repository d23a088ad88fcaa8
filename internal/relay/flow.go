package relay

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// phase is how far a flow has come.
type phase uint8

const (
	phaseHeader  phase = iota // reading the client's PROXY header
	phaseDialing              // resolving and connecting
	phaseMoving               // both legs stand
	phaseChecked              // the checker has the sockets
	phaseGone                 // closed; the struct is garbage
)

// flow is one client's connection and its connection to the target. It
// belongs to one worker, and only that worker's goroutine touches it. An idle
// flow holds this struct and its two descriptors, nothing else.
type flow struct {
	route  *route
	source *source
	hop    *hop // that it connects to or is connected to
	legs   [2]leg
	dirs   [2]direction
	end    ending

	phase   phase
	look    looking
	isCheck bool   // or was one
	queued  bool   // on the worker's run list
	young   bool   // the leg towards the target lacks what only a lasting one needs
	slot    uint32 // index in the worker's table
	gen     uint32 // of the slot

	client netip.AddrPort
	target netip.AddrPort
	listen netip.AddrPort // zero: the listener's own address

	id      uint64
	settled int64 // shortly before the last sample, if nothing was under way then; else 0

	start  int64 // all times are nanoseconds of the monotonic clock
	active int64 // when a byte was last moved, to the precision of a loop turn

	timerAt    int64 // when the worker will look at the flow's deadlines
	timerIndex int32 // in the worker's heap, -1 when it is not there

	holdUntil int64 // how long the beginning of what may be a check waits for the rest

	opening *opening // while dialing
	checked *checked // while it is a check
	closing *closing // once something went wrong
	ration  *ration  // while memory is short
}

// joinHop counts the flow as one of a hop's.
func (f *flow) joinHop(h *hop) {
	if f.hop != h {
		f.leaveHop()
		f.hop = h
		h.flows.Add(1)
	}
}

func (f *flow) leaveHop() {
	if f.hop != nil {
		f.hop.flows.Add(-1)
		f.hop = nil
	}
}

// hopName is the hop as it is configured, empty before there is one.
func (f *flow) hopName() string {
	if f.hop == nil {
		return ""
	}
	return f.hop.name
}

// leg is one TCP connection of a flow.
type leg struct {
	fd       int32
	readable bool       // until a read says otherwise
	writable bool       // until a write says otherwise
	urgent   bool       // urgent data was announced, or may be: short reads and splice mean nothing any more
	hungUp   bool       // the peer has ended or reset: only a read that finds nothing tells that all is read
	fin      bool       // the peer's end was seen while the connection was whole
	left     bool       // to the kernel to deliver, see entrust
	failed   unix.Errno // what a write or a look took from the socket's error; the next read would find no error and call it an end
	setup    *legSetup
}

// direction is what was read from one leg and is not yet written to the other.
type direction struct {
	pipe   *pipe  // holds held bytes, or is on loan for a burst
	own    []byte // holds held bytes of a copied read
	held   int    // bytes in either
	bytes  int64  // handed to the receiving leg's socket
	oob    bool   // what is held is urgent
	bulk   bool   // the last reads were large: splice
	corked bool   // the last bytes wait in the socket for the end that comes behind them
}

// closing is kept for a flow that does not end cleanly.
type closing struct {
	reason   EndReason
	err      error
	deadline int64 // by when the bytes before a reset must be delivered
	ackDelay int64 // until the peer's acknowledgement is looked for again
	unacked  int   // bytes that the peers had not acknowledged when that was looked for last
}

// entrust leaves it to the kernel to deliver what is in the leg's queue, and
// its end, whatever becomes of the process: there is nothing more to come, and
// the peer has ended its stream. The kernel could not reset such a connection
// any more (tcp_need_reset): it would drop it without a word, and a peer that
// still lacks a lost segment would wait for it until its keepalive tells.
func (l *leg) entrust() {
	if !l.left {
		l.left = true
		setLinger(int(l.fd), false)
	}
}

// arrived says whether a leg's peer has acknowledged all. Whoever resets the
// connection and lacks nothing but its end has got all there was.
func (f *flow) arrived(s side, events uint32) bool {
	n := unacknowledged(int(f.legs[s].fd))
	return n == 0 || n == 1 && f.end.shut[s] && events&unix.EPOLLERR != 0
}

// fail notes why the flow ends. The first cause stands.
func (f *flow) fail(reason EndReason, err error) {
	c := f.close()
	if c.reason == "" {
		c.reason, c.err = reason, err
	}
}

func (f *flow) close() *closing {
	if f.closing == nil {
		f.closing = new(closing)
	}
	return f.closing
}

// legFailure names the cause of a leg's error.
func legFailure(s side, errno unix.Errno) EndReason {
	switch errno {
	case unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH:
		if s == client {
			return EndClientTimeout
		}
		return EndTargetTimeout
	}
	if s == client {
		return EndClientReset
	}
	return EndTargetReset
}

func errnoOrNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
