package web

import (
	"cmp"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/sorted"
)

// recentRecords is the number of ended flows remembered without a history.
const recentRecords = 500

// recent is a ring of the latest records.
type recent struct {
	ring []monitor.Record // at most recentRecords
	next int              // of a full ring: the oldest
}

func (r *recent) add(records []monitor.Record) {
	for i := range records {
		if len(r.ring) < recentRecords {
			r.ring = append(r.ring, records[i])
			continue
		}
		r.ring[r.next] = records[i]
		r.next = (r.next + 1) % recentRecords
	}
}

// find returns the record of an ended flow; nil: not remembered.
func (r *recent) find(id flow.ID, began time.Time) *monitor.Record {
	for i := range r.ring {
		if one := &r.ring[i]; one.Flow == id && sameMoment(one.Start, began) {
			found := *one
			return &found
		}
	}
	return nil
}

// sameMoment reports whether a flow began at the time in a page's address, if
// it has one: IDs restart with each process.
func sameMoment(start, address time.Time) bool {
	return address.IsZero() || start.Sub(address).Abs() < 2*time.Millisecond
}

// query answers like a history, from the remembered records.
func (r *recent) query(q history.Query) []monitor.Record {
	all := []monitor.Record{}
	for i := range r.ring {
		one := &r.ring[i]
		bytes := one.BytesUp + one.BytesDown
		if one.End.Before(q.Since) || !one.End.Before(q.Until) || q.Tunnel != "" && one.Tunnel != q.Tunnel || !placed(one, &q.Selection) || q.Cause != "" && one.Cause != q.Cause ||
			!q.Name.IsZero() && one.Name != q.Name || bytes < history.DefaultMinBytes && (q.Order == history.Slowest || q.Order == history.Retransmitted) {
			continue
		}
		all = append(all, *one)
	}
	sorted.By(all, func(a, b monitor.Record) int {
		return cmp.Or(compareRecords(q.Order, &a, &b), b.End.Compare(a.End))
	})
	return all[:min(q.Limit, len(all))]
}

// placed is whether a record is of the relay, the site and the client of a selection.
func placed(r *monitor.Record, of *history.Selection) bool {
	return (of.Relay == "" || r.Relay == of.Relay) && (of.Site == "" || r.Site == of.Site || r.Peer == of.Site) &&
		(!of.Client.IsValid() || of.Client.Contains(r.Client.Addr().Unmap()))
}

func compareRecords(o history.Order, a, b *monitor.Record) int {
	switch o {
	case history.Slowest:
		return cmp.Compare(a.GoodputBps(), b.GoodputBps())
	case history.Longest:
		return cmp.Compare(b.Elapsed, a.Elapsed)
	case history.Largest:
		return cmp.Compare(b.BytesUp+b.BytesDown, a.BytesUp+a.BytesDown)
	case history.Retransmitted:
		return cmp.Compare(retransmitted(b), retransmitted(a))
	}
	return 0
}

// retransmitted is the share of retransmitted data.
func retransmitted(r *monitor.Record) float64 {
	var sent, again int64
	for _, l := range []flow.LegRecord{r.ClientLeg, r.TargetLeg} {
		sent, again = sent+max(0, l.BytesSent), again+max(0, l.BytesRetransmitted)
	}
	return float64(again) / float64(max(1, sent))
}
