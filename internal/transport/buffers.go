package transport

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/units"
)

// Sizes in bandwidth-delay products of the path (PathRateBps times the round
// trip of the handshake). docs/design/transport.md has the measurements.
const (
	// sendBDP: an ideal sender on a path with 10 % random loss needs 5 to 6.
	// What the path does not need is not used: notsentBound holds back the
	// excess.
	sendBDP = 6
	// receiveBDP is the size of a fixed receive buffer. It is less, because a
	// slow reader downstream fills all of it.
	receiveBDP = 4
	// lossyReceiveBDP is what the peer of a sender that does not slow down for
	// loss must hold: what has arrived behind gaps waits for a packet that is
	// lost two or three times.
	lossyReceiveBDP = 6
	// fillBDP fills a clean path. A receive buffer that autotuning can bring
	// this far is left to it, for it grows no further than the reader keeps up.
	fillBDP = 2
)

const (
	// maxBuffer bounds the buffers of one direction of one leg, in bytes of
	// payload. It is the largest window that a shift of 10 can announce.
	maxBuffer = 65535 << 10
	// minBuffer keeps very short or slow paths from getting tiny buffers.
	minBuffer = 256 << 10
	// guessedRTT stands in where the handshake gave no sample.
	guessedRTT = 100 * time.Millisecond
)

// notsentBound is how much may wait in the send buffer without having been
// sent, in bytes: 8 ms at the path's rate. The kernel asks for more when half
// of it is gone, so an event loop has 4 ms to refill it.
func notsentBound(pathRateBps int64) uint64 {
	if pathRateBps == 0 {
		pathRateBps = defaultPathRateBps
	}
	return uint64(min(max(pathRateBps/8*8/1000, minBuffer), math.MaxInt32))
}

// pathSize is n bandwidth-delay products in bytes, within the bounds.
func pathSize(pathRateBps int64, rtt time.Duration, n int) int {
	if pathRateBps == 0 {
		pathRateBps = defaultPathRateBps
	}
	size := float64(pathRateBps) / 8 * rtt.Seconds() * float64(n)
	return int(min(max(size, minBuffer), maxBuffer))
}

// way is how a buffer comes to its size.
type way uint8

const (
	autotune way = iota // leave it to the kernel
	force               // SO_SNDBUFFORCE or SO_RCVBUFFORCE
	plain               // SO_SNDBUF or SO_RCVBUF, up to the host's cap
)

// want is what a buffer should be able to hold, in bytes of payload.
type want struct {
	size   int // where a size is set
	atEase int // what autotuning must be able to reach to be left alone
	fill   int // less than this, and even a clean path stays partly empty
}

// sizing is the outcome of the ladder.
type sizing struct {
	way   way
	size  int // bytes as passed to the socket option; what autotuning reaches for autotune
	short bool
}

// ladder decides how to get a buffer.
//
// The kernel charges a buffer for its own overhead too. It doubles a size
// that is set, to make up for that; autotuning's limit is not doubled, and so
// is good for half of it.
func ladder(w want, autotuneLimit, plainCap int, canForce bool) sizing {
	reach := autotuneLimit / 2
	switch {
	case reach >= w.atEase:
		return sizing{way: autotune, size: reach}
	case canForce:
		return sizing{way: force, size: w.size}
	case plainCap > reach:
		s := min(w.size, plainCap)
		return sizing{way: plain, size: s, short: s < w.fill}
	}
	return sizing{way: autotune, size: reach, short: reach < w.fill}
}

// sendWant and receiveWant size the buffers of a WAN leg.
func sendWant(pathRateBps int64, rtt time.Duration) want {
	size := pathSize(pathRateBps, rtt, sendBDP)
	return want{size: size, atEase: size, fill: pathSize(pathRateBps, rtt, fillBDP)}
}

// receiveWant goes by the congestion control of this end: the other end of the
// path is most likely one of ours with the same.
func receiveWant(pathRateBps int64, rtt time.Duration, cc string) want {
	fill := pathSize(pathRateBps, rtt, fillBDP)
	if fillsLossyPaths(cc) {
		size := pathSize(pathRateBps, rtt, lossyReceiveBDP)
		return want{size: size, atEase: size, fill: fill}
	}
	return want{size: pathSize(pathRateBps, rtt, receiveBDP), atEase: fill, fill: fill}
}

// direction tells a socket's send buffer from its receive buffer.
type direction struct {
	name          string
	option, force int
	sysctl        string
}

var (
	sending   = direction{"send buffer", unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, "tcp_wmem"}
	receiving = direction{"receive buffer", unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, "tcp_rmem"}
)

// set sets the buffer's size in bytes, which ends its autotuning.
func (d direction) set(fd int, w way, size int) error {
	option := d.option
	if w == force {
		option = d.force
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size); err != nil {
		return fmt.Errorf("set the %s of a socket to %s: %w", d.name, units.FormatSize(float64(size)), err)
	}
	return nil
}

// setAsked sets a size that the operator asked for, as nearly as the host allows.
func (d direction) setAsked(fd, size int, h host) (sizing, error) {
	s := sizing{way: plain, size: size}
	limit := h.wmemMax
	if d == receiving {
		limit = h.rmemMax
	}
	if size > limit {
		if h.canForce {
			s.way = force
		} else {
			s.size, s.short = limit, true
		}
	}
	return s, d.set(fd, s.way, s.size)
}

// giveBack makes a receive buffer small again and lets autotuning grow it.
// The window that was already announced stands until the peer has used it, so
// a peer may have to retransmit what did not fit, once.
func giveBack(fd int, h host) error {
	if err := receiving.set(fd, plain, h.tcpRmem[1]/2); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0); err != nil {
		return fmt.Errorf("give the receive buffer of a socket back to autotuning: %w", err)
	}
	return nil
}

// sysctlRemedy is the command that raises autotuning's limit so far that size
// bytes of payload fit.
func (d direction) sysctlRemedy(size int, now [3]int) string {
	return fmt.Sprintf("sysctl -w net.ipv4.%s='%d %d %d'", d.sysctl, now[0], now[1], roundUpPowerOfTwo(2*size))
}

func roundUpPowerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }
