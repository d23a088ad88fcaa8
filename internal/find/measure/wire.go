package measure

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// state is a byte on the control connection that says what comes next.
type state int8

// The states of iperf3, as far as they are used.
const (
	testStart       state = 1
	testRunning     state = 2
	testEnd         state = 4
	paramExchange   state = 9
	createStreams   state = 10
	serverTerminate state = 11
	clientTerminate state = 12
	exchangeResults state = 13
	displayResults  state = 14
	done            state = 16
	accessDenied    state = -1
	serverError     state = -2

	// showToken is longhaul's own, and said only to a client that has a token:
	// a challenge follows.
	showToken state = 64
)

// cookieBytes is the length of what marks the connections of one test, its
// terminating zero included.
const cookieBytes = 37

const cookieLetters = "abcdefghijklmnopqrstuvwxyz234567"

type cookie [cookieBytes]byte

func newCookie() (c cookie) {
	_, _ = rand.Read(c[:]) // never fails
	for i := range c {
		c[i] = cookieLetters[int(c[i])%len(cookieLetters)]
	}
	c[cookieBytes-1] = 0
	return c
}

// valid reports whether something could be a cookie: letters and digits, and a
// zero at the end.
func (c cookie) valid() bool {
	for _, b := range c[:cookieBytes-1] {
		if (b < 'a' || b > 'z') && (b < '0' || b > '9') && (b < 'A' || b > 'Z') {
			return false
		}
	}
	return c[cookieBytes-1] == 0
}

// Parameters are what a client asks of a server, under iperf3's names.
type Parameters struct {
	TCP           bool   `json:"tcp,omitempty"`
	UDP           bool   `json:"udp,omitempty"`
	SCTP          bool   `json:"sctp,omitempty"`
	Omit          int    `json:"omit"` // seconds at the start that do not count
	Time          int    `json:"time,omitempty"`
	Bytes         int64  `json:"num,omitempty"`
	Blocks        int64  `json:"blockcount,omitempty"`
	MSS           int    `json:"MSS,omitempty"`
	NoDelay       bool   `json:"nodelay,omitempty"`
	Parallel      int    `json:"parallel"`
	Reverse       bool   `json:"reverse,omitempty"`
	Bidirectional bool   `json:"bidirectional,omitempty"`
	Window        int    `json:"window,omitempty"`
	Length        int    `json:"len"` // of a write, bytes
	Bandwidth     int64  `json:"bandwidth,omitempty"`
	FQRate        int64  `json:"fqrate,omitempty"`
	PacingTimer   int    `json:"pacing_timer,omitempty"`
	TOS           int    `json:"TOS,omitempty"`
	Congestion    string `json:"congestion,omitempty"`
	Title         string `json:"title,omitempty"`
	AuthToken     string `json:"authtoken,omitempty"`
	Version       string `json:"client_version"`

	Longhaul *longhaulParameters `json:"longhaul,omitempty"`
}

// pacingBps returns the rate that a sender must keep below; 0 is no bound. iperf3
// keeps Bandwidth in its own loop, and FQRate in the kernel.
func (p Parameters) pacingBps() int64 {
	if p.Bandwidth > 0 && (p.FQRate <= 0 || p.Bandwidth < p.FQRate) {
		return p.Bandwidth
	}
	return max(p.FQRate, 0)
}

// results are what each side tells the other at the end.
type results struct {
	CPUTotal       float64        `json:"cpu_util_total"`
	CPUUser        float64        `json:"cpu_util_user"`
	CPUSystem      float64        `json:"cpu_util_system"`
	HasRetransmits number         `json:"sender_has_retransmits"` // 1, 0, or -1 for a receiver
	Congestion     string         `json:"congestion_used,omitempty"`
	Streams        []streamResult `json:"streams"`

	Longhaul *longhaulResults `json:"longhaul,omitempty"`
}

// streamResult is a stream's part of results. What a sender does not know of
// its retransmissions is -1.
type streamResult struct {
	ID          int     `json:"id"`
	Bytes       int64   `json:"bytes"`
	Retransmits number  `json:"retransmits"`
	Jitter      float64 `json:"jitter"`
	Errors      int64   `json:"errors"`
	Packets     int64   `json:"packets"`
	StartTime   float64 `json:"start_time"`
	EndTime     float64 `json:"end_time"`
}

// number is a whole number that iperf3 writes unsigned, so that -1 comes as
// 2^64-1.
type number int64

func (n *number) UnmarshalJSON(b []byte) error {
	signed, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		unsigned, unsignedErr := strconv.ParseUint(string(b), 10, 64)
		if unsignedErr != nil {
			return err
		}
		signed = int64(unsigned)
	}
	*n = number(signed)
	return nil
}

// streamID is the number of a stream, from the first on: 1, 3, 4, 5 and so on,
// as iperf3 counts.
func streamID(i int) int {
	if i == 0 {
		return 1
	}
	return i + 2
}

// Bounds of the control connection's messages: of what anybody may ask, of a
// client's results, which take some 40 kB of 256 streams, and of a server's
// results, of which all samples of a test take some 700 kB.
const (
	maxParameters = 64 << 10
	maxRequest    = 256 << 10
	maxResults    = 1 << 20
)

// errNotIperf: what answers is no server of this protocol.
var errNotIperf = errors.New("it does not speak iperf3's protocol")

// readMessage reads a message of at most so many bytes: its length in four
// bytes, and JSON.
func readMessage(r io.Reader, most uint32, into any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > most {
		return fmt.Errorf("%w: a message of %d bytes", errNotIperf, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%w: %w", errNotIperf, err)
	}
	return nil
}

func writeMessage(w io.Writer, message any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func writeState(w io.Writer, s state) error {
	_, err := w.Write([]byte{byte(s)})
	return err
}

func readState(r io.Reader) (state, error) {
	var b [1]byte
	_, err := io.ReadFull(r, b[:])
	return state(int8(b[0])), err
}

// controlPatience bounds the wait for the other side's next step, besides the
// time that the test itself takes.
const controlPatience = 15 * time.Second
