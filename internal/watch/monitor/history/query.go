package history

import (
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

// Order is what a list of records is sorted by.
type Order string

// The orders. Slowest is the least goodput of both directions together over
// the whole life; Retransmitted is the share of the data that was retransmitted.
const (
	Newest        Order = "newest"
	Slowest       Order = "slowest"
	Longest       Order = "longest"
	Largest       Order = "largest"
	Retransmitted Order = "retransmitted"
)

// Orders are all of them.
func Orders() []Order { return []Order{Newest, Slowest, Longest, Largest, Retransmitted} }

// DefaultMinBytes is what a flow must have moved at least to be counted among
// the slowest, or among those that retransmitted the most: of a few bytes neither
// says anything about a path.
const DefaultMinBytes = monitor.MinTransfer

// DefaultLimit is the usual limit of a list.
const DefaultLimit = 50

// Query selects records. The zero value selects the newest ones.
type Query struct {
	Since, Until time.Time // of their ends, Until not included; zero: no bound
	Tunnel       string
	Cause        doctor.Cause
	Name         flow.Name // zero: any
	Order        Order     // empty: Newest
	// MinBytes leaves out flows that moved less. Zero is [DefaultMinBytes]
	// where the order is Slowest or Retransmitted; negative is no bound.
	MinBytes int64
	Limit    int   // 0: DefaultLimit; negative: no limit
	After    int64 // the ID of the last record of the page before; 0: the first page
}

// Period is a stretch of time, and which of the flows that ended in it count as
// transfers.
type Period struct {
	Since    time.Time `json:"since"`               // zero: as far back as there is
	Until    time.Time `json:"until"`               // not included; zero: up to now
	MinBytes int64     `json:"min_bytes,omitempty"` // a transfer moved at least this, and never 0 bytes
}

// Summary is what there is to say of the flows that ended in a period.
type Summary struct {
	Period Period `json:"period"`
	Tunnel string `json:"tunnel,omitempty"`

	Flows     int64 `json:"flows"`
	BytesUp   int64 `json:"bytes_up"`
	BytesDown int64 `json:"bytes_down"`
	// RetransmittedShare is of the data that both legs of all flows sent;
	// negative: nothing is known of any.
	RetransmittedShare float64 `json:"retransmitted_share"`

	Transfers    int64        `json:"transfers"` // flows that the distributions are of
	TransferTime Distribution `json:"transfer_time_seconds"`
	Goodput      Distribution `json:"goodput_bps"`

	Causes []CauseCount `json:"causes"` // the most frequent first; flows without one are left out
	Ends   []EndCount   `json:"ends"`   // the most frequent first

	// Resumed is of the flows that a pair of relays carried on after they lost
	// their connection over the WAN, as far as records are kept; nil: none.
	Resumed *Resumed `json:"resumed,omitempty"`

	// Approximate is set where records of the period have made room for newer
	// ones: then it is made of whole hours, quantiles are right within 4 %, and
	// MinBytes is 1.
	Approximate bool `json:"approximate"`
}

// Resumed is of flows that lost their connection between paired relays.
type Resumed struct {
	Flows   int64         `json:"flows"`
	Resumes int64         `json:"resumes"`                // lost connections that others replaced
	Outage  units.Seconds `json:"outage_seconds"`         // that the flows waited, together
	Longest units.Seconds `json:"longest_outage_seconds"` // of one flow
}

// CauseCount is how many flows a cause limited for most of their time.
type CauseCount struct {
	Cause doctor.Cause `json:"cause"`
	Flows int64        `json:"flows"`
	Bytes int64        `json:"bytes"`
}

// EndCount is how many flows ended in one way.
type EndCount struct {
	EndedBy string `json:"ended_by"`
	Reason  string `json:"reason"`
	Flows   int64  `json:"flows"`
}

// Comparison is of two periods.
type Comparison struct {
	Before Summary `json:"before"`
	After  Summary `json:"after"`
	// Verdict says in a sentence whether transfers are faster or slower.
	Verdict  string   `json:"verdict"`
	Warnings []string `json:"warnings,omitempty"` // loads that are not alike
}

// Chart is the course of a period in steps of the same length.
type Chart struct {
	Period Period        `json:"period"`
	Tunnel string        `json:"tunnel,omitempty"`
	Step   units.Seconds `json:"step_seconds"`
	Points []Point       `json:"points"` // oldest first, without gaps
}

// Point is one step of a [Chart].
type Point struct {
	At time.Time `json:"at"` // its beginning

	// UpBps and DownBps are what flows carried in this step that have ended
	// since: those of longer flows are spread over their lives.
	UpBps   float64 `json:"up_bps"`
	DownBps float64 `json:"down_bps"`

	// Of the flows that ended in this step:
	Flows              int64   `json:"flows"`
	Transfers          int64   `json:"transfers"`
	RetransmittedShare float64 `json:"retransmitted_share"` // negative: not known
	// Quantiles of the transfers' time and goodput; negative: there was none.
	TransferTimeMedian float64 `json:"transfer_time_median_seconds"`
	TransferTimeP95    float64 `json:"transfer_time_p95_seconds"`
	GoodputMedian      float64 `json:"goodput_median_bps"`
}

// Extent is what a history holds.
type Extent struct {
	Records int64     `json:"records"`
	Oldest  time.Time `json:"oldest"` // end of the first record that is kept; zero: there is none
	Newest  time.Time `json:"newest"`
	// SummariesSince is how far back the hourly summaries reach.
	SummariesSince time.Time `json:"summaries_since"`
	Bytes          int64     `json:"bytes"` // of the file and what belongs to it
	Tunnels        []string  `json:"tunnels"`
}

func (q Query) minBytes() int64 {
	switch {
	case q.MinBytes < 0:
		return 0
	case q.MinBytes == 0 && (q.Order == Slowest || q.Order == Retransmitted):
		return DefaultMinBytes
	}
	return q.MinBytes
}
