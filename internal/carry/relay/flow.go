package relay

import (
	"math"
	"net/netip"
	"time"
	"unique"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/splice"
)

// phase is the stage that a flow has reached.
type phase uint8

const (
	phaseHeader      phase = iota // reading the client's PROXY header
	phaseAccepted                 // the client's leg has not had its first event
	phaseDialing                  // resolving and connecting
	phaseAwaiting                 // no target accepted, but the client may be an integrity check
	phaseRecognizing              // both legs are connected, and the client may be an integrity check
	phaseMoving                   // both legs are connected
	phaseIntegrity                // the integrity server has the sockets
	phaseWaiting                  // no far relay takes flows, or the flow goes from one to the next
	phasePaired                   // a carrier has the socket
	phaseHeld                     // the target has accepted, and the client's SYN was held for that
	phaseGone                     // closed; the struct is garbage
)

// flow is one client's connection and its connection to the target. It
// belongs to one worker, and only that worker's goroutine touches it. An idle
// flow holds this struct and its two descriptors, nothing else (TestFlowSize).
type flow struct {
	route  *route
	source *source
	hop    *hops.Hop // the hop it is connecting or connected to
	legs   [2]leg
	dirs   [2]direction
	end    ending

	phase       phase
	hello       Recognition // of the client's first bytes; MaybeHello: undecided
	isIntegrity bool        // it is or was an integrity check
	queued      bool        // on the worker's run list
	lasting     bool        // Transport.Lasting is still to be called for the target leg
	nameTaken   bool        // its name is in Relay.flowNames
	listed      visitList   // that it waits in for a sample
	rests       bool        // nothing has happened to it since a sample found all acknowledged
	slot        uint32      // index in the worker's table
	gen         uint32      // of the slot

	client netip.AddrPort
	listen unique.Handle[netip.AddrPort] // see dialed
	to     unique.Handle[netip.AddrPort] // see target

	ident
	visit visit

	start  time.Duration // all times are of the monotonic clock
	active time.Duration // when a byte last moved, to the precision of a loop turn

	timerAt    time.Duration // when the worker next checks the flow's deadlines
	timerIndex int32         // index in the worker's heap; -1: not in the heap
	connectUS  uint32        // microseconds that the target took to accept; 0: it has not, or another relay connects

	holdUntil time.Duration // until when an incomplete check hello waits for the rest

	opening *opening // while dialing
	serving *serving // while it is an integrity check
	paired  *paired  // of a flow that a carrier carries
	chain   *chain   // of a flow that comes from one pair and goes on to another; else nil
	held    *held    // until the client connects, if its SYN was held
	closing *closing // once the flow has failed
	ration  *ration  // while memory is short
}

// connected reports whether the event loop moves bytes between the legs.
func (f *flow) connected() bool { return f.phase == phaseRecognizing || f.phase == phaseMoving }

// joinHop counts the flow at a hop.
func (f *flow) joinHop(h *hops.Hop) {
	if f.hop != h {
		f.leaveHop()
		f.hop = h
		h.Join()
	}
}

func (f *flow) leaveHop() {
	if f.hop != nil {
		f.hop.Leave()
		f.hop = nil
	}
}

// hopName is the hop as configured; empty before the first hop is chosen.
func (f *flow) hopName() string {
	if f.hop == nil {
		return ""
	}
	return f.hop.Name()
}

// connect is how long the target took to accept; 0: it has not, or another relay connects.
func (f *flow) connect() time.Duration { return time.Duration(f.connectUS) * time.Microsecond }

// setListen notes the address that the client connected to, if it is known.
func (f *flow) setListen(a netip.AddrPort) {
	if a.IsValid() {
		f.listen = unique.Make(a)
	}
}

// dialed is the address that the client connected to; zero: see listenAddr.
func (f *flow) dialed() netip.AddrPort { return valueOf(f.listen) }

// target is the address that the flow connects or is connected to; zero: it has none yet.
func (f *flow) target() netip.AddrPort { return valueOf(f.to) }

func (f *flow) setTarget(a netip.AddrPort) {
	if a != f.target() {
		f.to = unique.Make(a)
	}
}

// valueOf returns the address of a handle, zero if it has none.
func valueOf(h unique.Handle[netip.AddrPort]) (at netip.AddrPort) {
	if h != (unique.Handle[netip.AddrPort]{}) {
		at = h.Value()
	}
	return at
}

// leg is one TCP connection of a flow.
type leg struct {
	fd       int32
	readable bool        // until a read returns EAGAIN
	writable bool        // until a write returns EAGAIN
	urgent   bool        // urgent data is or may be announced: neither short reads nor splice can be trusted
	hungUp   bool        // the peer has ended or reset: only an empty read shows that everything was read
	fin      bool        // the peer's FIN arrived before any reset
	left     bool        // the kernel delivers the rest, see entrust
	acked    bool        // the peer has acknowledged everything, with the end of this stream
	nagle    bool        // TCP_NODELAY is not set yet, see noDelay
	plain    bool        // of a connected target: Transport.Established is still to be called, see setUpTarget
	named    bool        // a sample had its congestion control, which is set up before
	failed   errorNumber // that a write or peek consumed; the next read would find none and report an end
	setup    *legSetup
}

// errorNumber is a unix.Errno in a quarter of its memory.
type errorNumber uint16

// direction holds the bytes that were read from one leg and not yet written to
// the other.
type direction struct {
	pipe   *splice.Pipe // contains held bytes, or is borrowed for a burst
	own    *[]byte      // ends with held bytes of a copied read; nil: none
	bytes  int64        // handed to the receiving leg's socket
	held   int32        // bytes in either, or what a carrier retains, see retains
	oob    bool         // the held byte is urgent
	bulk   bool         // the last reads were large: splice
	corked bool         // the last bytes wait in the socket for the FIN behind them
}

// retains notes the bytes that a carrier retains of the direction; from 2 GiB on the memory guard sees no more.
func (dir *direction) retains(n int64) { dir.held = int32(min(n, math.MaxInt32)) }

// closing holds the cause and the deadline of a flow that does not end cleanly.
type closing struct {
	reason   report.EndReason
	err      error
	deadline time.Duration // for delivering the bytes that came before a reset
	ackDelay time.Duration // until the peer's acknowledgements are checked again
	unacked  int           // unacknowledged bytes of both legs at the last check
}

// entrust lets the kernel deliver the leg's queue and FIN even if the process
// dies. Nothing more will be written, and the peer has ended its stream. The
// kernel could no longer reset such a connection (tcp_need_reset). It would
// drop it silently, and a peer that lacks a lost segment would wait until its
// keepalive fails.
func (l *leg) entrust() {
	if !l.left {
		l.left = true
		setLinger(int(l.fd), false)
	}
}

// endArrived handles the FIN of a peer that was sent the end of the other stream. What it has
// acknowledged needs no delivery: both ends have passed, and no reset can follow.
func (l *leg) endArrived() {
	if l.left {
		return
	}
	if socket.Unacknowledged(int(l.fd)) > 0 {
		l.entrust()
		return
	}
	l.left, l.acked = true, true
}

// unacknowledged is the number of bytes, with the end, that the leg's peer has not acknowledged.
func (l *leg) unacknowledged() int {
	if l.acked {
		return 0
	}
	return socket.Unacknowledged(int(l.fd))
}

// noDelay has the leg send small segments at once, before bytes follow others. Nagle's algorithm
// (RFC 9293, section 3.7.4) holds no segment while nothing is unacknowledged.
func (l *leg) noDelay(sent int64, n int) {
	if l.nagle && (sent != 0 || n > oneSegment) {
		l.nagle = false
		setNoDelay(int(l.fd))
	}
}

// arrived reports whether a leg's peer has acknowledged everything. A peer that
// resets the connection and lacks only the FIN has received every byte.
func (f *flow) arrived(s side, events uint32) bool {
	n := f.legs[s].unacknowledged()
	return n == 0 || n == 1 && f.end.shut[s] && events&unix.EPOLLERR != 0
}

// fail records why the flow ends; the first cause stands.
func (f *flow) fail(reason report.EndReason, err error) {
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

// legFailure maps a leg's error to an report.EndReason.
func legFailure(s side, errno unix.Errno) report.EndReason {
	switch errno {
	case unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH:
		if s == client {
			return report.EndClientTimeout
		}
		return report.EndTargetTimeout
	}
	if s == client {
		return report.EndClientReset
	}
	return report.EndTargetReset
}

func errnoOrNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
