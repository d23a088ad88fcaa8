package history

import (
	"cmp"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history/synthetic"
)

// Records are selected by client, relay and the peer's site, in lists, sums, charts and exports.
func TestSelections(t *testing.T) {
	t.Parallel()
	slowWithRace(t)
	path := filepath.Join(t.TempDir(), "history.db")
	all := made(2*segmentLen+50, 10*time.Second, noon)
	for i := range all {
		all[i].ID = int64(i + 1)
		if i%3 == 0 {
			all[i].Relay = "relay-b"
		}
	}
	writeAll(t, path, all)
	r := reader(t, path)
	one := all[100].Client.Addr()
	for name, of := range map[string]Selection{
		"address": {Client: netip.PrefixFrom(one, one.BitLen())}, "prefix": {Client: netip.MustParsePrefix("10.10.1.0/25")}, "IPv6": {Client: netip.MustParsePrefix("fd0a::/16")},
		"relay": {Relay: "relay-b"}, "site": {Site: "site-b"}, "all of them": {Relay: "relay-b", Site: "site-b", Client: netip.MustParsePrefix("10.0.0.0/8"), Tunnel: synthetic.Tunnel(0)},
		"nobody": {Client: netip.MustParsePrefix("192.0.2.0/24")}, "no relay": {Relay: "relay-c"},
	} {
		var want []monitor.Record
		var bytes int64
		for _, r := range all {
			if (of.Tunnel == "" || r.Tunnel == of.Tunnel) && (of.Relay == "" || r.Relay == of.Relay) && (of.Site == "" || r.Site == of.Site) &&
				(!of.Client.IsValid() || of.Client.Contains(r.Client.Addr())) {
				want = append(want, r)
				bytes += r.BytesUp + r.BytesDown
			}
		}
		s, err := r.Summary(t.Context(), Period{}, of)
		if err != nil || s.Flows != int64(len(want)) || s.BytesUp+s.BytesDown != bytes {
			t.Errorf("%s: %v, %d flows, want %d", name, err, s.Flows, len(want))
		}
		chart, err := r.Series(t.Context(), Period{Since: all[0].Start, Until: noon.Add(time.Second)}, of)
		var flows int64
		for _, p := range chart.Points {
			flows += p.Flows
		}
		if err != nil || flows != int64(len(want)) {
			t.Errorf("%s: %v, the chart has %d flows, want %d", name, err, flows, len(want))
		}
		walked := []int64{}
		if err := r.Walk(t.Context(), Query{Selection: of}, func(r *monitor.Record) error { walked = append(walked, r.ID); return nil }); err != nil || !slices.Equal(walked, ids(want)) {
			t.Errorf("%s: %v, the export has %d records, want %d", name, err, len(walked), len(want))
		}
		for _, order := range []Order{Newest, Largest} {
			slices.SortFunc(want, func(a, b monitor.Record) int {
				if order == Largest {
					return cmp.Or(cmp.Compare(b.BytesUp+b.BytesDown, a.BytesUp+a.BytesDown), cmp.Compare(b.ID, a.ID))
				}
				return cmp.Compare(b.ID, a.ID)
			})
			got, err := r.Query(t.Context(), Query{Selection: of, Order: order, Limit: 20})
			if diff := gocmp.Diff(ids(want[:min(20, len(want))]), ids(got)); diff != "" || err != nil {
				t.Errorf("%s, %s: %v, %s", name, order, err, diff)
			}
		}
	}
}

// Of flows whose records are gone, hourly summaries have no clients: that is an error, not 0.
func TestSelectionOfDisplacedRecords(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	writeAll(t, path, made(2*segmentLen, 10*time.Second, noon))
	execute(t, path, "DELETE FROM records WHERE id <= 1024; DELETE FROM segments WHERE last = 1024")
	r := reader(t, path)
	of := Selection{Client: netip.MustParsePrefix("10.0.0.0/8")}
	if _, err := r.Summary(t.Context(), Period{}, of); !errors.Is(err, ErrDisplaced) {
		t.Error(err)
	}
	if _, err := r.Series(t.Context(), Period{Since: noon.Add(-6 * time.Hour)}, of); !errors.Is(err, ErrDisplaced) {
		t.Error(err)
	}
	if s, err := r.Summary(t.Context(), Period{Since: noon.Add(-time.Hour)}, of); err != nil || s.Flows == 0 {
		t.Errorf("%v, %d flows", err, s.Flows)
	}
}
