package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres"
	"longhaul/internal/watch/archive/postgres/pgtest"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

const patience = 5 * time.Minute

// noon is some days ago, so that days are over and others not.
var noon = time.Now().UTC().Truncate(24 * time.Hour).Add(-36 * time.Hour)

// sites are three relays, the records of each, and both places where they are.
type sites struct {
	server *pgtest.Server
	all    []monitor.Record // of all relays, by their ends; IDs are those of the database
	own    map[string]string
	files  []*history.Reader
	each   [][]monitor.Record
	db     *postgres.Reader
}

const fromTunnel = "from-b"

func siteOf(relay int) string { return fmt.Sprintf("site-%c", 'a'+relay) }

// newSites writes records of three relays into a file each and into one database.
func newSites(t *testing.T) *sites {
	t.Helper()
	const records = 1500
	s := &sites{server: pgtest.Start(t), own: map[string]string{}}
	to, err := archive.ParseTarget(s.server.Database("longhaul"))
	nettest.Must(t, err)
	_, err = postgres.MakeSchema(t.Context(), to, postgres.SchemaOptions{})
	nettest.Must(t, err)
	for n := range 3 {
		maker := synthetic.NewMaker(uint64(n + 1))
		var own []monitor.Record
		relay := fmt.Sprintf("relay-%d.example.net", n)
		s.own[relay] = siteOf(n)
		for i := range records {
			// Four days; no two flows of different relays end at once.
			end := noon.Add(-time.Duration(records-1-i) * 4 * 24 * time.Hour / records).Truncate(time.Second).Add(time.Duration(n) * time.Millisecond)
			r := maker.Record(end)
			r.Relay, r.Peer, r.Site = relay, "", ""
			if peer := (n + 1 + i%2) % 3; i%7 > 1 {
				r.Peer, r.Site = fmt.Sprintf("%s/b%d", siteOf(peer), i%2), siteOf(peer)
			}
			if i%5 == 0 { // the far one of two
				r.ClientLeg.Side, r.TargetLeg.Side = "wan", "lan"
			}
			if r.Peer != "" && i%20 == 0 {
				r.Tunnel = fromTunnel // far relays alone have it
			}
			if i%50 == 3 {
				r.Resumes, r.Outage = int64(i%3), 1e9
			}
			if i%100 == 9 {
				r.ClientLeg, r.TargetLeg = flow.UnknownLeg(), flow.UnknownLeg()
			}
			own = append(own, r)
		}
		own[3].Error = "a \\ \"quoted\" text,\nwith {all} of it\tand ü"
		s.each = append(s.each, own)
	}
	s.each[1][700].Name = s.each[0][699].Name // one flow through two relays
	s.each[2][701].Name = s.each[0][699].Name
	sink, err := postgres.Open(to)
	nettest.Must(t, err)
	defer sink.Close()
	for n, own := range s.each {
		path := filepath.Join(t.TempDir(), "history.db")
		store, err := history.Open(path, history.Options{})
		nettest.Must(t, err)
		store.Add(slices.Clone(own))
		nettest.Must(t, store.Close())
		file, err := history.OpenReader(path)
		nettest.Must(t, err)
		t.Cleanup(func() { file.Close() })
		s.files = append(s.files, file)
		spool, err := file.Spool(t.Context(), 0, 10_000)
		nettest.Must(t, err)
		var rows []archive.Row
		for _, r := range spool.Records {
			rows = append(rows, archive.Row{Record: r.Record, Epoch: r.Epoch, OwnSite: siteOf(n)})
		}
		if len(rows) != records {
			t.Fatalf("the file has %d records", len(rows))
		}
		nettest.Must(t, sink.Deliver(t.Context(), rows))
		for i := range rows {
			r := rows[i].Record
			r.RelaySite = siteOf(n)
			s.all = append(s.all, r)
		}
	}
	for i := range s.all { // in the order of their coming
		s.all[i].ID = int64(i + 1)
		s.all[i].Flow = 0 // of one process
	}
	slices.SortFunc(s.all, func(a, b monitor.Record) int { return a.End.Compare(b.End) })
	s.db, err = postgres.OpenReader(to, postgres.ReaderOptions{Patience: patience})
	nettest.Must(t, err)
	t.Cleanup(func() { s.db.Close() })
	return s
}

// has is the selection, by other means than a reader's.
func (s *sites) has(r *monitor.Record, of history.Selection) bool {
	return (of.Tunnel == "" || r.Tunnel == of.Tunnel) &&
		(of.Relay == "" || slices.Contains([]string{r.Relay, r.RelayName(), strings.TrimSuffix(r.RelayName(), ".example.net")}, of.Relay)) &&
		(of.Site == "" || r.Site == of.Site || s.own[r.Relay] == of.Site) &&
		(!of.Client.IsValid() || of.Client.Contains(r.Client.Addr()))
}

// once is whether sums of a selection leave out what far relays of pairs have.
func (s *sites) once(of history.Selection) bool {
	of.Client = netip.Prefix{}
	return of.Relay == "" && slices.ContainsFunc(s.all, func(r monitor.Record) bool { return s.has(&r, of) && !isFar(&r) })
}

func isFar(r *monitor.Record) bool { return r.Peer != "" && r.ClientLeg.Side == "wan" }

func sentOf(r *monitor.Record) (sent, again int64) {
	for _, l := range []flow.LegRecord{r.ClientLeg, r.TargetLeg} {
		if l.BytesSent >= 0 {
			sent, again = sent+l.BytesSent, again+max(l.BytesRetransmitted, 0)
		}
	}
	return sent, again
}

// list is what a query selects, by a sort of everything.
func (s *sites) list(q history.Query) (all []monitor.Record) {
	rank := func(r *monitor.Record) (float64, bool) {
		sent, again := sentOf(r)
		switch q.Order {
		case history.Slowest:
			return -r.GoodputBps(), r.GoodputBps() > 0
		case history.Longest:
			return float64(r.Elapsed), true
		case history.Largest:
			return float64(r.BytesUp + r.BytesDown), true
		case history.Retransmitted:
			return float64(again) / float64(max(sent, 1)), again > 0
		}
		return float64(r.End.UnixMilli()), true
	}
	for _, r := range s.all {
		_, in := rank(&r)
		if in && s.has(&r, q.Selection) && (q.Since.IsZero() || !r.End.Before(q.Since)) && (q.Until.IsZero() || r.End.Before(q.Until)) &&
			(q.Cause == "" || r.Cause == q.Cause) && (q.Name.IsZero() || r.Name == q.Name) && r.BytesUp+r.BytesDown >= q.LeastBytes() {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b monitor.Record) int {
		x, _ := rank(&a)
		y, _ := rank(&b)
		return cmp.Or(cmp.Compare(y, x), cmp.Compare(b.ID, a.ID))
	})
	return all
}

var sameAddress = gocmp.Comparer(func(a, b flow.Address) bool { return a == b })

// samePrefix compares selections.
var samePrefix = gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// The database answers as three files do.
func TestReaderAnswersLikeFiles(t *testing.T) {
	s := newSites(t)
	t.Run("lists", s.lists)
	t.Run("one record", s.oneRecord)
	t.Run("export", s.export)
	t.Run("summaries", s.summaries)
	t.Run("comparison", s.comparison)
	t.Run("charts", s.charts)
	t.Run("matrix", s.matrix)
	t.Run("extent", s.extent)
	t.Run("bounds", s.bounds)
	t.Run("without old days", s.withoutOldDays) // the last one: it drops them
}

func (s *sites) selections() map[string]history.Selection {
	client := s.all[40].Client.Addr()
	return map[string]history.Selection{
		"all":    {},
		"tunnel": {Tunnel: synthetic.Tunnel(1)},
		"relay":  {Relay: "relay-1.example.net"},
		"site":   {Site: "site-b"},
		"short":  {Relay: "site-b/relay-1"},
		"far":    {Tunnel: fromTunnel},
		"client": {Client: netip.PrefixFrom(client, client.BitLen())},
		"prefix": {Client: netip.MustParsePrefix("10.10.0.0/16")},
		"both":   {Client: netip.MustParsePrefix("fd0a::/16"), Relay: "relay-2.example.net"},
		"none":   {Tunnel: "no such tunnel"},
	}
}

func (s *sites) lists(t *testing.T) {
	middle := s.all[len(s.all)/2].End
	for _, order := range history.Orders() {
		queries := map[string]history.Query{
			"since": {Since: middle}, "until": {Until: middle, Limit: 7}, "cause": {Cause: doctor.RandomLoss},
			"small ones": {MinBytes: -1, Limit: 900}, "large ones": {MinBytes: 1e9}, "a name": {Name: s.each[0][699].Name, MinBytes: -1},
		}
		for name, of := range s.selections() {
			queries[name] = history.Query{Selection: of}
		}
		for name, q := range queries {
			q.Order = order
			want := s.list(q)
			var got []monitor.Record
			for page := q; len(got) < len(want)+1; {
				records, err := s.db.Query(t.Context(), page)
				nettest.Must(t, err)
				got = append(got, records...)
				if limit := cmp.Or(q.Limit, history.DefaultLimit); len(records) > limit {
					t.Fatalf("%d records, %d wanted", len(records), limit)
				} else if len(records) < limit || len(got) > 200 {
					break
				}
				page.After = got[len(got)-1].ID
			}
			if len(got) > 200 {
				want = want[:min(len(want), len(got))]
			}
			if diff := gocmp.Diff(ids(want), ids(got)); diff != "" {
				t.Errorf("%s, %s (-want +got): %s", order, name, diff)
			}
		}
	}
	if _, err := s.db.Query(t.Context(), history.Query{Order: history.Largest, After: 1 << 40}); !errors.Is(err, history.ErrNoRecord) {
		t.Errorf("a page after a record that is not there: %v", err)
	}
}

func ids(all []monitor.Record) []int64 {
	found := []int64{}
	for i := range all {
		found = append(found, all[i].ID)
	}
	return found
}

func (s *sites) oneRecord(t *testing.T) {
	for _, i := range []int{0, 3, 9, 10, 700, 2000, len(s.all) - 1} {
		got, err := s.db.Get(t.Context(), s.all[i].ID)
		if diff := gocmp.Diff(s.all[i], got, sameAddress); diff != "" || err != nil {
			t.Errorf("%v; %s", err, diff)
		}
	}
	if _, err := s.db.Get(t.Context(), 1<<40); !errors.Is(err, history.ErrNoRecord) {
		t.Errorf("a record that is not there: %v", err)
	}
}

func (s *sites) export(t *testing.T) {
	for name, q := range map[string]history.Query{"all": {}, "some": {Since: s.all[100].End, Until: s.all[3000].End, Selection: history.Selection{Tunnel: synthetic.Tunnel(0)}}} {
		want := ids(s.list(q))
		slices.Reverse(want)
		got := []int64{}
		err := s.db.Walk(t.Context(), q, func(r *monitor.Record) error {
			got = append(got, r.ID)
			return nil
		})
		if diff := gocmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", name, err, diff)
		}
	}
	enough := errors.New("enough")
	if err := s.db.Walk(t.Context(), history.Query{}, func(*monitor.Record) error { return enough }); !errors.Is(err, enough) {
		t.Error(err)
	}
}

func (s *sites) periods() map[string]history.Period {
	at := func(i int) time.Time { return s.all[i].End }
	day := noon.Truncate(24 * time.Hour)
	return map[string]history.Period{
		"everything":      {},
		"since":           {Since: at(500)},
		"until":           {Until: at(2600)},
		"odd ends":        {Since: at(77), Until: at(4000).Add(time.Millisecond)},
		"whole days":      {Since: day.AddDate(0, 0, -2), Until: day},
		"whole hours":     {Since: day.Add(-50 * time.Hour), Until: day.Add(-2 * time.Hour)},
		"within an hour":  {Since: at(3000), Until: at(3000).Add(20 * time.Minute)},
		"within a day":    {Since: day.Add(3*time.Hour + 17), Until: day.Add(9*time.Hour - 1)},
		"up to now":       {Since: at(3000), Until: time.Now().Add(time.Second)},
		"large ones":      {Since: at(500), MinBytes: 5e6},
		"before all":      {Until: at(0)},
		"one millisecond": {Since: at(0), Until: at(0).Add(time.Millisecond)},
	}
}

// summary adds everything up.
func (s *sites) summary(p history.Period, of history.Selection) (want history.Summary, times, goodputs []float64) {
	want = history.Summary{Period: p, Selection: of, PairsOnce: s.once(of), RetransmittedShare: -1, QuantileError: postgres.QuantileError, Causes: []history.CauseCount{}, Ends: []history.EndCount{}}
	causes, ends := map[doctor.Cause][2]int64{}, map[[2]string]int64{}
	var sent, again int64
	for i := range s.all {
		r := &s.all[i]
		if !s.has(r, of) || want.PairsOnce && isFar(r) || r.End.Before(p.Since) || !p.Until.IsZero() && !r.End.Before(p.Until) {
			continue
		}
		moved := r.BytesUp + r.BytesDown
		want.Flows++
		want.BytesUp += r.BytesUp
		want.BytesDown += r.BytesDown
		x, y := sentOf(r)
		sent, again = sent+x, again+y
		if r.Cause != "" {
			c := causes[r.Cause]
			causes[r.Cause] = [2]int64{c[0] + 1, c[1] + moved}
		}
		ends[[2]string{r.EndedBy, string(r.Reason)}]++
		if r.Resumes > 0 || r.Outage > 0 {
			if want.Resumed == nil {
				want.Resumed = &history.Resumed{}
			}
			want.Resumed.Flows++
			want.Resumed.Resumes += r.Resumes
			want.Resumed.Outage += r.Outage
			want.Resumed.Longest = max(want.Resumed.Longest, r.Outage)
		}
		if moved >= max(p.MinBytes, 1) && r.Elapsed > 0 {
			times, goodputs = append(times, r.Elapsed.Seconds()), append(goodputs, r.GoodputBps())
		}
	}
	if sent > 0 {
		want.RetransmittedShare = float64(again) / float64(sent)
	}
	for c, n := range causes {
		want.Causes = append(want.Causes, history.CauseCount{Cause: c, Flows: n[0], Bytes: n[1]})
	}
	for e, n := range ends {
		want.Ends = append(want.Ends, history.EndCount{EndedBy: e[0], Reason: e[1], Flows: n})
	}
	want.Sort()
	want.Transfers = int64(len(times))
	slices.Sort(times)
	slices.Sort(goodputs)
	return want, times, goodputs
}

// quantile of sorted values; negative: there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return -1
	}
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// near is whether a figure is right within what the database promises.
func near(want, got float64) bool {
	return want < 0 && got < 0 || math.Abs(got-want) <= postgres.QuantileError*math.Abs(want)
}

func checkDistribution(t *testing.T, what string, values []float64, d history.Distribution) {
	t.Helper()
	if d.Count != int64(len(values)) {
		t.Errorf("%s: %d values, want %d", what, d.Count, len(values))
		return
	}
	if len(values) == 0 {
		return
	}
	var sum float64
	for _, v := range values {
		sum += v
	}
	for _, c := range []struct {
		name      string
		want, got float64
	}{
		{"min", values[0], d.Min}, {"10 %", quantile(values, .1), d.P10}, {"25 %", quantile(values, .25), d.P25}, {"50 %", quantile(values, .5), d.P50},
		{"75 %", quantile(values, .75), d.P75}, {"90 %", quantile(values, .9), d.P90}, {"95 %", quantile(values, .95), d.P95}, {"99 %", quantile(values, .99), d.P99},
		{"max", values[len(values)-1], d.Max}, {"mean", sum / float64(len(values)), d.Mean},
	} {
		if !near(c.want, c.got) {
			t.Errorf("%s, %s: %v, want %v", what, c.name, c.got, c.want)
		}
	}
}

func (s *sites) summaries(t *testing.T) {
	for period, p := range s.periods() {
		for selection, of := range s.selections() {
			got, err := s.db.Summary(t.Context(), p, of)
			nettest.Must(t, err)
			want, times, goodputs := s.summary(p, of)
			checkDistribution(t, period+", "+selection+": time", times, got.TransferTime)
			checkDistribution(t, period+", "+selection+": goodput", goodputs, got.Goodput)
			got.TransferTime, got.Goodput = history.Distribution{}, history.Distribution{}
			if diff := gocmp.Diff(want, got, samePrefix); diff != "" {
				t.Errorf("%s, %s (-want +got): %s", period, selection, diff)
			}
		}
		// Of one relay it is what the relay's own file says.
		got, err := s.db.Summary(t.Context(), p, history.Selection{Relay: "relay-1.example.net"})
		nettest.Must(t, err)
		file, err := s.files[1].Summary(t.Context(), p, history.Selection{Relay: "relay-1.example.net"})
		nettest.Must(t, err)
		for _, of := range []*history.Summary{&got, &file} {
			of.TransferTime, of.Goodput, of.QuantileError = history.Distribution{}, history.Distribution{}, 0
		}
		if diff := gocmp.Diff(file, got, samePrefix); diff != "" {
			t.Errorf("%s, file and database: %s", period, diff)
		}
	}
}

func (s *sites) comparison(t *testing.T) {
	at := noon.Add(-40 * time.Hour)
	before, after := history.Period{Since: at.Add(-30 * time.Hour), Until: at, MinBytes: 1e6}, history.Period{Since: at, Until: at.Add(30 * time.Hour), MinBytes: 1e6}
	of := history.Selection{Relay: "relay-2.example.net"}
	got, err := s.db.Compare(t.Context(), before, after, of)
	nettest.Must(t, err)
	file, err := s.files[2].Compare(t.Context(), before, after, of)
	nettest.Must(t, err)
	words := func(verdict string) string { return strings.Join(strings.Fields(verdict)[:3], " ") }
	if words(got.Verdict) != words(file.Verdict) || !slices.Equal(got.Warnings, file.Warnings) || got.Before.Transfers != file.Before.Transfers || got.After.Transfers == 0 {
		t.Errorf("the database says %q, %q; the file %q, %q", got.Verdict, got.Warnings, file.Verdict, file.Warnings)
	}
}

func (s *sites) charts(t *testing.T) {
	last := s.all[len(s.all)-1].End
	for name, p := range map[string]history.Period{
		"hours": {Since: last.Add(-7 * time.Hour), Until: last.Add(time.Second)}, "days": {Since: last.Add(-4 * 24 * time.Hour), Until: last.Add(time.Second)},
		"weeks": {Since: last.Add(-30 * 24 * time.Hour), Until: last.Add(time.Second)}, "large ones": {Since: last.Add(-50 * time.Hour), Until: last.Truncate(time.Second), MinBytes: 1e7},
	} {
		for selection, of := range s.selections() {
			chart, err := s.db.Series(t.Context(), p, of)
			nettest.Must(t, err)
			step := chart.Step.Duration()
			var up, down, carried float64
			for _, point := range chart.Points {
				want, times, goodputs := s.summary(history.Period{Since: point.At, Until: point.At.Add(step), MinBytes: p.MinBytes}, of)
				if point.Flows != want.Flows || point.Transfers != want.Transfers || point.RetransmittedShare != want.RetransmittedShare ||
					!near(quantile(times, .5), point.TransferTimeMedian) || !near(quantile(times, .95), point.TransferTimeP95) || !near(quantile(goodputs, .5), point.GoodputMedian) {
					t.Errorf("%s, %s: %+v, want %+v and %v, %v", name, selection, point, want, quantile(times, .5), quantile(goodputs, .5))
				}
				up, down = up+float64(want.BytesUp), down+float64(want.BytesDown)
				carried += (point.UpBps + point.DownBps) * step.Seconds() / 8
			}
			// Lives that began before the chart have a part of their bytes there.
			if carried > 1.001*(up+down) || name == "weeks" && carried < .999*(up+down) {
				t.Errorf("%s, %s: %v bytes carried, %v ended", name, selection, carried, up+down)
			}
		}
		// Of one relay it has the steps and the ends of the file's chart.
		of := history.Selection{Relay: "relay-0.example.net"}
		chart, err := s.db.Series(t.Context(), p, of)
		nettest.Must(t, err)
		file, err := s.files[0].Series(t.Context(), p, of)
		nettest.Must(t, err)
		if p.Until.Sub(p.Since) > 60*time.Hour { // by days, from the sums
			continue
		}
		if chart.Step != file.Step || len(chart.Points) != len(file.Points) {
			t.Fatalf("%s: %d points of %v, the file has %d of %v", name, len(chart.Points), chart.Step, len(file.Points), file.Step)
		}
		for i, point := range chart.Points {
			f := file.Points[i]
			if !point.At.Equal(f.At) || point.Flows != f.Flows || point.Transfers != f.Transfers || math.Abs(point.UpBps-f.UpBps) > 1e-6*f.UpBps+1000 {
				t.Errorf("%s: %+v, the file has %+v", name, point, f)
			}
		}
	}
}

func (s *sites) matrix(t *testing.T) {
	type ends struct{ from, to string }
	for name, p := range s.periods() {
		if p.MinBytes > 0 {
			continue
		}
		got, err := s.db.Matrix(t.Context(), p, 0)
		nettest.Must(t, err)
		lines := map[ends]*sites{} // as if these were all records
		for i := range s.all {
			r := &s.all[i]
			if r.ClientLeg.Side == "wan" || r.End.Before(p.Since) || !p.Until.IsZero() && !r.End.Before(p.Until) {
				continue
			}
			at := ends{s.own[r.Relay], cmp.Or(r.Site, r.Peer)}
			if lines[at] == nil {
				lines[at] = &sites{}
			}
			lines[at].all = append(lines[at].all, *r)
		}
		if len(got.Lines) != len(lines) {
			t.Errorf("%s: %d lines, want %d", name, len(got.Lines), len(lines))
		}
		for _, l := range got.Lines {
			of := lines[ends{l.From, l.To}]
			if of == nil {
				t.Errorf("%s: a line of %s and %s", name, l.From, l.To)
				continue
			}
			want, times, goodputs := of.summary(history.Period{}, history.Selection{})
			if l.Flows != want.Flows || l.Transfers != want.Transfers || l.BytesUp != want.BytesUp || l.BytesDown != want.BytesDown || math.Abs(l.RetransmittedShare-want.RetransmittedShare) > 1e-12 ||
				!near(quantile(times, .5), l.TimeMedian) || !near(quantile(times, .99), l.TimeP99) || !near(quantile(goodputs, .5), l.GoodputMedian) || !near(quantile(goodputs, .99), l.GoodputP99) {
				t.Errorf("%s: %+v, want %+v", name, l, want)
			}
		}
		s.matrixBySQL(t, p, got)
		// With quantiles of the first lines only, nothing else changes.
		some, err := s.db.Matrix(t.Context(), p, 4)
		nettest.Must(t, err)
		for i := range got.Lines {
			if l := &got.Lines[i]; i >= 4 {
				l.GoodputMedian, l.GoodputP99, l.TimeMedian, l.TimeP99 = -1, -1, -1, -1
			}
		}
		if diff := gocmp.Diff(got, some); diff != "" {
			t.Errorf("%s, quantiles of 4 lines: %s", name, diff)
		}
	}
	// A file's has the peers of its relay.
	file, err := s.files[0].Matrix(t.Context(), history.Period{}, 0)
	nettest.Must(t, err)
	if len(file.Lines) != 3 || file.Lines[0].From != "relay-0.example.net" {
		t.Errorf("the file has %+v", file.Lines)
	}
	database, err := s.db.Matrix(t.Context(), history.Period{}, 0)
	nettest.Must(t, err)
	for _, l := range file.Lines {
		i := slices.IndexFunc(database.Lines, func(m history.MatrixLine) bool { return m.From == "site-a" && m.To == l.To })
		if m := database.Lines[i]; m.Flows != l.Flows || m.BytesUp != l.BytesUp || m.BytesDown != l.BytesDown || !near(l.TimeMedian, m.TimeMedian*(1+history.RecordsError)) && !near(l.TimeMedian, m.TimeMedian) && !near(l.TimeMedian, m.TimeMedian*(1-history.RecordsError)) {
			t.Errorf("%+v, the file has %+v", m, l)
		}
	}
}

// matrixBySQL holds the exact figures against a plain query over the rows.
func (s *sites) matrixBySQL(t *testing.T, p history.Period, got history.Matrix) {
	t.Helper()
	bound := func(at time.Time, none string) string {
		if at.IsZero() {
			return none
		}
		return at.UTC().Format(time.RFC3339Nano)
	}
	rows := s.server.Exec("longhaul", fmt.Sprintf(`SELECT relay_site, coalesce(site, peer, ''), count(*), sum(bytes_up), sum(bytes_down)
		FROM longhaul.flows WHERE client_side IS DISTINCT FROM 'wan' AND ended >= '%s' AND ended < '%s'
		GROUP BY 1, 2 ORDER BY sum(bytes_up + bytes_down) DESC, 1, 2`, bound(p.Since, "-infinity"), bound(p.Until, "infinity")))
	var lines [][]string
	for _, l := range got.Lines {
		lines = append(lines, []string{l.From, l.To, fmt.Sprint(l.Flows), fmt.Sprint(l.BytesUp), fmt.Sprint(l.BytesDown)})
	}
	if diff := gocmp.Diff(rows, lines); diff != "" {
		t.Errorf("SQL over the rows differs: %s", diff)
	}
}

func (s *sites) extent(t *testing.T) {
	e, err := s.db.Extent(t.Context())
	nettest.Must(t, err)
	if e.Records != int64(len(s.all)) || !e.Oldest.Equal(s.all[0].End) || !e.Newest.Equal(s.all[len(s.all)-1].End) || e.Bytes == 0 || len(e.Tunnels) != synthetic.Tunnels+1 {
		t.Errorf("%+v", e)
	}
	p, err := s.db.Places(t.Context())
	if err != nil || len(p.Tunnels) != synthetic.Tunnels+1 || len(p.Relays) != 3 || !slices.Equal(p.Sites, []string{"site-a", "site-b", "site-c"}) {
		t.Errorf("%v, %+v", err, p)
	}
}

// More who ask than there are connections wait for their turn; one who gives up holds up nobody.
func (s *sites) bounds(t *testing.T) {
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				cancel()
			}
			defer cancel()
			_, err := s.db.Query(ctx, history.Query{Order: history.Largest})
			if i%2 == 1 && err != nil || i%2 == 0 && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := s.server.Exec("longhaul", "SELECT count(*) FROM pg_stat_activity WHERE datname = 'longhaul' AND application_name = 'longhaul'")[0][0]; n != "1" && n != "2" {
		t.Errorf("%s connections", n)
	}
	// What it reads, it cannot change.
	if got := s.server.Exec("longhaul", "SELECT count(*) FROM longhaul.flows")[0][0]; got != fmt.Sprint(len(s.all)) {
		t.Errorf("%s rows", got)
	}
	to, err := archive.ParseTarget(s.server.URL("longhaul", "longhaul"))
	nettest.Must(t, err)
	hasty, err := postgres.OpenReader(to, postgres.ReaderOptions{Patience: 50 * time.Millisecond})
	nettest.Must(t, err)
	defer hasty.Close()
	lock := s.server.Program("psql", "-c", "BEGIN; LOCK TABLE longhaul.flows, longhaul.version; SELECT pg_sleep(60)")
	lock.Env = append(lock.Env, "PGDATABASE=longhaul")
	nettest.Must(t, lock.Start())
	nettest.Eventually(t, time.Minute, func() bool {
		return s.server.Exec("longhaul", "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation = 'longhaul.flows'::regclass")[0][0] == "1"
	}, func() string { return "the table is not locked" })
	if _, err := hasty.Query(t.Context(), history.Query{}); err == nil || remedy.Of(err) == "" {
		t.Errorf("a locked table: %v", err)
	}
	s.server.Exec("longhaul", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()")
	_ = lock.Wait()
}

// Days that were dropped are answered from the sums, whole hours at a time, and that is said.
func (s *sites) withoutOldDays(t *testing.T) {
	to, err := archive.ParseTarget(s.server.URL("longhaul", "longhaul"))
	nettest.Must(t, err)
	kept := noon.Truncate(24*time.Hour).AddDate(0, 0, -2)
	_, err = postgres.MakeSchema(t.Context(), to, postgres.SchemaOptions{Keep: time.Since(kept)})
	nettest.Must(t, err)
	since := kept.Add(-30*time.Hour - 10*time.Minute)
	got, err := s.db.Summary(t.Context(), history.Period{Since: since}, history.Selection{})
	nettest.Must(t, err)
	want, _, _ := s.summary(history.Period{Since: since.Truncate(time.Hour)}, history.Selection{})
	if !got.Approximate || got.Flows != want.Flows || got.BytesUp != want.BytesUp {
		t.Errorf("%d flows, approximate %v; want %d", got.Flows, got.Approximate, want.Flows)
	}
	if _, err := s.db.Summary(t.Context(), history.Period{Since: since}, history.Selection{Client: netip.MustParsePrefix("10.0.0.0/8")}); !errors.Is(err, history.ErrDisplaced) {
		t.Errorf("clients of days that are gone: %v", err)
	}
	exact, err := s.db.Summary(t.Context(), history.Period{Since: kept.Add(time.Minute)}, history.Selection{})
	if err != nil || exact.Approximate {
		t.Errorf("%v, approximate %v", err, exact.Approximate)
	}
	e, err := s.db.Extent(t.Context())
	nettest.Must(t, err)
	if e.Oldest.Before(kept) || e.Records >= int64(len(s.all)) || !e.SummariesSince.Before(kept) {
		t.Errorf("%+v", e)
	}
}

// A database that is away, or is no longhaul's, is one sentence with its remedy.
func TestReaderOfNoDatabase(t *testing.T) {
	s := pgtest.Start(t)
	for name, url := range map[string]string{
		"no tables":   s.Database("empty"),
		"no database": s.URL("postgres", "none"),
		"no server":   "postgres://postgres@127.0.0.1:1/x?sslmode=disable",
	} {
		to, err := archive.ParseTarget(url)
		nettest.Must(t, err)
		r, err := postgres.OpenReader(to, postgres.ReaderOptions{Patience: patience})
		nettest.Must(t, err)
		for range 3 { // the second time from memory
			_, err = r.Query(t.Context(), history.Query{})
			if err == nil || remedy.Of(err) == "" || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", name, err)
			}
		}
		r.Close()
	}
	if _, err := postgres.OpenReader(archive.Target{Kind: archive.IPFIX, To: "ipfix://10.0.0.9:4739"}, postgres.ReaderOptions{}); err == nil {
		t.Error("a collector is read")
	}
}

// A reader goes on after the server came back.
func TestReaderOutlivesTheServer(t *testing.T) {
	s := pgtest.Start(t)
	to, err := archive.ParseTarget(s.Database("longhaul"))
	nettest.Must(t, err)
	_, err = postgres.MakeSchema(t.Context(), to, postgres.SchemaOptions{})
	nettest.Must(t, err)
	r, err := postgres.OpenReader(to, postgres.ReaderOptions{Patience: patience})
	nettest.Must(t, err)
	defer r.Close()
	ask := func() error {
		_, err := r.Query(t.Context(), history.Query{})
		return err
	}
	nettest.Must(t, ask())
	s.Stop()
	if err := ask(); err == nil || remedy.Of(err) == "" {
		t.Errorf("without a server: %v", err)
	}
	s.Run()
	nettest.Eventually(t, time.Minute, func() bool { return ask() == nil }, func() string { return fmt.Sprint(ask()) })
}
