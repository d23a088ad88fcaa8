package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"longhaul/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// serve runs a server until the test ends, and tells how tests ended.
func serve(t testing.TB, tokens ...Token) (address string, ended chan error) {
	t.Helper()
	ended = make(chan error, 1000)
	s := &Server{Tokens: tokens, Ended: func(_ net.Addr, _ Parameters, err error) { ended <- err }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-served)
	})
	return l.Addr().String(), ended
}

const testRate = 40e6 // bits per second: the tests are of counting, not of speed

// kinds of tests, for each pair of client and server.
var kinds = []struct {
	name  string
	o     Options
	iperf []string // the same in iperf3's flags
}{
	{"send", Options{Duration: time.Second}, []string{"-t", "1"}},
	{"receive", Options{Direction: Receive, Duration: time.Second}, []string{"-t", "1", "-R"}},
	{"both", Options{Direction: Both, Duration: time.Second}, []string{"-t", "1", "--bidir"}},
	{"streams", Options{Streams: 4, Duration: time.Second, WriteBytes: 1000}, []string{"-t", "1", "-P", "4", "-l", "1000"}},
	{"amount", Options{Bytes: 3_000_000}, []string{"-n", "3000000"}},
	{"amount back", Options{Direction: Receive, Bytes: 3_000_000}, []string{"-n", "3000000", "-R"}},
	{"omit", Options{Duration: time.Second, Omit: time.Second}, []string{"-t", "1", "-O", "1"}},
}

// check compares what both sides counted. The error says what other work of the
// machine may bring about: the rate, and the time.
func check(t *testing.T, o Options, s Summary) (timed error) {
	t.Helper()
	streams := max(o.Streams, 1)
	if o.Direction == Both {
		streams *= 2
	}
	if len(s.Streams) != streams {
		t.Fatalf("%d streams, want %d", len(s.Streams), streams)
	}
	for _, st := range s.Streams {
		if o.Bytes > 0 {
			if st.ReceivedBytes < o.Bytes*95/100 {
				t.Errorf("stream %d: %d bytes arrived of %d", st.ID, st.ReceivedBytes, o.Bytes)
			}
			continue
		}
		if testing.Short() {
			continue // under the race detector others use the machine as well
		}
		if o.Omit == 0 && st.SentBytes < st.ReceivedBytes*9/10 {
			t.Errorf("stream %d: %d bytes were sent and %d received", st.ID, st.SentBytes, st.ReceivedBytes)
		}
		// With a start that does not count, what was received may have been sent
		// before the counting began: as much as waited in the sender's buffer,
		// which differs.
		if bps := float64(st.ReceivedBytes) * 8 / s.Elapsed.Seconds(); st.SentBytes < st.ReceivedBytes/2 || bps < 0.5*testRate || bps > 1.6*testRate {
			timed = fmt.Errorf("stream %d: %d bytes were sent and %.1f Mb/s received, paced at %.0f", st.ID, st.SentBytes, bps/1e6, testRate/1e6)
		}
	}
	if !testing.Short() && o.Bytes == 0 && math.Abs(s.Elapsed.Seconds()-1) > 0.2 {
		timed = fmt.Errorf("%v of the test count, want 1 s", s.Elapsed)
	}
	return timed
}

func TestOurOwn(t *testing.T) {
	nettest.CheckLeaks(t)
	address, ended := serve(t)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			kind.o.PacingBps, kind.o.Interval = testRate, 200*time.Millisecond
			nettest.Settles(t, func() error {
				var intervals []Interval
				kind.o.Report = func(i Interval) { intervals = append(intervals, i) }
				s, err := Run(t.Context(), address, kind.o)
				must(t, err)
				must(t, <-ended)
				timed := check(t, kind.o, s)
				var sum int64
				for i, one := range intervals {
					if i > 0 && one.Start != intervals[i-1].End {
						t.Errorf("interval %d begins at %v, the one before ended at %v", i, one.Start, intervals[i-1].End)
					}
					if one.Omitted != (one.End <= 0 || one.Start < 0) {
						t.Errorf("interval %v to %v: omitted %v", one.Start, one.End, one.Omitted)
					}
					for _, st := range one.Streams {
						if !one.Omitted {
							sum += st.Bytes
						}
					}
				}
				var counted int64
				for _, st := range s.Streams {
					if st.Sends {
						counted += st.SentBytes
					} else {
						counted += st.ReceivedBytes
					}
				}
				if sum > counted {
					t.Errorf("%d intervals have %d bytes, the whole %d", len(intervals), sum, counted)
				}
				// What moved between the last report and the end is in no interval.
				if timed == nil && (len(intervals) < 1 || float64(sum) < 0.9*float64(counted)) {
					timed = fmt.Errorf("%d intervals have %d bytes, the whole %d", len(intervals), sum, counted)
				}
				return timed
			})
		})
	}
}

// TestAtOnce makes many connections at the same time, either way.
func TestAtOnce(t *testing.T) {
	nettest.CheckLeaks(t)
	address, _ := serve(t)
	for _, direction := range []Direction{Send, Receive} {
		summary, err := Run(t.Context(), address, Options{Direction: direction, Streams: 64, Bytes: 10_000_000, AtOnce: true})
		if err != nil {
			t.Fatal(err)
		}
		var received int64
		for _, s := range summary.Streams {
			received += s.ReceivedBytes
		}
		if len(summary.Streams) != 64 || received < 10_000_000 {
			t.Errorf("%s: %d streams with %d bytes", direction, len(summary.Streams), received)
		}
	}
	if err := (Options{Direction: Both, AtOnce: true}).Check(); err == nil {
		t.Error("both directions at once, without an order")
	}
}

// TestIperf3Server measures to an ordinary iperf3.
func TestIperf3Server(t *testing.T) {
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	nettest.CheckLeaks(t)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			if kind.o.Bytes == 0 && kind.o.Direction != "" {
				t.Skip("iperf3 paces only what its client sends, and would flood the machine")
			}
			kind.o.PacingBps = testRate
			nettest.Settles(t, func() error {
				address := nettest.FreeAddress(t, "127.0.0.1")
				port := netip.MustParseAddrPort(address).Port()
				server := exec.Command(program, "-s", "-1", "-p", fmt.Sprint(port))
				var said bytes.Buffer
				server.Stdout, server.Stderr = &said, &said
				must(t, server.Start())
				defer func() {
					_ = server.Process.Kill()
					_ = server.Wait()
				}()
				var s Summary
				var err error
				nettest.Eventually(t, 10*time.Second, func() bool {
					s, err = Run(t.Context(), address, kind.o)
					return err == nil || !strings.Contains(err.Error(), "refused")
				}, func() string { return "iperf3 does not listen" })
				if err != nil {
					t.Fatalf("%v\n%s", err, said.String())
				}
				return check(t, kind.o, s)
			})
		})
	}
}

// TestIperf3Client serves an ordinary iperf3.
func TestIperf3Client(t *testing.T) {
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	nettest.CheckLeaks(t)
	address, ended := serve(t)
	port := netip.MustParseAddrPort(address).Port()
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			args := append([]string{"-c", "127.0.0.1", "-p", fmt.Sprint(port), "-J", "--fq-rate", "40M"}, kind.iperf...)
			nettest.Settles(t, func() error {
				out, err := exec.Command(program, args...).Output()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				var told struct {
					End struct {
						Streams []struct {
							Sender, Receiver struct {
								Bytes   int64
								Seconds float64
							}
						}
					}
				}
				must(t, json.Unmarshal(out, &told))
				if len(told.End.Streams) == 0 {
					t.Fatalf("iperf3 says nothing of streams:\n%s", out)
				}
				for i, st := range told.End.Streams {
					if kind.o.Bytes > 0 {
						if st.Receiver.Bytes < kind.o.Bytes*9/10 {
							t.Errorf("stream %d: %d bytes arrived of %d", i, st.Receiver.Bytes, kind.o.Bytes)
						}
						continue
					}
					if bps := float64(st.Receiver.Bytes) * 8 / st.Receiver.Seconds; bps < 0.5*testRate || bps > 1.6*testRate {
						return fmt.Errorf("stream %d: %.1f Mb/s arrived, paced at %.0f", i, bps/1e6, testRate/1e6)
					}
				}
				return nil
			})
		})
	}
}

// TestBusy: a second client is told so, and the first goes on.
func TestBusy(t *testing.T) {
	nettest.CheckLeaks(t)
	address, ended := serve(t)
	started := make(chan struct{}, 100)
	first := make(chan error, 1)
	go func() {
		_, err := Run(t.Context(), address, Options{Duration: 5 * time.Second, PacingBps: testRate, Interval: 100 * time.Millisecond,
			Report: func(Interval) { started <- struct{}{} }})
		first <- err
	}()
	<-started
	if _, err := Run(t.Context(), address, Options{}); !errors.Is(err, ErrBusy) {
		t.Errorf("the second: %v", err)
	}
	must(t, <-first)
	must(t, <-ended)
}

// TestServerSurvives: garbage, silence and vanishing clients leave it ready.
func TestServerSurvives(t *testing.T) {
	nettest.CheckLeaks(t)
	address, ended := serve(t)
	c := newCookie()
	for _, said := range [][]byte{
		nil,
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\nand so on until there are enough bytes"),
		bytes.Repeat([]byte{0}, 100),
		c[:],
		append(c[:len(c):len(c)], 0xff, 0xff, 0xff, 0xff),
		append(c[:len(c):len(c)], 0, 0, 0, 3, '{', '}', '}'),
		append(c[:len(c):len(c)], "\x00\x00\x00\x20{\"tcp\":true,\"parallel\":1000000}  "...),
		append(c[:len(c):len(c)], "\x00\x00\x00\x25{\"tcp\":true,\"parallel\":1,\"len\":100000}"...),
	} {
		conn, err := net.Dial("tcp", address)
		must(t, err)
		_, _ = conn.Write(said)
		_ = conn.(*net.TCPConn).CloseWrite() // it may have been reset by now
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
		if bytes.HasPrefix(said, c[:]) {
			if err := <-ended; err == nil {
				t.Errorf("%q was taken for a test", said)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, address, Options{Duration: 10 * time.Second, PacingBps: testRate, Interval: 50 * time.Millisecond, Report: func(Interval) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the client that was interrupted: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("an interrupted test ended well")
	}
	_, err = Run(t.Context(), address, Options{Bytes: 100_000})
	must(t, err)
	must(t, <-ended)
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{
		{Direction: "up"}, {Streams: -1}, {Streams: 1000}, {Duration: -1}, {Duration: 1500 * time.Millisecond}, {Duration: 48 * time.Hour},
		{Omit: -time.Second}, {Omit: time.Hour}, {Bytes: -1}, {Bytes: 1, Duration: time.Second}, {WriteBytes: -1}, {WriteBytes: 1 << 30},
		{Patience: -1}, {Patience: 2 * time.Hour}, {SampleEvery: time.Millisecond}, {SampleEvery: time.Hour}, {WindowBytes: -1}, {MSS: 1}, {MSS: 70000}, {PacingBps: -1},
	} {
		if err := o.Check(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x20{\"tcp\":true,\"parallel\":1000000}  "))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var p Parameters
		if readMessage(bytes.NewReader(b), maxRequest, &p) == nil {
			_ = p.check()
		}
		var r results
		_ = readMessage(bytes.NewReader(b), maxResults, &r)
	})
}

// TestOrderOfStreams: both sides must agree which stream goes which way, however
// the server's connections are scheduled.
func TestOrderOfStreams(t *testing.T) {
	nettest.CheckLeaks(t)
	address, ended := serve(t)
	for range 100 {
		_, err := Run(t.Context(), address, Options{Direction: Both, Streams: 3, Bytes: 60_000})
		must(t, err)
		must(t, <-ended)
	}
}
