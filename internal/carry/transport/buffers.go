package transport

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/ccnames"
	"longhaul/internal/words/units"
)

// Sizes in bandwidth-delay products of the path (PathRateBps times the
// handshake's round trip). docs/design/transport.md has the reasons.
const (
	// sendBDP: an ideal sender on a path with 10 % random loss needs 5 to 6.
	// Unneeded space stays empty, because notsentBound limits unsent data.
	sendBDP = 6
	// receiveBDP is the size of a fixed receive buffer. It is smaller, because
	// a slow reader downstream fills all of it.
	receiveBDP = 4
	// lossyReceiveBDP is the receive buffer for a sender that does not slow
	// down on loss. Data behind gaps waits for packets that are lost two or
	// three times.
	lossyReceiveBDP = 6
	// fillBDP fills a clean path. Autotuning keeps a receive buffer that it can
	// bring to this size, because it grows only as far as the reader keeps up.
	fillBDP = 2
)

const (
	// usualBuffer is what the buffer of one direction of a leg may have on any
	// host, in bytes of payload: the largest window for a shift of 10 (RFC 7323,
	// section 2.3). Legs of an unknown side announce no larger one.
	usualBuffer = 65535 << 10
	// largestBuffer is the largest window of TCP, for a shift of 14.
	largestBuffer = 65535 << 14
	// bufferShare is the part of the memory that the buffer of one direction of a
	// leg may have, if that is more than usualBuffer.
	bufferShare = 8
	// minBuffer avoids tiny buffers on very short or slow paths.
	minBuffer = 256 << 10
	// guessedRTT is used if the handshake gave no sample.
	guessedRTT = 100 * time.Millisecond
)

// notsentBound bounds the unsent data in the send buffer, in bytes: 8 ms at the
// path's rate. The kernel requests more when half of it is sent, so an event
// loop has 4 ms to refill it.
func notsentBound(pathRateBps int64) uint64 {
	if pathRateBps == 0 {
		pathRateBps = defaultPathRateBps
	}
	return uint64(min(max(pathRateBps/8*8/1000, minBuffer), math.MaxInt32))
}

// mostBuffer bounds the buffer of one direction of a leg, in bytes of payload, by
// the memory of the process in bytes.
func mostBuffer(memory int64) int {
	return int(min(max(memory/bufferShare, usualBuffer), largestBuffer))
}

// pathSize is n bandwidth-delay products in bytes.
func pathSize(pathRateBps int64, rtt time.Duration, n int) int {
	if pathRateBps == 0 {
		pathRateBps = defaultPathRateBps
	}
	size := float64(pathRateBps) / 8 * rtt.Seconds() * float64(n)
	return int(min(max(size, minBuffer), math.MaxInt32))
}

// method is the way in which a buffer gets its size.
type method uint8

const (
	autotune method = iota // leave it to the kernel
	force                  // SO_SNDBUFFORCE or SO_RCVBUFFORCE
	plain                  // SO_SNDBUF or SO_RCVBUF, up to the host's cap
)

// want is the desired size of a buffer, in bytes of payload.
type want struct {
	size   int // for a fixed size
	atEase int // autotuning stays on if it can reach this size
	fill   int // below this, even a clean path is not filled
}

// within bounds the sizes.
func (w want) within(most int) want {
	return want{size: min(w.size, most), atEase: min(w.atEase, most), fill: min(w.fill, most)}
}

// sizing is the result of chooseSizing.
type sizing struct {
	method method
	size   int // bytes for the socket option; for autotune, its reachable size
	short  bool
}

// chooseSizing decides how to size a buffer. It prefers autotuning if that can
// reach atEase, then a forced size, a plain size, and autotuning again.
//
// The kernel also charges its own overhead to a buffer. It doubles a size set
// by an option to compensate. It does not double autotuning's limit, so half of
// the limit is usable.
func chooseSizing(w want, autotuneLimit, plainCap int, canForce bool) sizing {
	reach := autotuneLimit / 2
	switch {
	case reach >= w.atEase:
		return sizing{method: autotune, size: reach}
	case canForce:
		return sizing{method: force, size: w.size}
	case plainCap > reach:
		s := min(w.size, plainCap)
		return sizing{method: plain, size: s, short: s < w.fill}
	}
	return sizing{method: autotune, size: reach, short: reach < w.fill}
}

// sendWant sizes the send buffer of a WAN leg.
func sendWant(pathRateBps int64, rtt time.Duration) want {
	size := pathSize(pathRateBps, rtt, sendBDP)
	return want{size: size, atEase: size, fill: pathSize(pathRateBps, rtt, fillBDP)}
}

// receiveWant depends on the congestion control of this end: the other end of
// the path most likely uses the same.
func receiveWant(pathRateBps int64, rtt time.Duration, cc string) want {
	fill := pathSize(pathRateBps, rtt, fillBDP)
	if ccnames.FillsLossyPaths(cc) {
		size := pathSize(pathRateBps, rtt, lossyReceiveBDP)
		return want{size: size, atEase: size, fill: fill}
	}
	return want{size: pathSize(pathRateBps, rtt, receiveBDP), atEase: fill, fill: fill}
}

// direction identifies a socket's send or receive buffer.
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
func (d direction) set(fd int, w method, size int) error {
	option := d.option
	if w == force {
		option = d.force
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size); err != nil {
		return fmt.Errorf("set the %s of a socket to %s: %w", d.name, units.FormatSize(float64(size)), err)
	}
	return nil
}

// setConfigured sets a configured size, as nearly as the host allows.
func (d direction) setConfigured(fd, size int, h host) (sizing, error) {
	s := sizing{method: plain, size: size}
	limit := h.wmemMax
	if d == receiving {
		limit = h.rmemMax
	}
	if size > limit {
		if h.canForce {
			s.method = force
		} else {
			s.size, s.short = limit, true
		}
	}
	return s, d.set(fd, s.method, s.size)
}

// liftWindow bounds the announced window of a connection by a buffer that was set
// after the handshake. Older kernels (5.10) keep the bound of the buffer that it began
// with, 64 KiB, since only autotuning raises it. Others need nothing, so an error does
// not matter.
func liftWindow(fd, size int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_WINDOW_CLAMP, size)
}

// restoreAutotuning shrinks a receive buffer and lets autotuning grow it. The
// announced window stands until the peer has used it, so a peer may once have
// to retransmit the excess.
func restoreAutotuning(fd int, h host) error {
	if err := receiving.set(fd, plain, h.tcpRmem[1]/2); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0); err != nil {
		return fmt.Errorf("give the receive buffer of a socket back to autotuning: %w", err)
	}
	return nil
}

// sysctlRemedy is the command that raises autotuning's limit so that size bytes
// of payload fit.
func (d direction) sysctlRemedy(size int, now [3]int) string {
	return fmt.Sprintf("sysctl -w net.ipv4.%s='%d %d %d'", d.sysctl, now[0], now[1], roundUpPowerOfTwo(2*size))
}

func roundUpPowerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }
