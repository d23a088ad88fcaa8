package measure

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/ccnames"
)

// setOptions sets what parameters ask of a stream's socket, before it connects
// or on the listener that accepts it.
func setOptions(fd int, p Parameters) error {
	set := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("set %s: %w", what, err)
		}
		return nil
	}
	var errs []error
	if p.MSS > 0 {
		errs = append(errs, set(fmt.Sprintf("an MSS of %d", p.MSS), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, p.MSS)))
	}
	if p.Window > 0 {
		errs = append(errs,
			set("the send buffer", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, p.Window)),
			set("the receive buffer", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, p.Window)))
	}
	if p.Congestion != "" {
		errs = append(errs, setCongestion(fd, p.Congestion))
	}
	if rate := p.pacingBps(); rate > 0 {
		errs = append(errs, set("the pacing rate", unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, uint64(rate/8))))
	}
	if p.NoDelay {
		errs = append(errs, set("no delay", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)))
	}
	return errors.Join(errs...)
}

// setLowWater sets how much wakes a reader (SO_RCVLOWAT). The kernel keeps it
// below half the receive buffer, and wakes for less where the window closes.
func setLowWater(fd, bytes int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
}

// receiveBuffer is the size of a socket's receive buffer, bytes, overhead included;
// 0 if it is not known.
func receiveBuffer(fd int) int {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}

// setCongestion sets the congestion control of a socket.
func setCongestion(fd int, name string) error {
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
		return fmt.Errorf("set congestion control %s: %w", name, err)
	}
	return nil
}

// avoid has a socket not send by an algorithm that the system or a route may have
// chosen for it.
func avoid(fd int, name string) {
	if now, err := tcpinfo.CongestionControl(fd); err != nil || ccnames.First(now) == name {
		_ = setCongestion(fd, "reno") // which every kernel has
	}
}

// allowedCongestion are the algorithms that sockets of any user may choose. The
// system's own is among them.
func allowedCongestion() []string {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	if err != nil {
		return []string{"reno"}
	}
	return strings.Fields(string(b))
}

// tunedWindow is the largest window that takes no more memory than a socket that
// the kernel tunes itself may.
func tunedWindow(send, receive bool) int {
	window := maxWindow
	for name, counts := range map[string]bool{"tcp_wmem": send, "tcp_rmem": receive} {
		if counts {
			window = min(window, half(name))
		}
	}
	return window
}

// half is half of the largest size that a sysctl has: the kernel makes a buffer
// twice what is asked for.
func half(sysctl string) int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/" + sysctl)
	sizes := strings.Fields(string(b))
	if err != nil || len(sizes) != 3 {
		return usualWindow
	}
	n, err := strconv.Atoi(sizes[2])
	if err != nil {
		return usualWindow
	}
	return n / 2
}

// unacknowledged is how much of what was written the other side has not got.
func unacknowledged(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// fillTimed asks the kernel for all but the bytes and the time.
func fillTimed(fd int, t *Timed) (ok bool) {
	info, err := tcpinfo.Get(fd)
	if err != nil {
		return false
	}
	t.Info = info
	// What SO_MEMINFO tells, in the kernel's order (linux/sock_diag.h).
	const sendBound, sendQueued = 3, 5
	var memory [9]uint32
	size := uint32(unsafe.Sizeof(memory))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&memory)), uintptr(unsafe.Pointer(&size)), 0)
	if errno == 0 { // Linux 4.12
		t.SendBuffer, t.SendQueued = int64(memory[sendBound]), int64(memory[sendQueued])
	}
	return true
}

func fillSample(fd int, s *Sample) {
	s.CongestionControl, _ = tcpinfo.CongestionControl(fd)
	info, err := tcpinfo.Get(fd)
	if err != nil {
		return
	}
	s.Info = &info
	s.Retransmits = int64(info.TotalRetrans)
	s.CwndBytes = int64(info.SndCwnd) * int64(info.SndMSS)
	s.RTT, s.RTTVar = info.RTT, info.RTTVar
	if info.Has(tcpinfo.FieldMinRTT) {
		s.MinRTT = info.MinRTT
	}
	s.PMTU, s.MSS = int64(info.PMTU), int64(info.SndMSS)
}
