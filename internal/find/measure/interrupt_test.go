package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// interrupted runs a test that is interrupted at its first interval.
func interrupted(t *testing.T, address string, o Options) Summary {
	t.Helper()
	interrupt := make(chan struct{})
	o.PacingBps, o.Interval, o.Interrupt = testRate, 200*time.Millisecond, interrupt
	once := false
	o.Report = func(Interval) {
		if !once {
			once = true
			close(interrupt)
		}
	}
	began := time.Now()
	s, err := runWhenFree(t, address, o)
	if !errors.Is(err, ErrInterrupted) {
		t.Fatalf("an interrupted test ended with %v", err)
	}
	if len(s.Streams) == 0 || s.Elapsed <= 0 || s.Elapsed > time.Since(began) {
		t.Fatalf("%d streams in %v", len(s.Streams), s.Elapsed)
	}
	return s
}

// runWhenFree runs a test as soon as the server has ended the one before. Between two
// tests iperf3 closes its listener, and with it connections that it has not accepted.
func runWhenFree(t *testing.T, address string, o Options) (s Summary, err error) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool {
		s, err = Run(t.Context(), address, o)
		return !errors.Is(err, ErrBusy) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, errNoWord) &&
			!errors.Is(err, syscall.ECONNRESET)
	}, func() string { return fmt.Sprintf("the server is not free: %v", err) })
	return s, err
}

// TestInterrupt: both sides' counts come, and the server takes the next client at once.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"send": {Duration: time.Hour}, "receive": {Direction: Receive, Duration: time.Hour}, "both": {Direction: Both, Duration: time.Hour, Streams: 2},
		"amount": {Bytes: 1 << 40}, "amount back": {Bytes: 1 << 40, Direction: Receive},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, address, ended := startServer(t)
			server.Limits = Limits{Duration: time.Hour}
			for _, st := range interrupted(t, address, o).Streams {
				if st.SentBytes <= 0 || st.ReceivedBytes <= 0 {
					t.Errorf("stream %d: %d bytes sent, %d received", st.ID, st.SentBytes, st.ReceivedBytes)
				}
			}
			must(t, <-ended)
			_, err := Run(t.Context(), address, Options{Bytes: 1000}) // it would be ErrBusy
			must(t, err)
		})
	}
}

// TestInterruptWithIperf3 interrupts a test to an ordinary server.
func TestInterruptWithIperf3(t *testing.T) {
	t.Parallel()
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	for _, direction := range []Direction{Send, Receive} {
		t.Run(string(direction), func(t *testing.T) {
			t.Parallel()
			address := startIperf3(t, program)
			s := interrupted(t, address, Options{Direction: direction, Duration: time.Hour})
			if st := s.Streams[0]; st.SentBytes <= 0 || st.ReceivedBytes <= 0 {
				t.Errorf("%d bytes sent, %d received", st.SentBytes, st.ReceivedBytes)
			}
			_, err := runWhenFree(t, address, Options{Bytes: 1000})
			must(t, err)
		})
	}
}

// startIperf3 starts an iperf3 that serves tests. If another program takes its port
// first, iperf3 ends, and the next one gets another port.
func startIperf3(t *testing.T, program string) (address string) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool {
		address = nettest.FreeAddress(t, "127.0.0.1")
		server := exec.Command(program, "-s", "-B", "127.0.0.1", "-p", fmt.Sprint(netip.MustParseAddrPort(address).Port()))
		must(t, server.Start())
		ended := make(chan struct{})
		go func() {
			_ = server.Wait()
			close(ended)
		}()
		t.Cleanup(func() {
			_ = server.Process.Kill()
			<-ended
		})
		for {
			if _, err := Run(t.Context(), address, Options{Bytes: 1000}); err == nil {
				return true
			}
			select {
			case <-ended:
				return false
			case <-time.After(10 * time.Millisecond):
			}
		}
	}, func() string { return "iperf3 does not listen" })
	return address
}

// TestInterruptWithoutAnswer: the server does not send its counts. The client tells it
// that the test is over, and has its own.
func TestInterruptWithoutAnswer(t *testing.T) {
	t.Parallel()
	told := make(chan []byte, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- muteServer(l, told) }()
	s := interrupted(t, l.Addr().String(), Options{Duration: time.Hour})
	if st := s.Streams[0]; st.SentBytes <= 0 || st.ReceivedBytes != -1 || s.SentBps <= 0 || s.RemoteCPU.Total != -1 {
		t.Errorf("%d bytes sent, %d received, %.0f bit/s, CPU %v", st.SentBytes, st.ReceivedBytes, s.SentBps, s.RemoteCPU)
	}
	if got := <-told; len(got) != 2 || state(got[0]) != testEnd || state(got[1]) != clientTerminate {
		t.Errorf("the server was told %v, want %v and %v", got, testEnd, clientTerminate)
	}
	must(t, l.Close())
	must(t, <-served)
}

// muteServer serves one test with one stream, and no more after its start. It tells what
// comes on the control connection.
func muteServer(l net.Listener, told chan<- []byte) error {
	control, err := l.Accept()
	if err != nil {
		return err
	}
	defer control.Close()
	if _, err := io.ReadFull(control, make([]byte, cookieBytes)); err != nil {
		return err
	}
	_ = writeState(control, paramExchange)
	var p Parameters
	if err := readMessage(control, maxParameters, &p); err != nil {
		return err
	}
	_ = writeState(control, createStreams)
	stream, err := l.Accept()
	if err != nil {
		return err
	}
	defer stream.Close()
	go func() { _, _ = io.Copy(io.Discard, stream) }()
	_, _ = control.Write([]byte{byte(testStart), byte(testRunning)})
	said, err := io.ReadAll(control)
	told <- said
	return err
}

// TestInterruptEarly: nothing has been counted before data moves.
func TestInterruptEarly(t *testing.T) {
	t.Parallel()
	interrupt := make(chan struct{})
	said := make(chan []byte, 1)
	address := answering(t, func(conn net.Conn) {
		close(interrupt) // the client waits for the first step
		b, _ := io.ReadAll(conn)
		said <- b
	})
	s, err := Run(t.Context(), address, Options{Interrupt: interrupt})
	if !errors.Is(err, ErrInterrupted) || len(s.Streams) != 0 {
		t.Errorf("%d streams, %v", len(s.Streams), err)
	}
	if b := <-said; len(b) != 1 || state(b[0]) != clientTerminate {
		t.Errorf("the server was told %v, want %v", b, clientTerminate)
	}
}

// TestServerStops: the server counts until then, and so does its client.
func TestServerStops(t *testing.T) {
	t.Parallel()
	for _, direction := range []Direction{Send, Receive} {
		t.Run(string(direction), func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var end error
			var moved Moved
			server := &Server{Ended: func(_ net.Addr, _ Parameters, m Moved, err error) { moved, end = m, err }}
			served := make(chan error, 1)
			go func() { served <- server.Serve(ctx, l) }()
			s, err := Run(t.Context(), l.Addr().String(), Options{
				Direction: direction, Duration: time.Minute, PacingBps: testRate, Interval: 200 * time.Millisecond, Report: func(Interval) { stop() },
			})
			if !errors.Is(err, errStopped) {
				t.Errorf("the client ended with %v, want %v", err, errStopped)
			}
			must(t, <-served)
			if !errors.Is(end, ErrInterrupted) || moved.SentBytes+moved.ReceivedBytes <= 0 || moved.Elapsed <= 0 {
				t.Errorf("the server ended with %v after %+v", end, moved)
			}
			if len(s.Streams) != 1 || s.Streams[0].SentBytes+s.Streams[0].ReceivedBytes <= 0 {
				t.Errorf("the client counted %+v", s.Streams)
			}
		})
	}
}

func TestPacing(t *testing.T) {
	for _, test := range []struct{ bandwidth, fq, want int64 }{{0, 0, 0}, {5, 0, 5}, {0, 7, 7}, {5, 7, 5}, {9, 7, 7}, {-1, -1, 0}} {
		if got := (Parameters{Bandwidth: test.bandwidth, FQRate: test.fq}).pacingBps(); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

// TestServerStopsAtFullSpeed: the end of a stream often arrives before the reason.
func TestServerStopsAtFullSpeed(t *testing.T) {
	t.Parallel()
	for range 10 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- (&Server{}).Serve(ctx, l) }()
		_, err = Run(t.Context(), l.Addr().String(), Options{
			Streams: 2, Duration: time.Minute, Interval: 20 * time.Millisecond, Report: func(Interval) { stop() },
		})
		if !errors.Is(err, errStopped) {
			t.Errorf("the client ended with %v, want %v", err, errStopped)
		}
		must(t, <-served)
		stop()
	}
}
