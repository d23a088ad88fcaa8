//go:build timed

package measure

import (
	"fmt"
	"math"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// checkRate holds a rate against the pace.
func checkRate(id int, bytes int64, seconds float64) error {
	if bps := float64(bytes) * 8 / seconds; bps < 0.5*testRate || bps > mostOfRate*testRate {
		return fmt.Errorf("stream %d: %.1f Mb/s arrived, paced at %.0f", id, bps/1e6, testRate/1e6)
	}
	return nil
}

// checkRates holds a test of a second against its pace and its time.
func checkRates(o Options, s Summary) error {
	if math.Abs(s.Elapsed.Seconds()-1) > 0.2 {
		return fmt.Errorf("%v of the test count, want 1 s", s.Elapsed)
	}
	for _, st := range s.Streams {
		if err := checkRate(st.ID, st.ReceivedBytes, s.Elapsed.Seconds()); err != nil {
			return err
		}
		// With a start that does not count, what was received may have been sent
		// before the counting began: as much as waited in the sender's buffer,
		// which differs.
		if st.SentBytes < st.ReceivedBytes/2 {
			return fmt.Errorf("stream %d: %d bytes were sent and %d received", st.ID, st.SentBytes, st.ReceivedBytes)
		}
	}
	return nil
}

func TestRatesOfOurOwn(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			address, ended := serve(t)
			nettest.MostOf(t, func() error {
				s, sum, counted := runOurOwn(t, address, ended, kind.o)
				// What moved between the last report and the end is in no interval.
				if float64(sum) < 0.9*float64(counted) {
					return fmt.Errorf("the intervals have %d bytes, the whole %d", sum, counted)
				}
				if kind.o.Bytes > 0 {
					return nil
				}
				return checkRates(kind.o, s)
			})
		})
	}
}

func TestRatesToIperf3(t *testing.T) {
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	nettest.CheckLeaks(t)
	for _, kind := range kinds {
		if kind.o.Bytes > 0 {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			nettest.MostOf(t, func() error { return checkRates(kind.o, runToIperf3(t, program, kind.o)) })
		})
	}
}

func TestRatesFromIperf3(t *testing.T) {
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	nettest.CheckLeaks(t)
	address, ended := serve(t)
	for _, kind := range kinds {
		if kind.o.Bytes > 0 {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			nettest.MostOf(t, func() error {
				for i, st := range runFromIperf3(t, program, address, ended, &kind) {
					if err := checkRate(i, st.Receiver.Bytes, st.Receiver.Seconds); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// TestSamplesOfASecond counts the samples of a test, and holds the last against
// what both sides counted.
func TestSamplesOfASecond(t *testing.T) {
	nettest.CheckLeaks(t)
	address, ended := serve(t)
	nettest.MostOf(t, func() error {
		for _, st := range runSampled(t, address, ended).Streams {
			// A tick may be left out.
			if n := len(st.Samples); n < 10 || n > 30 {
				return fmt.Errorf("stream %d: %d samples of 1 s, one every %v", st.ID, n, 50*time.Millisecond)
			}
			last := st.Samples[len(st.Samples)-1]
			if last.Bytes < st.SentBytes*9/10 || last.Info.BytesAcked < uint64(st.SentBytes/2) {
				return fmt.Errorf("stream %d: %d bytes were sent, and the last sample is %+v", st.ID, st.SentBytes, last)
			}
		}
		return nil
	})
}
