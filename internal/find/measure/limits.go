package measure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/ccnames"
	"longhaul/internal/words/units"
)

// Limits bound what the clients of a server may ask for. A zero field is what a
// server without tokens allows strangers, and with tokens what the protocol's
// own bounds leave.
type Limits struct {
	Duration    time.Duration // of a test, with the start that does not count
	Streams     int           // each way
	WindowBytes int
}

// What strangers may ask for. The doctor's trial takes up to 64 streams.
const (
	strangersDuration = time.Minute
	strangersStreams  = 64
	usualWindow       = 2 << 20 // where the system does not tell
)

// brutal sends at the rate that it is given, whether or not the path has it. A
// stranger who chose both would fill any path that the server has.
const brutal = "brutal"

// Check returns an error for invalid limits.
func (l Limits) Check() error {
	switch {
	case l.Duration < 0 || l.Duration > maxDuration || l.Duration%time.Second != 0:
		return fmt.Errorf("--max-time %s: use whole seconds up to %s", units.FormatDuration(l.Duration), units.FormatDuration(maxDuration))
	case l.Streams < 0 || l.Streams > maxStreams:
		return fmt.Errorf("--max-streams %d: use 1 to %d", l.Streams, maxStreams)
	case l.WindowBytes < 0 || l.WindowBytes > maxWindow:
		return fmt.Errorf("--max-window %d: use up to %d bytes", l.WindowBytes, maxWindow)
	}
	return nil
}

// limits are what a client that asks for p may ask for.
func (s *Server) limits(p Parameters) Limits {
	l := Limits{maxDuration + maxOmit, maxStreams, maxWindow}
	if len(s.Tokens) == 0 {
		l = Limits{strangersDuration, strangersStreams, tunedWindow(p.sends(), p.receives())}
	}
	return Limits{
		Duration:    cmp.Or(s.Limits.Duration, l.Duration),
		Streams:     cmp.Or(s.Limits.Streams, l.Streams),
		WindowBytes: cmp.Or(s.Limits.WindowBytes, l.WindowBytes),
	}
}

// sends reports whether the server is to send, and receives whether it is to
// receive.
func (p Parameters) sends() bool    { return p.Reverse || p.Bidirectional }
func (p Parameters) receives() bool { return !p.Reverse || p.Bidirectional }

// refusal is why a server does not serve a test, with iperf3's number for it.
type refusal struct {
	error
	number byte
}

func (r *refusal) Unwrap() error { return r.error }

// The numbers of iperf3's errors that are used by name; iperfErrors says what all mean.
const (
	iperfTooLong       = 5
	iperfStreams       = 6
	iperfBlockSize     = 7
	iperfBuffer        = 8
	iperfUnimplemented = 13
	iperfBusy          = 121
	iperfCongestion    = 134
	iperfWindow        = 141
	iperfUnauthorized  = 142
)

// check refuses what a server does not do, or not so much of.
func (s *Server) check(p Parameters) error {
	refuse := func(number byte, format string, args ...any) error {
		return &refusal{fmt.Errorf(format, args...), number}
	}
	most := s.limits(p)
	switch {
	case p.UDP || p.SCTP || !p.TCP:
		return refuse(iperfUnimplemented, "only TCP is measured")
	case p.Parallel < 1 || p.Parallel > most.Streams:
		return refuse(iperfStreams, "%d streams: %s", p.Parallel, s.allows(most.Streams, "--max-streams"))
	case p.Length < 1 || p.Length > maxWriteBytes:
		return refuse(iperfBlockSize, "writes of %d bytes: the server allows up to %d", p.Length, maxWriteBytes)
	case p.Window < 0 || p.Window > most.WindowBytes:
		return refuse(iperfBuffer, "a window of %d bytes: %s", p.Window, s.allows(most.WindowBytes, "--max-window"))
	case p.Omit < 0 || p.Omit > int(maxOmit/time.Second):
		return refuse(iperfTooLong, "a start of %d s that does not count: the server allows up to %s", p.Omit, units.FormatDuration(maxOmit))
	case p.Time < 0 || p.Time > int(most.Duration/time.Second)-p.Omit:
		return refuse(iperfTooLong, "a test of %d s: %s", p.Time, s.allows(units.FormatDuration(most.Duration), "--max-time"))
	case p.Longhaul != nil && (p.sampling() < minSampling || p.sampling() > maxSampling):
		return refuse(iperfUnimplemented, "a sample every %v: the server allows %v to %v", p.sampling(), minSampling, maxSampling)
	case p.Bytes < 0 || p.Blocks < 0:
		return refuse(iperfUnimplemented, "a test of less than nothing")
	case p.sends() && !s.allowsCongestion(p.Congestion):
		return refuse(iperfCongestion, "congestion control %.20q: the server allows %s without tokens; start it with --tokens to allow more",
			p.Congestion, cmp.Or(strings.Join(strangersCongestion(), ", "), "none"))
	}
	return nil
}

// allows says what the server allows at the most, and how it would allow more.
func (s *Server) allows(most any, flag string) string {
	if len(s.Tokens) > 0 {
		return fmt.Sprintf("the server allows up to %v", most)
	}
	return fmt.Sprintf("the server allows up to %v without tokens; start it with --tokens, or %s, to allow more", most, flag)
}

// allowsCongestion reports whether a client may choose how the server controls
// congestion.
func (s *Server) allowsCongestion(name string) bool {
	return name == "" || len(s.Tokens) > 0 || slices.Contains(strangersCongestion(), name)
}

// strangersCongestion are what every user of this system may choose, but for
// brutal.
func strangersCongestion() []string {
	return slices.DeleteFunc(allowedCongestion(), func(name string) bool { return ccnames.First(name) == brutal })
}
