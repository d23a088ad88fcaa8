package history

import (
	"cmp"
	"container/heap"
	"context"
	"database/sql"
	"errors"
	"math"
	"slices"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/monitor"
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
}

func (c choice) wanted(g group) bool {
	return (c.tunnel == 0 || c.tunnel == g.tunnel) && (c.cause == 0 || c.cause == g.cause)
}

func (v *view) choice(since, until time.Time, tunnel string, cause doctor.Cause) choice {
	c := choice{span: newSpan(since, until)}
	if tunnel != "" {
		c.tunnel = v.id(tunnel)
	}
	if cause != "" {
		c.cause = v.id(string(cause))
	}
	return c
}

// errEnough ends a scan.
var errEnough = errors.New("enough")

// scan visits the records of a choice, the newest segment first and within a
// segment the oldest record first. Between two segments it may be ended.
func (v *view) scan(c choice, visit func(*facts), enough func() bool) error {
	if c.before == 0 {
		c.before = math.MaxInt64
	}
	take := func(f *facts) {
		if c.has(f.endMs) && f.id < c.before {
			visit(f)
		}
	}
	err := v.each("SELECT "+factColumns+" FROM records WHERE id > (SELECT ifnull(max(last), 0) FROM segments) ORDER BY id", nil, func(row scanner) error {
		var f facts
		if err := scanFacts(row, &f); err != nil {
			return err
		}
		if c.wanted(f.group) {
			take(&f)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if enough != nil && enough() {
		return nil
	}
	err = v.each("SELECT digest FROM segments WHERE max_end_ms >= ? AND min_end_ms < ? AND last - ? < ? ORDER BY last DESC",
		[]any{c.from, c.to, segmentLen, c.before}, func(row scanner) error {
			var digest sql.RawBytes
			if err := row.Scan(&digest); err != nil {
				return err
			}
			if err := readDigest(digest, c.wanted, take); err != nil {
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

// Query is the records that a query selects, in its order.
func (r *Reader) Query(ctx context.Context, q Query) ([]monitor.Record, error) {
	if q.Order == "" {
		q.Order = Newest
	}
	if !slices.Contains(Orders(), q.Order) {
		return nil, errors.New("there is no order " + string(q.Order))
	}
	if q.Limit <= 0 {
		q.Limit = DefaultLimit
	}
	q.Limit = min(q.Limit, MaxLimit)
	records := []monitor.Record{}
	err := r.look(ctx, func(v *view) error {
		c := v.choice(q.Since, q.Until, q.Tunnel, q.Cause)
		var after *candidate
		if q.After != 0 {
			if q.Order == Newest {
				c.before = q.After
			} else {
				var f facts
				if err := scanFacts(v.tx.QueryRowContext(ctx, "SELECT "+factColumns+" FROM records WHERE id = ?", q.After), &f); err != nil {
					return err
				}
				rank, _ := q.Order.rank(&f)
				after = &candidate{f.id, rank}
			}
		}
		best := make(worstFirst, 0, q.Limit+1)
		err := v.scan(c, func(f *facts) {
			rank, in := q.Order.rank(f)
			if !in || f.up+f.down < q.minBytes() {
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
		}, func() bool { return q.Order == Newest && len(best) == q.Limit })
		if err != nil {
			return err
		}
		slices.SortFunc(best, compareCandidates)
		get, err := v.tx.PrepareContext(ctx, "SELECT "+columns+" FROM records WHERE id = ?")
		if err != nil {
			return err
		}
		defer get.Close()
		for _, found := range best {
			record, err := scanRecord(get.QueryRowContext(ctx, found.id), v.words)
			if err != nil {
				return err
			}
			records = append(records, record)
		}
		return nil
	})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errors.Join(ErrNoRecord, err)
	}
	return records, err
}

// Walk calls visit with every record that ended in a period, oldest first, and
// ends with the first error. It holds the file for moments only, so records may
// be let go of while it goes.
func (r *Reader) Walk(ctx context.Context, q Query, visit func(*monitor.Record) error) error {
	s := newSpan(q.Since, q.Until)
	var last int64
	for {
		var page []monitor.Record
		var end int64
		err := r.look(ctx, func(v *view) error {
			c := v.choice(q.Since, q.Until, q.Tunnel, q.Cause)
			end = 0
			return v.each("SELECT "+columns+" FROM records WHERE id > ? ORDER BY id LIMIT ?", []any{last, segmentLen}, func(row scanner) error {
				record, err := scanRecord(row, v.words)
				if err != nil {
					return err
				}
				end = record.ID
				g := group{tunnel: v.ids[record.Tunnel], cause: v.ids[string(record.Cause)]}
				if s.has(record.End.UnixMilli()) && c.wanted(g) && record.BytesUp+record.BytesDown >= q.MinBytes {
					page = append(page, record)
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
