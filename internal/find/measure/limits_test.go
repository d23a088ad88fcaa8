package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

// TestLimits: what a server allows strangers, those who show a token, and where
// it was started with other limits.
func TestLimits(t *testing.T) {
	open, guarded := &Server{}, &Server{Tokens: []Token{{"a", goodSecret}}}
	wider := &Server{Limits: Limits{Duration: 10 * time.Minute, Streams: 100, WindowBytes: 64 << 20}}
	narrower := &Server{Tokens: guarded.Tokens, Limits: Limits{Duration: 10 * time.Second, Streams: 1, WindowBytes: 1000}}
	const remedy = " without tokens; start it with --tokens, or "
	tuned := tunedWindow(false, true)
	for _, test := range []struct {
		name string
		s    *Server
		set  func(p *Parameters)
		want string // empty: it is served
	}{
		{"usual", open, func(*Parameters) {}, ""},
		{"a minute", open, func(p *Parameters) { p.Time = 60 }, ""},
		{"a minute and a start", open, func(p *Parameters) { p.Time, p.Omit = 60, 1 }, "a test of 60 s: the server allows up to 1m" + remedy + "--max-time, to allow more"},
		{"a day", open, func(p *Parameters) { p.Time = 86400 }, "a test of 86400 s: the server allows up to 1m" + remedy + "--max-time, to allow more"},
		{"longest", open, func(p *Parameters) { p.Time = 1 << 62 }, "the server allows up to 1m"},
		{"64 streams", open, func(p *Parameters) { p.Parallel = 64 }, ""},
		{"65 streams", open, func(p *Parameters) { p.Parallel = 65 }, "65 streams: the server allows up to 64" + remedy + "--max-streams, to allow more"},
		{"as tuned", open, func(p *Parameters) { p.Window = tuned }, ""},
		{"more than tuned", open, func(p *Parameters) { p.Window = tuned + 1 }, fmt.Sprintf("a window of %d bytes: the server allows up to %d%s--max-window, to allow more", tuned+1, tuned, remedy)},
		{"256 MiB", open, func(p *Parameters) { p.Window, p.Reverse = 256<<20, true }, "a window of 268435456 bytes: the server allows up to "},
		{"brutal", open, func(p *Parameters) { p.Congestion, p.Reverse = brutal, true }, `congestion control "brutal": the server allows reno`},
		{"brutal both ways", open, func(p *Parameters) { p.Congestion, p.Bidirectional = brutal, true }, `without tokens; start it with --tokens to allow more`},
		{"brutal from the client", open, func(p *Parameters) { p.Congestion = brutal }, ""},
		{"reno", open, func(p *Parameters) { p.Congestion, p.Reverse = "reno", true }, ""},
		{"escapes", open, func(p *Parameters) { p.Congestion, p.Reverse = "\x1b[2J"+strings.Repeat("x", 1000), true }, `congestion control "\x1b[2Jxxxxxxxxxxxxxxxx": the server`},
		{"ten minutes of ten", wider, func(p *Parameters) { p.Time = 600 }, ""},
		{"more than ten minutes", wider, func(p *Parameters) { p.Time = 601 }, "a test of 601 s: the server allows up to 10m" + remedy},
		{"more streams", wider, func(p *Parameters) { p.Parallel = 100 }, ""},
		{"more window", wider, func(p *Parameters) { p.Window = 64 << 20 }, ""},
		{"brutal beside limits", wider, func(p *Parameters) { p.Congestion, p.Reverse = brutal, true }, `congestion control "brutal"`},
		{"a day for a token", guarded, func(p *Parameters) { p.Time, p.Omit = 86400, 60 }, ""},
		{"more than a day for a token", guarded, func(p *Parameters) { p.Time = 86461 }, "a test of 86461 s: the server allows up to 24h1m"},
		{"anything for a token", guarded, func(p *Parameters) { p.Congestion, p.Reverse, p.Parallel, p.Window = brutal, true, 128, 512<<20 }, ""},
		{"less for a token", narrower, func(p *Parameters) { p.Parallel = 2 }, "2 streams: the server allows up to 1"},
	} {
		p := Options{}.withDefaults().parameters()
		test.set(&p)
		switch err := test.s.check(p); {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	for _, l := range []Limits{{Duration: -1}, {Duration: 25 * time.Hour}, {Duration: time.Millisecond}, {Streams: -1}, {Streams: 129}, {WindowBytes: -1}, {WindowBytes: 1 << 30}} {
		if l.Check() == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
}

// TestStrangersDemands: the client prints what a server without tokens does not
// allow, and is served what it does. At 1818be3 the server served all of these,
// for a day and by brutal.
func TestStrangersDemands(t *testing.T) {
	t.Parallel()
	address, ended := serve(t)
	for _, test := range []struct {
		o    Options
		want string
	}{
		{Options{Duration: time.Hour}, "a test of 3600 s: the server allows up to 1m without tokens; start it with --tokens, or --max-time, to allow more"},
		{Options{Streams: 100, Bytes: 1000}, "100 streams: the server allows up to 64 without tokens; start it with --tokens, or --max-streams, to allow more"},
		{Options{WindowBytes: 256 << 20, Bytes: 1000}, "the server allows up to "},
		{Options{CongestionControl: brutal, PacingBps: 1e9, Bytes: 1000, Direction: Receive}, `congestion control "brutal": the server allows `},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		o := test.o
		o.Report = func(Interval) { cancel() } // it is served
		_, err := Run(ctx, address, o)
		cancel()
		if explained := Explain(address, err); explained == nil || !strings.Contains(explained.Error(), "it refuses the test: ") || !strings.Contains(explained.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.o, explained, test.want)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("the server says %v, want %q", err, test.want)
		}
	}
	_, err := Run(t.Context(), address, Options{CongestionControl: brutal, Bytes: 1000, Direction: Receive})
	if !errors.Is(err, ErrCongestionControl) {
		t.Errorf("a congestion control that is not allowed: %v, want %v", err, ErrCongestionControl)
	}
	<-ended
	_, err = Run(t.Context(), address, Options{CongestionControl: "reno", Bytes: 1000, Direction: Receive})
	must(t, err)
	must(t, <-ended)
}

// TestStrangersAmount: an amount takes no longer than a time may. At 1818be3 a
// client that read a little each minute was served for ever.
func TestStrangersAmount(t *testing.T) {
	t.Parallel()
	for _, direction := range []Direction{Send, Receive, Both} {
		s, address, ended := startServer(t)
		s.Limits.Duration = time.Second
		_, err := Run(t.Context(), address, Options{Bytes: 1 << 40, PacingBps: testRate, Direction: direction})
		const want = "it is not over after 1s: the server allows up to 1s without tokens; start it with --tokens, or --max-time, to allow more"
		if explained := Explain(address, err); explained == nil || explained.Error() != address+": it refuses the test: "+want {
			t.Errorf("%s: %v, want %q", direction, explained, want)
		}
		if err := <-ended; err == nil || err.Error() != want {
			t.Errorf("%s: the server says %v, want %q", direction, err, want)
		}
	}
}

// TestIperf3IsRefused: an ordinary client says what it was refused.
func TestIperf3IsRefused(t *testing.T) {
	t.Parallel()
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	address, ended := serve(t)
	port := netip.MustParseAddrPort(address).Port()
	available, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	must(t, err)
	// What root may set, and strangers may not ask for.
	notAllowed := slices.DeleteFunc(strings.Fields(string(available)), func(name string) bool { return slices.Contains(strangersCongestion(), name) })
	for _, test := range []struct{ flags, want string }{
		{"-t 61", "test duration"},
		{"-R -C reno -w 300M", "socket buffer size too large"},
		{"-R -C CONGESTION", "unable to set TCP_CONGESTION"},
		{"-P 100", "number of parallel streams too large"},
	} {
		if strings.Contains(test.flags, "CONGESTION") {
			if len(notAllowed) == 0 {
				continue
			}
			test.flags = strings.ReplaceAll(test.flags, "CONGESTION", notAllowed[0])
		}
		out, err := exec.Command(program, append([]string{"-c", "127.0.0.1", "-p", fmt.Sprint(port)}, strings.Fields(test.flags)...)...).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte(test.want)) {
			t.Errorf("%s: %v, want %q\n%s", test.flags, err, test.want, out)
		}
		if err := <-ended; err == nil {
			t.Errorf("%s: it was served", test.flags)
		}
	}
}

// TestAvoid: a connection that the system gave one algorithm sends by another.
func TestAvoid(t *testing.T) {
	t.Parallel()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	usual, err := tcpinfo.CongestionControl(fd)
	must(t, err)
	for _, step := range []struct{ name, want string }{{brutal, usual}, {usual, "reno"}} {
		avoid(fd, step.name)
		if got, err := tcpinfo.CongestionControl(fd); err != nil || got != step.want {
			t.Errorf("without %s it has %s, want %s (%v)", step.name, got, step.want, err)
		}
	}
}
