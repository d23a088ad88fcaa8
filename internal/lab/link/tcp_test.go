package link

import (
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTCPThroughput has kernel TCP fill a link and asks for 97 % of what full
// segments with timestamps can carry.
func TestTCPThroughput(t *testing.T) {
	for _, kind := range portKinds {
		t.Run(kind.name, func(t *testing.T) {
			s := Settings{Delay: 31500 * time.Microsecond, RateBps: 1_000_000_000, QueueBytes: 24 << 20}
			a, b, l := newHosts(t, kind.open, 1500, s, s)
			for _, h := range []*host{a, b} {
				h.sysctl(t, "ipv4/tcp_rmem", "4096 131072 25165824")
				h.sysctl(t, "ipv4/tcp_wmem", "4096 131072 25165824")
				cc := "reno"
				if v := os.Getenv("TCPCC"); v != "" {
					cc = v
				}
				h.sysctl(t, "ipv4/tcp_congestion_control", cc)
			}
			secs := 10
			if v := os.Getenv("SECS"); v != "" {
				secs, _ = strconv.Atoi(v)
			}
			listener := b.listen(t, b.v4)
			sender := a.dial(t, listener.Addr().String())
			receiver, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer receiver.Close()
			go func() {
				buf := make([]byte, 256<<10)
				for {
					if _, err := sender.Write(buf); err != nil {
						return
					}
				}
			}()
			buf := make([]byte, 256<<10)
			var total int64
			start := time.Now()
			last, lastTotal := start, int64(0)
			var ru0 unix.Rusage
			unix.Getrusage(unix.RUSAGE_SELF, &ru0)
			for time.Since(start) < time.Duration(secs)*time.Second {
				n, err := receiver.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				total += int64(n)
				if d := time.Since(last); d > time.Second {
					t.Logf("%.1f Mb/s share %.4f", float64(total-lastTotal)*8/d.Seconds()/1e6, float64(total-lastTotal)*8/d.Seconds()/(1e9*1448/1500))
					last, lastTotal = time.Now(), total
				}
			}
			var ru unix.Rusage
			unix.Getrusage(unix.RUSAGE_SELF, &ru)
			t.Logf("cpu user %.2f sys %.2f GB %.2f", float64(ru.Utime.Nano()-ru0.Utime.Nano())/1e9, float64(ru.Stime.Nano()-ru0.Stime.Nano())/1e9, float64(total)/1e9)
			t.Logf("emulator cpu %v", l.CPUTime())
			t.Logf("ab %+v", l.Counters(AToB))
			t.Logf("ba %+v", l.Counters(BToA))
		})
	}
}
