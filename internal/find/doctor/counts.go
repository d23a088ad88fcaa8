package doctor

import "time"

// Counts is what a capture counted of one direction of data: the table that an expert
// makes of the same file. Segments are those of the wire, also where the capture has
// super-packets. Counts of segments leave out SYN, FIN and probes.
type Counts struct {
	Segments     int64 `json:"segments"`      // sent, with retransmissions
	FullSegments int64 `json:"full_segments"` // of those, as large as a segment may be
	Bytes        int64 `json:"bytes"`         // of data, without retransmissions
	Delivered    int64 `json:"delivered"`     // bytes that the peer acknowledged

	// Retransmitted counts retransmitted segments. Fast, AfterTimeout and TailProbes
	// are the parts whose reason shows. Spurious are those that the receiver already
	// had: by DSACK (RFC 2883), or because the capture has the first copy delivered.
	Retransmitted int64 `json:"retransmitted"`
	Fast          int64 `json:"fast"`
	AfterTimeout  int64 `json:"after_timeout"`
	TailProbes    int64 `json:"tail_probes"`
	Spurious      int64 `json:"spurious"`

	// OutOfOrder counts first transmissions that the capture shows behind later data.
	// Overtaken counts holes that selective acknowledgements report and that close
	// without a retransmission, although the capture has all of their data. Extent is
	// the largest number of segments that overtook one; 0: unknown.
	OutOfOrder int64 `json:"out_of_order"`
	Overtaken  int64 `json:"overtaken"`
	Extent     int64 `json:"extent"`

	// ZeroWindows counts how often the receiver closed its window, ZeroWindowTime is
	// for how long in all, and ZeroWindowAtEnd reports that it is closed at the end.
	ZeroWindows       int64         `json:"zero_windows"`
	ZeroWindowTime    time.Duration `json:"zero_window_ns"`
	LongestZeroWindow time.Duration `json:"longest_zero_window_ns"`
	ZeroWindowAtEnd   bool          `json:"zero_window_at_end,omitempty"`
	// WindowFull counts segments that left less than a segment of the receiver's window.
	WindowFull int64 `json:"window_full"`
	Probes     int64 `json:"probes"` // of a closed window
	KeepAlives int64 `json:"keepalives"`

	// The receiver's window in bytes; 0: unknown.
	WindowMin    int64 `json:"window_min"`
	WindowMedian int64 `json:"window_median"`
	WindowMax    int64 `json:"window_max"`

	// Round trips from the capture to the receiver and back; 0: unknown.
	MinRTT    time.Duration `json:"min_rtt_ns"`
	MedianRTT time.Duration `json:"median_rtt_ns"`
	P95RTT    time.Duration `json:"p95_rtt_ns"`

	MaxFlight int64 `json:"max_flight"` // unacknowledged bytes at once

	// Pauses are times without unacknowledged data, longer than a round trip, before
	// the sender went on. WaitedForPeer is the part that ended within a round trip
	// after data of the peer: an exchange of requests and answers.
	Pauses        int64         `json:"pauses"`
	PauseTime     time.Duration `json:"pause_ns"`
	WaitedForPeer time.Duration `json:"waited_for_peer_ns"`
	// Turns counts how often the sender began to send after data of the peer.
	Turns int64 `json:"turns"`

	Reset            ResetBy `json:"reset_by,omitempty"`
	ResetOutstanding int64   `json:"reset_outstanding,omitempty"` // bytes unacknowledged then

	Stall Stall `json:"stall"` // the longest time without an acknowledgement of new data

	// What makes the counts doubtful. Missing are acknowledged bytes that the capture
	// lacks. Copies are packets that it has twice. BackwardSteps counts packets that
	// are earlier than one before them in the file, by at most BackwardBy.
	Missing       int64         `json:"missing"`
	Copies        int64         `json:"copies"`
	BackwardSteps int64         `json:"backward_steps"`
	BackwardBy    time.Duration `json:"backward_by_ns"`
}

// ResetBy names the end that reset a connection.
type ResetBy string

// The ends, in the direction of the counts.
const (
	ResetBySender   ResetBy = "sender"
	ResetByReceiver ResetBy = "receiver"
)

// Stall is a time in which data waited for an acknowledgement and the sender
// retransmitted.
type Stall struct {
	Time            time.Duration `json:"time_ns"`         // from the first unanswered transmission
	Retransmissions int64         `json:"retransmissions"` // meanwhile
	AtEnd           bool          `json:"at_end"`          // it lasts until the capture, or the connection, ends
	// SegmentBytes is the data of the largest segment that waits, and AnsweredBytes
	// that of the largest segment that was acknowledged before; 0: none.
	SegmentBytes  int64 `json:"segment_bytes"`
	AnsweredBytes int64 `json:"answered_bytes"`
	// Heard counts the peer's packets meanwhile, which show that it lives.
	Heard int64 `json:"heard"`
}
