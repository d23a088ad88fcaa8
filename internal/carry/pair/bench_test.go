package pair_test

import (
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// BenchmarkCPU measures the processor time of both relays together, in seconds for each
// GB, without that of the sender and the receiver, whose threads are accounted apart.
func BenchmarkCPU(b *testing.B) {
	for _, m := range modes {
		if !m.compress {
			b.Run(m.name, func(b *testing.B) { benchmarkCPU(b, make([]byte, 256<<10), m.in()) })
		}
	}
}

// BenchmarkCPUOfCompress is BenchmarkCPU for bytes that shrink and for bytes that do not.
func BenchmarkCPUOfCompress(b *testing.B) {
	for name, chunk := range map[string][]byte{"text": logLines(256 << 10), "noise": noise(256 << 10)} {
		b.Run(name+"/off", func(b *testing.B) { benchmarkCPU(b, chunk) })
		b.Run(name+"/auto", func(b *testing.B) { benchmarkCPU(b, chunk, compressing) })
	}
}

const benchBytes = 1 << 30

func benchmarkCPU(b *testing.B, chunk []byte, in ...standOption) {
	s := newStand(b, append(in, direct)...)
	received := make(chan time.Duration)
	s.serve(func(c *net.TCPConn) { received <- onThread(b, c, drain) })
	b.SetBytes(benchBytes)
	total := time.Duration(0)
	for b.Loop() {
		before := cpu(unix.RUSAGE_SELF)
		sent := onThread(b, s.dial(), func(fd int) {
			for n := 0; n < benchBytes; n += len(chunk) {
				writeAll(fd, chunk)
			}
			_ = unix.Shutdown(fd, unix.SHUT_WR)
			drain(fd)
		})
		others := sent + <-received
		total += cpu(unix.RUSAGE_SELF) - before - others
		<-s.nearEnds
	}
	b.ReportMetric(total.Seconds()/float64(b.N)/(benchBytes/1e9), "cpu-s/GB")
}

// onThread runs f with a blocking copy of a connection on a thread of its own, and
// returns that thread's processor time.
func onThread(b *testing.B, c *net.TCPConn, f func(fd int)) time.Duration {
	file, err := c.File()
	nettest.Must(b, err)
	defer file.Close()
	c.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd := int(file.Fd()) // blocking from here on
	before := cpu(unix.RUSAGE_THREAD)
	f(fd)
	return cpu(unix.RUSAGE_THREAD) - before
}

func cpu(who int) time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func writeAll(fd int, b []byte) {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil && err != unix.EINTR {
			panic(err)
		}
		b = b[max(n, 0):]
	}
}

func drain(fd int) {
	buf := make([]byte, 256<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
	}
}

// BenchmarkRoundTrip measures how long a message and its echo take through both relays.
func BenchmarkRoundTrip(b *testing.B) {
	for name, size := range map[string]int{"100B": 100, "20kB": 20000} {
		b.Run(name, func(b *testing.B) {
			s := newStand(b)
			s.serve(echo)
			c := s.dial()
			defer c.Close()
			message := string(pattern(size, 1))
			for b.Loop() {
				s.roundTrip(c, message)
			}
		})
	}
}
