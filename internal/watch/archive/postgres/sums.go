package postgres

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/sorted"
)

// maxLines bounds the lines whose IDs a sink remembers: relays, tunnels and sites of configurations.
const maxLines = 4096

// line is what sums are of.
type line struct {
	relay, relaySite, tunnel, site string
	near                           bool
}

func (l line) compare(o line) int {
	return cmp.Or(strings.Compare(l.relay, o.relay), strings.Compare(l.relaySite, o.relaySite),
		strings.Compare(l.tunnel, o.tunnel), strings.Compare(l.site, o.site), cmp.Compare(truth(l.near), truth(o.near)))
}

// hourKey has the key of longhaul.hours.
type hourKey struct {
	hour                   int64 // Unix, in seconds
	line                   line
	cause, endedBy, reason string
}

// hourSums are the other columns of longhaul.hours, in their order.
type hourSums [10]int64

// Places in hourSums.
const (
	flows = iota
	transfers
	bytesUp
	bytesDown
	bytesSent
	bytesRetransmitted
	resumed
	resumes
	outageUs
	longestOutageUs
)

// binKey is a bin of a histogram of longhaul.days.
type binKey struct {
	day      int64 // Unix, in days
	line     line
	quantity byte
	bin      int
}

// Quantities with histograms.
const (
	goodputBps = 'g'
	timeS      = 't'
)

// Bounds of bins, as longhaul.bin has them: numeric has up to 16383 digits after the point and 131072 before it, a bin has 12.
const (
	minBin = pointBin - 1365
	maxBin = pointBin + 10921
	// pointBin is the first bin before the point, see longhaul.histogram.
	pointBin = 640
)

// sums are what rows add.
type sums struct {
	hours map[hourKey]*hourSums
	bins  map[binKey]int64
}

func sumsOf(rows []*archive.Row) *sums {
	s := &sums{map[hourKey]*hourSums{}, map[binKey]int64{}}
	for _, r := range rows {
		s.add(r)
	}
	return s
}

// bin is the bin of a positive value, see longhaul.histogram.
func bin(v float64) int {
	b := int(math.Floor(32 * math.Log2(v)))
	// The logarithm is rounded; the bounds decide.
	if v < math.Exp2(float64(b)/32) {
		b--
	} else if v >= math.Exp2(float64(b+1)/32) {
		b++
	}
	return min(max(b, minBin), maxBin)
}

func (s *sums) add(r *archive.Row) {
	ended := bounded(r.End).Unix()
	site := r.Site
	if site == "" {
		site = r.Peer
	}
	l := line{clean(r.Relay), clean(r.OwnSite), clean(r.Tunnel), clean(site), r.ClientLeg.Side != "wan"}
	key := hourKey{floor(ended, 3600) * 3600, l, clean(string(r.Cause)), clean(r.EndedBy), clean(string(r.Reason))}
	h := s.hours[key]
	if h == nil {
		h = new(hourSums)
		s.hours[key] = h
	}
	up, down, elapsedUs := max(r.BytesUp, 0), max(r.BytesDown, 0), max(r.Elapsed.Duration().Microseconds(), 0)
	h[flows]++
	h[bytesUp] += up
	h[bytesDown] += down
	for _, leg := range []struct{ sent, again int64 }{
		{r.ClientLeg.BytesSent, r.ClientLeg.BytesRetransmitted}, {r.TargetLeg.BytesSent, r.TargetLeg.BytesRetransmitted},
	} {
		if leg.sent >= 0 {
			h[bytesSent] += leg.sent
			h[bytesRetransmitted] += max(leg.again, 0)
		}
	}
	if r.Resumes > 0 || r.Outage > 0 {
		outage := max(r.Outage.Duration().Microseconds(), 0)
		h[resumed]++
		h[resumes] += max(r.Resumes, 0)
		h[outageUs] += outage
		h[longestOutageUs] = max(h[longestOutageUs], outage)
	}
	if up+down > 0 && elapsedUs > 0 {
		h[transfers]++
		day, seconds := floor(ended, 86400), float64(elapsedUs)/1e6
		s.bins[binKey{day, l, goodputBps, bin(float64(up+down) * 8 / seconds)}]++
		s.bins[binKey{day, l, timeS, bin(seconds)}]++
	}
}

// floor is a/b, rounded down.
func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// lines are those of all sums.
func (s *sums) lines() map[line]bool {
	all := map[line]bool{}
	for k := range s.hours {
		all[k.line] = true
	}
	return all
}

// addSums adds to hours and days, sorted by the key, so that those who add to the same sums wait for
// each other in one order.
const addSums = `WITH new AS (
		SELECT * FROM unnest($1::timestamptz[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
			$9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[])
			AS new (hour, line, cause, ended_by, reason, flows, transfers, bytes_up, bytes_down,
				bytes_sent, bytes_retransmitted, resumed, resumes, outage_us, longest_outage_us)
	), hours AS (
		INSERT INTO longhaul.hours AS h (hour, line, cause, ended_by, reason, flows, transfers, bytes_up, bytes_down,
			bytes_sent, bytes_retransmitted, resumed, resumes, outage_us, longest_outage_us)
		SELECT * FROM new
		ON CONFLICT (hour, line, cause, ended_by, reason) DO UPDATE SET flows = h.flows + excluded.flows,
			transfers = h.transfers + excluded.transfers, bytes_up = h.bytes_up + excluded.bytes_up,
			bytes_down = h.bytes_down + excluded.bytes_down, bytes_sent = h.bytes_sent + excluded.bytes_sent,
			bytes_retransmitted = h.bytes_retransmitted + excluded.bytes_retransmitted, resumed = h.resumed + excluded.resumed,
			resumes = h.resumes + excluded.resumes, outage_us = h.outage_us + excluded.outage_us,
			longest_outage_us = greatest(h.longest_outage_us, excluded.longest_outage_us)
	), counts AS (
		SELECT (hour AT TIME ZONE 'UTC')::date AS day, line, sum(flows) AS flows, sum(transfers) AS transfers, sum(bytes_up) AS up,
			sum(bytes_down) AS down, sum(bytes_sent) AS sent, sum(bytes_retransmitted) AS again
		FROM new GROUP BY 1, 2
	), histograms AS (
		SELECT day, line, sum(longhaul.histogram(bin, flows)) FILTER (WHERE quantity = 'g') AS goodputs,
			sum(longhaul.histogram(bin, flows)) FILTER (WHERE quantity = 't') AS times
		FROM unnest($16::date[], $17::integer[], $18::"char"[], $19::integer[], $20::bigint[]) AS new (day, line, quantity, bin, flows) GROUP BY 1, 2
	)
	INSERT INTO longhaul.days AS d (day, line, flows, transfers, bytes_up, bytes_down, bytes_sent, bytes_retransmitted, goodputs, times)
	SELECT day, line, flows, transfers, up, down, sent, again, coalesce(goodputs, 0), coalesce(times, 0)
	FROM counts LEFT JOIN histograms USING (day, line) ORDER BY day, line
	ON CONFLICT (day, line) DO UPDATE SET flows = d.flows + excluded.flows, transfers = d.transfers + excluded.transfers,
		bytes_up = d.bytes_up + excluded.bytes_up, bytes_down = d.bytes_down + excluded.bytes_down,
		bytes_sent = d.bytes_sent + excluded.bytes_sent, bytes_retransmitted = d.bytes_retransmitted + excluded.bytes_retransmitted,
		goodputs = d.goodputs + excluded.goodputs, times = d.times + excluded.times`

// hourLists are the first arguments of addSums.
func (s *sums) hourLists(ids map[line]int64) [][]byte {
	keys := make([]hourKey, 0, len(s.hours))
	for k := range s.hours {
		keys = append(keys, k)
	}
	sorted.By(keys, func(a, b hourKey) int {
		return cmp.Or(cmp.Compare(a.hour, b.hour), cmp.Compare(ids[a.line], ids[b.line]), strings.Compare(a.cause, b.cause),
			strings.Compare(a.endedBy, b.endedBy), strings.Compare(a.reason, b.reason))
	})
	var hours, causes, endedBy, reasons texts
	var lines numbers
	var columns [len(hourSums{})]numbers
	for _, k := range keys {
		hours.add(time.Unix(k.hour, 0).UTC().Format(time.RFC3339))
		lines.add(ids[k.line])
		causes.add(k.cause)
		endedBy.add(k.endedBy)
		reasons.add(k.reason)
		for i, v := range s.hours[k] {
			columns[i].add(v)
		}
	}
	lists := [][]byte{hours.list(), lines.list(), causes.list(), endedBy.list(), reasons.list()}
	for i := range columns {
		lists = append(lists, columns[i].list())
	}
	return lists
}

// binLists are the others.
func (s *sums) binLists(ids map[line]int64) [][]byte {
	keys := make([]binKey, 0, len(s.bins))
	for k := range s.bins {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b binKey) int {
		return cmp.Or(cmp.Compare(a.day, b.day), cmp.Compare(ids[a.line], ids[b.line]), cmp.Compare(a.quantity, b.quantity), cmp.Compare(a.bin, b.bin))
	})
	var dates, quantities texts
	var lines, bins, flows numbers
	for _, k := range keys {
		dates.add(dateOf(k.day))
		lines.add(ids[k.line])
		quantities.add(string(rune(k.quantity)))
		bins.add(int64(k.bin))
		flows.add(s.bins[k])
	}
	return [][]byte{dates.list(), lines.list(), quantities.list(), bins.list(), flows.list()}
}
