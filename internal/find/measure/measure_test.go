package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	nettest.AtOnce(4) // most of them wait
	nettest.MainWithoutLeaks(m)
}

var must = nettest.Must

// patience is what a test waits for what has to happen.
const patience = time.Minute

// serve runs a server until the test ends, and tells how tests ended.
func serve(t testing.TB, tokens ...Token) (address string, ended chan error) {
	t.Helper()
	_, address, ended = startServer(t, tokens...)
	return address, ended
}

func startServer(t testing.TB, tokens ...Token) (s *Server, address string, ended chan error) {
	t.Helper()
	ended = make(chan error, 1000)
	s = &Server{Tokens: tokens, Ended: func(_ net.Addr, _ Parameters, _ Moved, err error) { ended <- err }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-served)
	})
	return s, l.Addr().String(), ended
}

const testRate = 40e6 // bits per second: the tests are of counting, not of speed

type kind struct {
	name  string
	o     Options
	iperf []string // the same in iperf3's flags
}

// kinds of tests, for each pair of client and server.
var kinds = []kind{
	{"send", Options{Duration: time.Second}, []string{"-t", "1"}},
	{"receive", Options{Direction: Receive, Duration: time.Second}, []string{"-t", "1", "-R"}},
	{"receive at a bitrate", Options{Direction: Receive, Duration: time.Second}, []string{"-t", "1", "-R", "--fq-rate", "0", "-b", "40M"}},
	{"both", Options{Direction: Both, Duration: time.Second}, []string{"-t", "1", "--bidir"}},
	{"streams", Options{Streams: 4, Duration: time.Second, WriteBytes: 1000}, []string{"-t", "1", "-P", "4", "-l", "1000"}},
	{"amount", Options{Bytes: 3_000_000}, []string{"-n", "3000000"}},
	{"amount back", Options{Direction: Receive, Bytes: 3_000_000}, []string{"-n", "3000000", "-R"}},
	{"omit", Options{Duration: time.Second, Omit: time.Second}, []string{"-t", "1", "-O", "1"}},
}

// check compares what both sides counted. began is a time before the test.
func check(t *testing.T, o Options, s Summary, began time.Time) {
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
		if o.Omit == 0 && st.SentBytes < st.ReceivedBytes*9/10 {
			t.Errorf("stream %d: %d bytes were sent and %d received", st.ID, st.SentBytes, st.ReceivedBytes)
		}
		checkPacing(t, st.ID, st.ReceivedBytes, time.Since(began))
	}
}

// checkPacing holds a stream against what its pace lets through at the most in the
// time of the whole test. How near it comes is measured under the tag timed.
func checkPacing(t *testing.T, id int, received int64, within time.Duration) {
	t.Helper()
	if most := int64(mostOfRate * testRate / 8 * within.Seconds()); received > most {
		t.Errorf("stream %d: %d bytes arrived within %v, paced at %.0f Mb/s: want %d at most", id, received, within, testRate/1e6, most)
	}
}

// mostOfRate is how much more than its rate a paced stream may get: it begins at once.
const mostOfRate = 1.6

func TestOurOwn(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			address, ended := serve(t)
			runOurOwn(t, address, ended, kind.o)
		})
	}
}

// runOurOwn runs a test between our own two ends. It returns what is counted in
// intervals, and in all.
func runOurOwn(t *testing.T, address string, ended <-chan error, o Options) (s Summary, sum, counted int64) {
	t.Helper()
	var intervals []Interval
	o.PacingBps, o.Interval = testRate, 200*time.Millisecond
	o.Report = func(i Interval) { intervals = append(intervals, i) }
	began := time.Now()
	s, err := Run(t.Context(), address, o)
	must(t, err)
	must(t, <-ended)
	check(t, o, s, began)
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
	return s, sum, counted
}

// TestAtOnce makes many connections at the same time, either way.
func TestAtOnce(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			runToIperf3(t, program, kind.o)
		})
	}
}

// runToIperf3 runs a test with an iperf3 that serves.
func runToIperf3(t *testing.T, program string, o Options) Summary {
	t.Helper()
	address := nettest.FreeAddress(t, "127.0.0.1")
	server := exec.Command(program, "-s", "-1", "-p", fmt.Sprint(netip.MustParseAddrPort(address).Port()))
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	must(t, server.Start())
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	o.PacingBps = testRate
	began := time.Now()
	var s Summary
	var err error
	nettest.Eventually(t, patience, func() bool {
		s, err = Run(t.Context(), address, o)
		return err == nil || !strings.Contains(err.Error(), "refused")
	}, func() string { return "iperf3 does not listen" })
	if err != nil {
		t.Fatalf("a test with iperf3's server: %v", err)
	}
	check(t, o, s, began)
	return s
}

// TestIperf3Client serves an ordinary iperf3.
func TestIperf3Client(t *testing.T) {
	t.Parallel()
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			address, ended := serve(t)
			runFromIperf3(t, program, address, ended, &kind)
		})
	}
}

// iperf3Stream is what iperf3 says of a stream.
type iperf3Stream struct {
	Receiver struct {
		Bytes   int64
		Seconds float64
	}
}

// runFromIperf3 has an iperf3 measure to our server.
func runFromIperf3(t *testing.T, program, address string, ended <-chan error, kind *kind) []iperf3Stream {
	t.Helper()
	port := netip.MustParseAddrPort(address).Port()
	began := time.Now()
	out, err := exec.Command(program, append([]string{"-c", "127.0.0.1", "-p", fmt.Sprint(port), "-J", "--fq-rate", "40M"}, kind.iperf...)...).Output()
	if err != nil {
		t.Fatalf("iperf3 fails with our server: %v\n%s", err, out)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var told struct {
		End struct{ Streams []iperf3Stream }
	}
	must(t, json.Unmarshal(out, &told))
	if len(told.End.Streams) == 0 {
		t.Fatalf("iperf3 says nothing of streams:\n%s", out)
	}
	for i, st := range told.End.Streams {
		if kind.o.Bytes == 0 {
			checkPacing(t, i, st.Receiver.Bytes, time.Since(began))
		} else if st.Receiver.Bytes < kind.o.Bytes*9/10 {
			t.Errorf("stream %d: %d bytes arrived of %d", i, st.Receiver.Bytes, kind.o.Bytes)
		}
	}
	return told.End.Streams
}

// TestBusy: a second client is told so, and the first goes on.
func TestBusy(t *testing.T) {
	t.Parallel()
	address, ended := serve(t)
	first := newAbuser(t, address)
	conns := first.reach("running", Options{Streams: 2, Duration: time.Minute})
	if _, err := Run(t.Context(), address, Options{}); !errors.Is(err, ErrBusy) {
		t.Errorf("the second client gets %v, want %v", err, ErrBusy)
	}
	_, err := conns[2].Write(make([]byte, 10_000))
	must(t, err)
	first.finish("", conns[0])
	must(t, writeState(conns[0], done))
	must(t, <-ended)
	for _, conn := range conns {
		conn.Close()
	}
}

// TestServerSurvives: garbage, silence and vanishing clients leave it ready.
func TestServerSurvives(t *testing.T) {
	t.Parallel()
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
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
		if bytes.HasPrefix(said, c[:]) {
			if err := <-ended; err == nil {
				t.Errorf("%q was taken for a test", said)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, address, Options{Duration: time.Minute, PacingBps: testRate, Interval: 50 * time.Millisecond, Report: func(Interval) { cancel() }})
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
			_ = (&Server{}).check(p)
		}
		var r results
		_ = readMessage(bytes.NewReader(b), maxResults, &r)
	})
}

// TestOrderOfStreams: both sides must agree which stream goes which way, however
// the server's connections are scheduled.
func TestOrderOfStreams(t *testing.T) {
	t.Parallel()
	address, ended := serve(t)
	for range 40 {
		_, err := Run(t.Context(), address, Options{Direction: Both, Streams: 3, Bytes: 60_000})
		must(t, err)
		must(t, <-ended)
	}
}
