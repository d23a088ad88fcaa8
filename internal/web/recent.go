package web

import (
	"cmp"
	"slices"
	"time"

	"longhaul/internal/monitor"
)

// recentRecords is how many ended flows are remembered without a history.
const recentRecords = 500

// recent are the last records, in a ring.
type recent struct {
	ring [recentRecords]*monitor.Record
	next int
}

func (r *recent) add(one *monitor.Record) {
	r.ring[r.next] = one
	r.next = (r.next + 1) % recentRecords
}

// find is the record of a flow that ended; nil: it is not remembered.
func (r *recent) find(id monitor.FlowID) *monitor.Record {
	for i := range recentRecords {
		one := r.ring[(r.next-1-i+2*recentRecords)%recentRecords]
		if one == nil {
			return nil
		}
		if one.Flow == id {
			return one
		}
	}
	return nil
}

// query answers as a history does, from what is remembered.
func (r *recent) query(q Query) []monitor.Record {
	var all []monitor.Record
	for _, one := range r.ring {
		if one == nil || one.End.Before(q.Since) || !one.End.Before(q.Until) ||
			q.Tunnel != "" && one.Tunnel != q.Tunnel || q.Cause != "" && one.Cause != q.Cause {
			continue
		}
		all = append(all, *one)
	}
	slices.SortStableFunc(all, q.Order.compare)
	return all[:min(q.Limit, len(all))]
}

func (o Order) compare(a, b monitor.Record) int {
	newest := b.End.Compare(a.End)
	switch o {
	case Slowest:
		return cmp.Or(cmp.Compare(a.GoodputBps(), b.GoodputBps()), newest)
	case Longest:
		return cmp.Or(cmp.Compare(b.Elapsed, a.Elapsed), newest)
	case Largest:
		return cmp.Or(cmp.Compare(b.BytesUp+b.BytesDown, a.BytesUp+a.BytesDown), newest)
	case Retransmissions:
		return cmp.Or(cmp.Compare(retransmitted(&b), retransmitted(&a)), newest)
	}
	return newest
}

func retransmitted(r *monitor.Record) int64 {
	return max(0, r.ClientLeg.BytesRetransmitted) + max(0, r.TargetLeg.BytesRetransmitted)
}

// startedAt says whether a record is of the flow that began then; within the
// precision of the page's address.
func startedAt(r *monitor.Record, at time.Time) bool {
	return at.IsZero() || r.Start.Sub(at).Abs() < 2*time.Millisecond
}
