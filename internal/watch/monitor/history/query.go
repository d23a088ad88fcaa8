package history

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/sorted"
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

// Selection is which flows a question is about. The zero value is all.
type Selection struct {
	Tunnel string       `json:"tunnel,omitempty"`
	Relay  string       `json:"relay,omitempty"` // that has the record; of a database also SITE/RELAY, or without the domain
	Site   string       `json:"site,omitempty"`  // at either end: the relay's, or the peer's; a file has the peer's alone
	Client netip.Prefix `json:"client,omitzero"` // that the client's address is in; invalid: any
}

// narrow is whether only records answer, and no sums of a file.
func (s *Selection) narrow() bool { return s.Relay != "" || s.Site != "" || s.Client.IsValid() }

// Query selects records. The zero value selects the newest ones.
type Query struct {
	Selection
	Since, Until time.Time // of their ends, Until not included; zero: no bound
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
	Selection
	// PairsOnce is set where records of far relays of pairs are left out, so that a flow through a
	// pair counts once. Each relay that carried a flow has a record of it in a database.
	PairsOnce bool `json:"pairs_once,omitempty"`

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
	// ones: then it is made of whole hours, and MinBytes is 1.
	Approximate bool `json:"approximate"`
	// QuantileError is by which share of it a quantile may be wrong.
	QuantileError float64 `json:"quantile_error"`
}

// Shares by which quantiles may be wrong.
const (
	RecordsError = 0.004 // of a file's records
	HoursError   = 0.04  // of a file's hourly summaries
)

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
	Period Period `json:"period"`
	Selection
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

// SortByWay puts the records of one flow into the order in which it passed the relays, by the sides
// of their legs: clocks of relays differ. Of relays with the same sides the earlier comes first.
func SortByWay(records []monitor.Record) {
	place := func(r *monitor.Record) int {
		const wan = "wan"
		switch {
		case r.ClientLeg.Side != wan:
			return 0
		case r.TargetLeg.Side == wan:
			return 1
		}
		return 2
	}
	sorted.By(records, func(a, b monitor.Record) int {
		return cmp.Or(cmp.Compare(place(&a), place(&b)), a.Start.Compare(b.Start), cmp.Compare(a.ID, b.ID))
	})
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

// Places are what flows of a database can be selected by.
type Places struct {
	Relays  []string `json:"relays"`
	Sites   []string `json:"sites"` // of relays and of peers; a peer that is no site's host stands for itself
	Tunnels []string `json:"tunnels"`
}

// Matrix is who moved how much to whom: a line for each two sites.
type Matrix struct {
	Period        Period       `json:"period"` // as far as there are records or sums of it
	Lines         []MatrixLine `json:"lines"`  // the most bytes first
	QuantileError float64      `json:"quantile_error"`
}

// MatrixLine is of the flows from one site to another, each counted where its client is.
// Negative figures are unknown.
type MatrixLine struct {
	From               string  `json:"from"` // site of the relay; in a file the relay
	To                 string  `json:"to"`   // site of the peer, or the peer; empty: not paired
	Flows              int64   `json:"flows"`
	Transfers          int64   `json:"transfers"` // flows that moved data
	BytesUp            int64   `json:"bytes_up"`  // from From to To
	BytesDown          int64   `json:"bytes_down"`
	RetransmittedShare float64 `json:"retransmitted_share"` // of the data that both legs at From sent
	GoodputMedian      float64 `json:"goodput_median_bps"`  // of transfers
	GoodputP99         float64 `json:"goodput_p99_bps"`
	TimeMedian         float64 `json:"time_median_seconds"`
	TimeP99            float64 `json:"time_p99_seconds"`
}

// Source answers questions about flows that have ended: a [Reader] of one relay's file, or a
// database of many relays. The IDs of its records are its own.
type Source interface {
	// Name is the file, or the URL of the database.
	Name() string
	// Query returns the records that a query selects, in its order.
	Query(context.Context, Query) ([]monitor.Record, error)
	// Get returns the record with an ID, or [ErrNoRecord].
	Get(ctx context.Context, id int64) (monitor.Record, error)
	// Walk calls visit with every record of a query, the oldest first.
	Walk(ctx context.Context, q Query, visit func(*monitor.Record) error) error
	Summary(context.Context, Period, Selection) (Summary, error)
	Compare(ctx context.Context, before, after Period, s Selection) (Comparison, error)
	Series(context.Context, Period, Selection) (Chart, error)
	// Matrix has quantiles of the first lines at least, of as many as most; 0: of all.
	Matrix(ctx context.Context, p Period, most int) (Matrix, error)
	Extent(context.Context) (Extent, error)
	Close() error
}

// LeastBytes is what a flow must have moved to be in the list.
func (q *Query) LeastBytes() int64 {
	switch {
	case q.MinBytes < 0:
		return 0
	case q.MinBytes == 0 && (q.Order == Slowest || q.Order == Retransmitted):
		return DefaultMinBytes
	}
	return q.MinBytes
}
