package measure

import (
	"errors"
	"fmt"
	"syscall"
)

// iperfError is what an error number of iperf3 means if its server sends it, and what the client's
// user can do.
type iperfError struct{ meaning, fix string }

const (
	lessWindow = "use a smaller --window, or raise net.core.rmem_max and net.core.wmem_max there"
	seeServer  = "look at the server's output"
)

// iperfErrors are iperf3's error numbers that its server sends, by the numbers that iperf3 3.12 prints
// in words.
var iperfErrors = map[uint32]iperfError{
	iperfTooLong:       {"the test is longer than it allows", "use a shorter --time"},
	iperfStreams:       {"there are more streams than it allows", "use fewer --streams"},
	iperfBlockSize:     {"the writes are larger than it allows", "use a smaller --write"},
	iperfBuffer:        {"the window is larger than it allows", "use a smaller --window"},
	10:                 {"the segments are larger than it allows", "use a smaller --mss"},
	iperfUnimplemented: {"it does not know an option of the test", "leave an option out, or use a newer iperf3 there"},
	20:                 {"it does not take writes of that size", "use another --write"},
	27:                 {"the test exceeds its --server-bitrate-limit", "use a smaller --pacing-rate, or fewer --streams"},
	100:                {"it has no memory for a test", seeServer},
	101:                {"it cannot prepare a test", seeServer},
	102:                {"it cannot listen for the streams", seeServer},
	104:                {"it cannot accept the client's connection", seeServer},
	106:                {"it did not get the client's cookie", seeServer},
	107:                {"its control connection fails", seeServer},
	108:                {"its control connection fails", seeServer},
	109:                {"its control connection was closed", seeServer},
	110:                {"it does not understand a message", "use another version of iperf3 there"},
	111:                {"its control connection fails", seeServer},
	112:                {"its control connection fails", seeServer},
	114:                {"it did not get the test's parameters", seeServer},
	115:                {"it cannot write its results", seeServer},
	116:                {"it cannot send its results", seeServer},
	117:                {"it did not get the client's results", seeServer},
	118:                {"it cannot wait for its sockets", seeServer},
	iperfBusy:          {"it is busy with another test", "try again when it has ended"},
	122:                {"it cannot switch off Nagle's algorithm", "leave --no-delay out"},
	123:                {"it cannot set the segment size", "leave --mss out"},
	124:                {"it cannot set the size of its socket buffers", lessWindow},
	125:                {"it cannot mark its packets", seeServer},
	126:                {"it cannot mark its packets", seeServer},
	127:                {"it cannot set the flow label", seeServer},
	128:                {"it cannot use its port again", "try again, or start it on another port"},
	129:                {"it cannot set up its sockets", seeServer},
	130:                {"it cannot set the size of its socket buffers", lessWindow},
	132:                {"it cannot choose its CPU", "start it without --affinity"},
	iperfCongestion:    {"its kernel does not have the congestion control, or does not allow it", "leave --cc out, or load the algorithm there"},
	140:                {"it cannot pace its sockets", "leave --pacing-rate out"},
	iperfWindow:        {"its kernel allows smaller socket buffers than --window asks for", lessWindow},
	iperfUnauthorized: {"it wants a user name and a password, since it runs with --rsa-private-key-path",
		"longhaul does not have iperf3's passwords: start iperf3 -s without these flags, or run longhaul measure --serve --tokens FILE there"},
	143: {"it cannot bind to its device", "start it without --bind-dev"},
	144: {"it received no data for its --idle-timeout or --rcv-timeout", "is the way there open for data?"},
	145: {"it cannot forbid fragments", seeServer},
	148: {"it cannot set its time-out for unacknowledged data (TCP_USER_TIMEOUT)", seeServer},
	200: {"it cannot make a stream", seeServer},
	201: {"it cannot prepare a stream", seeServer},
	202: {"it cannot listen for the streams", seeServer},
	204: {"it cannot accept a stream", seeServer},
	205: {"it cannot write to a stream", seeServer},
	206: {"it cannot read from a stream", seeServer},
	207: {"a stream was closed", "does a firewall on the way end the connections?"},
	208: {"it does not know a stream", seeServer},
	300: {"it cannot start a timer", seeServer},
	301: {"it cannot change a timer", seeServer},
}

// iperfRefusal is an error number of iperf3's server, and the system's number for it; 0: none.
type iperfRefusal struct {
	number uint32
	system syscall.Errno
}

// Error says what the numbers mean.
func (r *iperfRefusal) Error() string {
	system := ""
	if r.system != 0 {
		system = ": " + r.system.Error()
	}
	if e, known := iperfErrors[r.number]; known {
		return fmt.Sprintf("it refuses the test: %s (iperf3's error %d%s)", e.meaning, r.number, system)
	}
	return fmt.Sprintf("it refuses the test: iperf3's error %d%s", r.number, system)
}

// Is reports the kinds of refusals that callers tell apart.
func (r *iperfRefusal) Is(kind error) bool {
	return kind == ErrCongestionControl && r.number == iperfCongestion || kind == ErrBusy && r.number == iperfBusy
}

// fixOf is what to do about a refusal of iperf3's server.
func fixOf(err error) (fix string, ok bool) {
	var r *iperfRefusal
	if !errors.As(err, &r) {
		return "", false
	}
	e, known := iperfErrors[r.number]
	if !known {
		return seeServer, true
	}
	return e.fix, true
}
