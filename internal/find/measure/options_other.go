//go:build !linux

package measure

import (
	"errors"
	"syscall"
)

// setOptions sets what parameters ask of a stream's socket, as far as every
// Unix can.
func setOptions(fd int, p Parameters) error {
	var errs []error
	if p.Window > 0 {
		errs = append(errs,
			syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, p.Window),
			syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, p.Window))
	}
	if p.NoDelay {
		errs = append(errs, syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1))
	}
	if p.MSS > 0 || p.Congestion != "" || p.pacingBps() > 0 {
		errs = append(errs, errors.New("an MSS, a congestion control and a pacing rate can be chosen on Linux only"))
	}
	return errors.Join(errs...)
}

// setCongestion has nothing to set: setOptions has refused before.
func setCongestion(int, string) error { return nil }

// avoid has nothing to set.
func avoid(int, string) {}

// allowedCongestion are none: none can be set.
func allowedCongestion() []string { return nil }

// tunedWindow is what is usual elsewhere.
func tunedWindow(bool, bool) int { return usualWindow }

// setLowWater leaves it to the system when a reader is woken.
func setLowWater(int, int) {}

// receiveBuffer is of no use where there is no low water.
func receiveBuffer(int) int { return 0 }

// unacknowledged is not known here.
func unacknowledged(int) int { return 0 }

// fillTimed has nothing to ask.
func fillTimed(int, *Timed) bool { return false }

func fillSample(int, *Sample) {}
