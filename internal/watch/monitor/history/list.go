package history

import (
	"cmp"
	"container/heap"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"modernc.org/sqlite"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/sorted"
)

// span is a stretch of time in Unix milliseconds, the end not included.
type span struct{ from, to int64 }

func newSpan(since, until time.Time) span {
	s := span{math.MinInt64, math.MaxInt64}
	if !since.IsZero() {
		s.from = since.UnixMilli()
	}
	if !until.IsZero() {
		s.to = until.UnixMilli()
	}
	return s
}

func (s span) has(ms int64) bool { return s.from <= ms && ms < s.to }

// choice is which records are looked at.
type choice struct {
	span
	before int64 // an ID, not included; 0: all
	tunnel int64 // a word; 0: all
	cause  int64

	// Of the other columns of records: a condition, and its arguments. Empty: any.
	where string
	args  []any
}

// and is the condition after another one.
func (c choice) and() string {
	if c.where == "" {
		return ""
	}
	return " AND " + c.where
}

func (c choice) wanted(g group) bool {
	return (c.tunnel == 0 || c.tunnel == g.tunnel) && (c.cause == 0 || c.cause == g.cause)
}

func (v *view) choice(since, until time.Time, of Selection, cause doctor.Cause) choice {
	c := choice{span: newSpan(since, until)}
	if of.Tunnel != "" {
		c.tunnel = v.id(of.Tunnel)
	}
	if of.narrow() {
		c.where, c.args = v.condition(&of)
	}
	if cause != "" {
		c.cause = v.id(string(cause))
	}
	return c
}

// condition of a selection that digests cannot answer.
func (v *view) condition(of *Selection) (where string, args []any) {
	if !v.has.names && (of.Relay != "" || of.Site != "") {
		return "false", nil
	}
	var all []string
	if of.Relay != "" {
		all, args = append(all, "relay_id = ?"), append(args, v.id(of.Relay))
	}
	if of.Site != "" {
		peers := []string{"-1"}
		for id, word := range v.words {
			if word == of.Site || flow.SiteOf(word) == of.Site {
				peers = append(peers, strconv.FormatInt(id, 10))
			}
		}
		all = append(all, "peer_id IN ("+strings.Join(peers, ",")+")")
	}
	if of.Client.IsValid() {
		all, args = append(all, "in_prefix(client, ?)"), append(args, of.Client.String())
	}
	return strings.Join(all, " AND "), args
}

// in_prefix is whether an address, if there is one, is in a prefix.
func init() {
	sqlite.MustRegisterDeterministicScalarFunction("in_prefix", 2, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		client, _ := args[0].(string)
		prefix, _ := args[1].(string)
		addr, err := netip.ParseAddr(client)
		if err != nil {
			return false, nil
		}
		p, err := netip.ParsePrefix(prefix)
		return p.Contains(addr.Unmap()), err
	})
}

// errEnough ends a scan.
var errEnough = errors.New("enough")

// visitor calls visit with what a choice has of records in its time.
func (c choice) visitor(visit func(*facts)) func(*facts) {
	return func(f *facts) {
		if c.has(f.endMs) && (c.before == 0 || f.id < c.before) {
			visit(f)
		}
	}
}

// tail visits the records after the last full segment.
func (v *view) tail(c choice, visit func(*facts)) error {
	visit = c.visitor(visit)
	return v.facts("WHERE id > (SELECT ifnull(max(last), 0) FROM segments) ORDER BY id", nil, func(f *facts) {
		if c.wanted(f.group) {
			visit(f)
		}
	})
}

// segments names the digests that a choice needs.
const segments = " FROM segments WHERE max_end_ms >= ? AND min_end_ms < ? AND last - ? < ?"

func (c choice) segments() []any {
	before := c.before
	if before == 0 {
		before = math.MaxInt64
	}
	return []any{c.from, c.to, segmentLen, before}
}

// scan visits the records of a choice, the newest segment first and within a
// segment the oldest record first, until it is enough after a segment.
func (v *view) scan(c choice, visit func(*facts), enough func() bool) error {
	if c.where != "" {
		return v.scanRecords(c, visit, enough)
	}
	if err := v.tail(c, visit); err != nil || enough != nil && enough() {
		return err
	}
	visit = c.visitor(visit)
	err := v.each("SELECT digest"+segments+" ORDER BY last DESC", c.segments(), func(row scanner) error {
		var digest sql.RawBytes
		if err := row.Scan(&digest); err != nil {
			return err
		}
		if err := readDigest(digest, c.wanted, visit); err != nil {
			return err
		}
		if enough != nil && enough() {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// scanRecords does it record by record, the newest first.
func (v *view) scanRecords(c choice, visit func(*facts), enough func() bool) error {
	r := newRowReader(factLen)
	visit = c.visitor(visit)
	err := v.each("SELECT "+factColumns+" FROM records WHERE "+c.where+" ORDER BY id DESC", c.args, func(row scanner) error {
		if err := r.scan(row); err != nil {
			return err
		}
		f, _ := readFacts(r)
		if c.wanted(f.group) {
			visit(&f)
		}
		if err := r.err(); err != nil {
			return err
		}
		if enough != nil && enough() {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// scanBest visits the records of a choice, those of segments first that promise
// the highest ranks, until none is left that has a rank above the least wanted.
func (v *view) scanBest(c choice, promise func(*extremes) float64, visit func(*facts), least func() float64) error {
	if c.where != "" {
		return v.scanRecords(c, visit, nil)
	}
	if err := v.tail(c, visit); err != nil {
		return err
	}
	type segment struct {
		last    int64
		promise float64
	}
	var all []segment
	err := v.each("SELECT last, max_elapsed_us, max_bytes, min_goodput_bps, max_retransmitted"+segments, c.segments(), func(row scanner) error {
		var s segment
		var e extremes
		if err := row.Scan(&s.last, &e.elapsedUs, &e.bytes, &e.leastGoodput, &e.retrans); err != nil {
			return err
		}
		s.promise = promise(&e)
		all = append(all, s)
		return nil
	})
	if err != nil {
		return err
	}
	sorted.By(all, func(a, b segment) int {
		return cmp.Or(cmp.Compare(b.promise, a.promise), cmp.Compare(b.last, a.last))
	})
	get, err := v.tx.PrepareContext(v.ctx, "SELECT digest FROM segments WHERE last = ?")
	if err != nil {
		return err
	}
	defer get.Close()
	visit = c.visitor(visit)
	for _, s := range all {
		if s.promise < least() {
			break
		}
		var digest []byte
		if err := get.QueryRowContext(v.ctx, s.last).Scan(&digest); err != nil {
			return err
		}
		if err := readDigest(digest, c.wanted, visit); err != nil {
			return err
		}
	}
	return nil
}

// namedIDs selects the IDs of the records with a name, from the index records_named. Its arguments are those
// of [named].
var namedIDs = fmt.Sprintf(`WITH RECURSIVE part(n) AS (
		SELECT min(id) / %[1]d FROM records UNION ALL SELECT n + 1 FROM part WHERE n < (SELECT max(id) / %[1]d FROM records))
	SELECT records.id FROM part CROSS JOIN records INDEXED BY records_named
	WHERE records.id / %[1]d = n AND substr(records.name, 1, %[2]d) = ? AND records.name = ?`, segmentLen, nameStart)

func named(name flow.Name) []any { return []any{name[:nameStart], name[:]} }

// withName visits the records of a choice that have a name.
func (v *view) withName(c choice, name flow.Name, visit func(*facts)) error {
	if !v.has.names {
		return nil
	}
	visit = c.visitor(visit)
	return v.facts("WHERE id IN ("+namedIDs+")"+c.and(), append(named(name), c.args...), func(f *facts) {
		if c.wanted(f.group) {
			visit(f)
		}
	})
}

// candidate is a record that may be in a list.
type candidate struct {
	id   int64
	rank float64 // the larger the earlier
}

func compareCandidates(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(b.id, a.id))
}

// worstFirst is a heap of the best candidates.
type worstFirst []candidate

func (h worstFirst) Len() int           { return len(h) }
func (h worstFirst) Less(i, j int) bool { return compareCandidates(h[i], h[j]) > 0 }
func (h worstFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *worstFirst) Push(c any)        { *h = append(*h, c.(candidate)) }
func (h *worstFirst) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// rank is where a record stands in an order, and whether it is in it at all.
func (o Order) rank(f *facts) (float64, bool) {
	switch o {
	case Slowest:
		g := f.goodputBps()
		return -g, g > 0
	case Longest:
		return float64(f.elapsedUs), true
	case Largest:
		return float64(f.up + f.down), true
	case Retransmitted:
		share := f.retransmittedShare()
		return share, share > 0
	}
	return float64(f.id), true
}

// promise is the highest rank that a segment can have.
func (q *Query) promise(e *extremes) float64 {
	switch {
	case q.Order == Longest:
		return float64(e.elapsedUs)
	case q.Order == Largest:
		return float64(e.bytes)
	case q.LeastBytes() < DefaultMinBytes: // of which the extremes know nothing
	case q.Order == Slowest:
		return -e.leastGoodput
	case q.Order == Retransmitted:
		return e.retrans
	}
	return math.Inf(1)
}

// Query is the records that a query selects, in its order.
func (r *Reader) Query(ctx context.Context, q Query) ([]monitor.Record, error) {
	if q.Order == "" {
		q.Order = Newest
	}
	if !slices.Contains(Orders(), q.Order) {
		return nil, errors.New("there is no order " + string(q.Order))
	}
	switch {
	case q.Limit == 0:
		q.Limit = DefaultLimit
	case q.Limit < 0:
		q.Limit = math.MaxInt
	}
	records := []monitor.Record{}
	err := r.look(ctx, func(v *view) error {
		best, err := v.best(&q)
		if err != nil {
			return err
		}
		records, err = v.records(best)
		return err
	})
	return records, err
}

// best is what a list has, in its order.
func (v *view) best(q *Query) ([]candidate, error) {
	c := v.choice(q.Since, q.Until, q.Selection, q.Cause)
	var after *candidate
	if q.After != 0 && q.Order == Newest {
		c.before = q.After
	} else if q.After != 0 {
		f, err := v.factsFrom(q.After)
		if err == nil && f.id != q.After {
			err = fmt.Errorf("%w: %d", ErrNoRecord, q.After)
		}
		if err != nil {
			return nil, err
		}
		rank, _ := q.Order.rank(&f)
		after = &candidate{f.id, rank}
	}
	best := make(worstFirst, 0, min(q.Limit, 1000))
	minBytes := q.LeastBytes()
	visit := func(f *facts) {
		rank, in := q.Order.rank(f)
		if !in || f.up+f.down < minBytes {
			return
		}
		found := candidate{f.id, rank}
		switch {
		case after != nil && compareCandidates(found, *after) <= 0:
		case len(best) < q.Limit:
			heap.Push(&best, found)
		case compareCandidates(found, best[0]) < 0:
			best[0] = found
			heap.Fix(&best, 0)
		}
	}
	full := func() bool { return len(best) == q.Limit }
	var err error
	switch {
	case !q.Name.IsZero():
		err = v.withName(c, q.Name, visit)
	case q.Order == Newest:
		err = v.scan(c, visit, full)
	default:
		err = v.scanBest(c, q.promise, visit, func() float64 {
			if full() {
				return best[0].rank
			}
			return math.Inf(-1)
		})
	}
	slices.SortFunc(best, compareCandidates)
	return best, err
}

// records are the ones with these IDs, in this order.
func (v *view) records(all []candidate) ([]monitor.Record, error) {
	byID := make([]int, len(all))
	for i := range byID {
		byID[i] = i
	}
	slices.SortFunc(byID, func(a, b int) int { return cmp.Compare(all[a].id, all[b].id) })
	ids := make([]int64, len(all))
	for i, at := range byID {
		ids[i] = all[at].id
	}
	wanted, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	records := make([]monitor.Record, len(all))
	found := 0
	selection := "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
	err = v.eachRecord(selection, []any{string(wanted)}, func(r *monitor.Record, _ *facts) error {
		if ids[found] != r.ID {
			return errBlob
		}
		records[byID[found]] = *r
		found++
		return nil
	})
	if err == nil && found < len(ids) {
		err = errBlob
	}
	return records, err
}

// Walk calls visit with every record that ended in a period, oldest first, and
// ends with the first error. It holds the file for moments only, so records may
// be let go of while it goes.
func (r *Reader) Walk(ctx context.Context, q Query, visit func(*monitor.Record) error) error {
	var last int64
	for {
		var page []monitor.Record
		var end int64
		err := r.look(ctx, func(v *view) error {
			c := v.choice(q.Since, q.Until, q.Selection, q.Cause)
			end = 0
			selection, args := "WHERE id > ?", []any{last}
			switch {
			case q.Name.IsZero():
			case !v.has.names:
				return nil
			default:
				selection, args = selection+" AND id IN ("+namedIDs+")", append(args, named(q.Name)...)
			}
			selection, args = selection+c.and(), append(args, c.args...)
			return v.eachRecord(selection+" ORDER BY id LIMIT ?", append(args, segmentLen), func(r *monitor.Record, f *facts) error {
				end = r.ID
				if c.has(f.endMs) && c.wanted(f.group) && f.up+f.down >= q.MinBytes {
					page = append(page, *r)
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		for i := range page {
			if err := visit(&page[i]); err != nil {
				return err
			}
		}
		if end == 0 {
			return nil
		}
		last = end
	}
}
