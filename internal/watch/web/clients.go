package web

import (
	"cmp"
	"iter"
	"net/netip"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/sorted"
)

// topClients is the number of clients on the overview.
const topClients = 5

// clientRow sums the running flows of one client address.
type clientRow struct {
	Client  string  `json:"client"`
	Flows   int     `json:"flows"`
	UpBps   float64 `json:"up_bps"`
	DownBps float64 `json:"down_bps"`
	Bytes   int64   `json:"bytes"` // of its running flows, both directions
}

// clientsOf returns the clients that move most now; for many flows it is computed once per
// snapshot, for any number of readers.
func (d *Dashboard) clientsOf(s *monitor.Snapshot) []clientRow {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.clientsFor != s {
		d.clientsNow, d.clientsFor = sumClients(d.monitor.Flows()), s
	}
	return d.clientsNow
}

func sumClients(flows iter.Seq[*monitor.Flow]) []clientRow {
	sums := map[netip.Addr]*clientRow{}
	for f := range flows {
		if !f.Client.IsValid() {
			continue
		}
		row := sums[f.Client.Addr()]
		if row == nil {
			row = &clientRow{Client: f.Client.Addr().String()}
			sums[f.Client.Addr()] = row
		}
		row.Flows++
		row.UpBps, row.DownBps, row.Bytes = row.UpBps+f.UpBps, row.DownBps+f.DownBps, row.Bytes+f.BytesUp+f.BytesDown
	}
	all := make([]clientRow, 0, len(sums))
	for _, row := range sums {
		row.UpBps, row.DownBps = whole(row.UpBps), whole(row.DownBps)
		all = append(all, *row)
	}
	sorted.By(all, func(a, b clientRow) int {
		return cmp.Or(cmp.Compare(b.UpBps+b.DownBps, a.UpBps+a.DownBps), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Client, b.Client))
	})
	return all[:min(len(all), topClients)]
}
