package history

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		addForEver(file)
	}
	if file := os.Getenv(otherUser); file != "" {
		readAsOther(file)
	}
	nettest.AtOnce(4) // most of them wait for the disk
	nettest.Main(m)
}

// logBuffer keeps what is said.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// waitFor waits until words have been logged.
func (l *logBuffer) waitFor(t *testing.T, words string) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool { return strings.Contains(l.String(), words) }, func() string {
		return fmt.Sprintf("the log says %q; it says:\n%s", words, l)
	})
}

// becomes waits until the state of a store is as it should be.
func becomes(t *testing.T, s *Store, what string, so func(State) bool) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool { return so(s.State()) }, func() string {
		return fmt.Sprintf("%s; the store is at %+v", what, s.State())
	})
}

// healthy is the state of a store that has no trouble and nothing to write.
func healthy(s State) bool { return s.Waiting == 0 && s.Problem == "" }

// isSound holds that a file is sound.
func isSound(t *testing.T, path string) {
	t.Helper()
	if err := Check(t.Context(), path); err != nil {
		t.Errorf("the file is not sound: %v", err)
	}
}

// opened is a store that ends with the test, and what it says. However busy the
// machine is, it does not take the disk for stuck, and loses no record at its end.
func opened(t *testing.T, path string, opts Options) (*Store, *logBuffer) {
	t.Helper()
	said := &logBuffer{}
	opts.patience, opts.closing = cmp.Or(opts.patience, time.Hour), cmp.Or(opts.closing, patience)
	opts.Log = slog.New(slog.NewTextHandler(said, nil))
	s, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, said
}

func reader(t *testing.T, path string) *Reader {
	t.Helper()
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// raceDetector is whether it looks on.
var raceDetector bool

// slowWithRace skips a test of many records under the race detector, with which
// SQLite takes some twenty times as long.
func slowWithRace(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("takes minutes under the race detector")
	}
}

// patience is for conditions that take less than a second on an idle machine.
const patience = 60 * time.Second

// add hands records over and waits until they are in the file.
func add(t *testing.T, s *Store, records []monitor.Record) {
	t.Helper()
	want := s.State().Written + int64(len(records))
	for part := range slices.Chunk(records, queueLen/2) {
		nettest.Eventually(t, patience, func() bool { return s.State().Waiting == 0 }, func() string { return "records wait: " + s.State().Problem })
		s.Add(slices.Clone(part))
	}
	nettest.Eventually(t, patience, func() bool { return s.State().Written >= want }, func() string {
		return "records are not written: " + s.State().Problem
	})
}

// made are n records that ended one after the other, until a moment.
func made(n int, step time.Duration, until time.Time) []monitor.Record {
	maker := synthetic.NewMaker(7)
	all := make([]monitor.Record, n)
	for i := range all {
		all[i] = maker.Record(until.Add(time.Duration(i+1-n) * step))
	}
	return all
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	nettest.CheckLeaks(t)
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	full := made(1, time.Second, noon)[0]
	full.Cause, full.CauseLeg, full.CauseShare = doctor.Policer, flow.ClientLeg, 0.75
	full.Error = "connection reset by peer"
	full.Goodput = monitor.Series{Step: units.Seconds(2 * time.Second), UpBps: []float32{0, 0, 1e9, 2.5e8}, DownBps: []float32{0, 0, 0, 0}}
	empty := monitor.Record{
		Record: flow.Record{Start: noon, ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}, End: noon,
	}
	want := []monitor.Record{full, empty}
	add(t, s, want)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + "-wal"); err == nil {
		t.Error("SQLite's log is still there after the end")
	}
	r := reader(t, path)
	for i := range want {
		got, err := r.Get(t.Context(), int64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		want[i].ID = int64(i + 1)
		if diff := gocmp.Diff(want[i], got, cmpopts.EquateApproxTime(time.Millisecond), cmpopts.EquateApprox(0.01, 0),
			cmpopts.EquateEmpty(), gocmp.Comparer(func(a, b flow.Address) bool { return a == b })); diff != "" {
			t.Errorf("record %d (-want +got):\n%s", i+1, diff)
		}
	}
	if _, err := r.Get(t.Context(), 3); !errors.Is(err, ErrNoRecord) {
		t.Errorf("a record that is not there: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("everybody may read the addresses of clients: %v %v", info.Mode(), err)
	}
}

// TestListsAreThoseOfAllRecords holds lists against what sorting all records gives.
func TestListsAreThoseOfAllRecords(t *testing.T) {
	slowWithRace(t) // thousands of records, hundreds of times
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	all := made(3*segmentLen+500, 10*time.Second, noon)
	add(t, s, all[:2000])
	add(t, s, all[2000:])
	for i := range all {
		all[i].ID = int64(i + 1)
	}
	r := reader(t, path)
	middle := all[len(all)/2].End
	for _, order := range Orders() {
		for name, q := range map[string]Query{
			"all":         {},
			"tunnel":      {Selection: Selection{Tunnel: synthetic.Tunnel(2)}},
			"cause":       {Cause: doctor.RandomLoss},
			"since":       {Since: middle},
			"until":       {Until: middle, Limit: 7},
			"everything":  {Since: all[100].End, Until: all[3000].End, Selection: Selection{Tunnel: synthetic.Tunnel(0)}, Cause: doctor.Policer, Limit: 20},
			"small ones":  {MinBytes: -1, Limit: 100},
			"large ones":  {MinBytes: 1e9, Limit: 30},
			"none":        {Selection: Selection{Tunnel: "no such tunnel"}},
			"many":        {Limit: 900},
			"more":        {Limit: 1500},
			"no duration": {Since: noon.Add(time.Second)},
		} {
			q.Order = order
			t.Run(string(order)+"/"+name, func(t *testing.T) {
				want := bruteForce(all, q)
				var got []int64
				for page := q; ; { // the whole list, page by page
					records, err := r.Query(t.Context(), page)
					if err != nil {
						t.Fatal(err)
					}
					for _, record := range records {
						got = append(got, record.ID)
					}
					if limit := cmp.Or(page.Limit, DefaultLimit); len(records) < limit || len(got) > 3*limit {
						break
					}
					page.After = got[len(got)-1]
				}
				if diff := gocmp.Diff(want[:min(len(want), len(got))], got, cmpopts.EquateEmpty()); diff != "" || len(got) < min(len(want), cmp.Or(q.Limit, DefaultLimit)) {
					t.Errorf("%d of %d records (-want +got):\n%s", len(got), len(want), diff)
				}
			})
		}
	}
	if _, err := r.Query(t.Context(), Query{Order: Longest, After: 99999}); !errors.Is(err, ErrNoRecord) {
		t.Errorf("a page after a record that is not there: %v", err)
	}
}

func bruteForce(all []monitor.Record, q Query) []int64 {
	sent := func(r monitor.Record) (sent, again int64) {
		return r.ClientLeg.BytesSent + r.TargetLeg.BytesSent, r.ClientLeg.BytesRetransmitted + r.TargetLeg.BytesRetransmitted
	}
	rank := func(r monitor.Record) float64 {
		switch q.Order {
		case Slowest:
			return -r.GoodputBps()
		case Longest:
			return float64(r.Elapsed)
		case Largest:
			return float64(r.BytesUp + r.BytesDown)
		case Retransmitted:
			sent, again := sent(r)
			return float64(again) / float64(max(sent, 1))
		}
		return float64(r.ID)
	}
	least := q.MinBytes
	if least == 0 && (q.Order == Slowest || q.Order == Retransmitted) {
		least = DefaultMinBytes
	}
	var chosen []monitor.Record
	for _, r := range all {
		switch end := r.End.Truncate(time.Millisecond); {
		case q.Tunnel != "" && r.Tunnel != q.Tunnel, q.Cause != "" && r.Cause != q.Cause,
			!q.Since.IsZero() && end.Before(q.Since), !q.Until.IsZero() && !end.Before(q.Until),
			r.BytesUp+r.BytesDown < least, q.Order == Slowest && r.GoodputBps() == 0, q.Order == Retransmitted && rank(r) <= 0:
		default:
			chosen = append(chosen, r)
		}
	}
	slices.SortFunc(chosen, func(a, b monitor.Record) int { return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(b.ID, a.ID)) })
	var ids []int64
	for _, r := range chosen {
		ids = append(ids, r.ID)
	}
	return ids
}

func TestSummaryIsThatOfAllRecords(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	all := made(2*segmentLen+300, time.Minute, noon)
	add(t, s, all)
	r := reader(t, path)
	p := Period{Since: all[200].End, Until: all[2000].End}
	for _, tunnel := range []string{"", synthetic.Tunnel(1)} {
		var flows, up, down int64
		var times []float64
		causes := map[doctor.Cause]int64{}
		for _, rec := range all[200:2000] {
			if tunnel != "" && rec.Tunnel != tunnel {
				continue
			}
			flows, up, down = flows+1, up+rec.BytesUp, down+rec.BytesDown
			if rec.BytesUp+rec.BytesDown > 0 {
				times = append(times, rec.Elapsed.Seconds())
			}
			if rec.Cause != "" {
				causes[rec.Cause]++
			}
		}
		slices.Sort(times)
		got, err := r.Summary(t.Context(), p, Selection{Tunnel: tunnel})
		if err != nil {
			t.Fatal(err)
		}
		if got.Approximate || got.Flows != flows || got.BytesUp != up || got.BytesDown != down || got.Transfers != int64(len(times)) {
			t.Errorf("tunnel %q: %+v, want %d flows, %d transfers, %d up, %d down", tunnel, got, flows, len(times), up, down)
		}
		for _, q := range []struct{ quantile, got float64 }{{.5, got.TransferTime.P50}, {.95, got.TransferTime.P95}, {.1, got.TransferTime.P10}} {
			want := times[int(math.Ceil(q.quantile*float64(len(times))))-1]
			if math.Abs(q.got/want-1) > 0.005 {
				t.Errorf("quantile %v of the transfer times is %v, want %v", q.quantile, q.got, want)
			}
		}
		var binned int64
		for _, b := range got.TransferTime.Bins {
			binned += b.Count
		}
		if binned != got.Transfers {
			t.Errorf("the bins have %d transfers of %d", binned, got.Transfers)
		}
		for _, c := range got.Causes {
			if c.Flows != causes[c.Cause] {
				t.Errorf("%d flows limited by %s, want %d", c.Flows, c.Cause, causes[c.Cause])
			}
			delete(causes, c.Cause)
		}
		if len(causes) > 0 {
			t.Errorf("causes are missing: %v", causes)
		}
	}
	c, err := r.Compare(t.Context(), Period{Until: all[1000].End}, Period{Since: all[1000].End}, Selection{})
	if err != nil || c.Before.Flows != 1000 || c.After.Flows != int64(len(all)-1000) {
		t.Errorf("compared: %d and %d flows, %v", c.Before.Flows, c.After.Flows, err)
	}
}

func TestChartHasEveryByte(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	all := slices.DeleteFunc(made(2*segmentLen, 20*time.Second, time.Now().Truncate(time.Second)), func(r monitor.Record) bool { return r.Elapsed.Duration() > time.Hour })
	add(t, s, all)
	r := reader(t, path)
	var bytesUp float64
	for _, rec := range all {
		bytesUp += float64(rec.BytesUp)
	}
	for name, p := range map[string]Period{
		"minutes": {Since: all[0].Start.Add(-time.Hour), Until: time.Now()},
		"hours":   {Since: all[0].End.Add(-20 * 24 * time.Hour), Until: time.Now()},
		"weeks":   {Since: all[0].End.Add(-2000 * 24 * time.Hour), Until: time.Now()},
	} {
		chart, err := r.Series(t.Context(), p, Selection{})
		if err != nil {
			t.Fatal(err)
		}
		var up float64
		var flows int64
		for _, point := range chart.Points {
			up += point.UpBps / 8 * chart.Step.Seconds()
			flows += point.Flows
		}
		// Flows of which some was carried before the period.
		if math.Abs(up/bytesUp-1) > 0.01 || flows != int64(len(all)) {
			t.Errorf("%s: %.0f bytes of %.0f, %d flows of %d", name, up, bytesUp, flows, len(all))
		}
		if n := len(chart.Points); n > chartPoints+2 {
			t.Errorf("%s: %d points", name, n)
		}
	}
	chart, err := r.Series(t.Context(), Period{Since: all[0].Start, Until: time.Now()}, Selection{Tunnel: "no such tunnel"})
	if err != nil || chart.Points[len(chart.Points)-1].TransferTimeMedian >= 0 || chart.Points[0].RetransmittedShare >= 0 {
		t.Errorf("what is not known is not negative: %v", err)
	}
}

func TestWalkVisitsAll(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	all := made(segmentLen+10, time.Second, noon)
	add(t, s, all)
	r := reader(t, path)
	var next int64 = 1
	if err := r.Walk(t.Context(), Query{}, func(rec *monitor.Record) error {
		if rec.ID != next {
			t.Fatalf("record %d, want %d", rec.ID, next)
		}
		next++
		return nil
	}); err != nil || next != int64(len(all)+1) {
		t.Errorf("ended before %d: %v", next, err)
	}
	enough := errors.New("enough")
	if err := r.Walk(t.Context(), Query{Since: noon.Add(-5 * time.Second)}, func(*monitor.Record) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("Walk ends with %v, want what its visitor returned", err)
	}
}

func TestPathsOfOtherThingsAreRefused(t *testing.T) {
	for _, path := range []string{"history.db", "/etc/longhaul/longhaul.yaml", "/var/lib/longhaul/", "/.db", ""} {
		if _, err := Open(path, Options{}); err == nil {
			t.Errorf("%q is taken", path)
		}
		if _, err := OpenReader(path); err == nil {
			t.Errorf("%q is read", path)
		}
	}
	if _, err := Open("/tmp/history.db", Options{MaxBytes: 1000}); err == nil || !strings.Contains(err.Error(), "bytes at least") {
		t.Errorf("1000 bytes for a history: %v, want an error with the least", err)
	}
}

func TestNoFile(t *testing.T) {
	r := reader(t, filepath.Join(t.TempDir(), "history.db"))
	if _, err := r.Query(context.Background(), Query{}); !errors.Is(err, ErrNoFile) {
		t.Errorf("reading without a file: %v, want %v", err, ErrNoFile)
	}
}

// The file keeps the latest changes of state, and gives them to the next process.
func TestEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	at := time.UnixMilli(1_800_000_000_000)
	event := func(i int) flow.Event {
		return flow.Event{At: at.Add(time.Duration(i) * time.Second), Kind: flow.EventHop, Tunnel: "a", Subject: "b:1", From: "up", To: "down", Reason: fmt.Sprint(i)}
	}
	const each = maxEventsWaiting
	for round := range maxEvents/each + 1 {
		s, err := Open(path, Options{})
		nettest.Must(t, err)
		for i := range each {
			s.AddEvent(event(round*each + i))
		}
		nettest.Must(t, s.Close())
	}
	r, err := OpenReader(path)
	nettest.Must(t, err)
	defer r.Close()
	got, err := r.Events(t.Context(), 2*maxEvents)
	nettest.Must(t, err)
	if len(got) != maxEvents || got[0] != event(each) || got[maxEvents-1] != event(maxEvents+each-1) {
		t.Errorf("%d changes, from %+v to %+v", len(got), got[0], got[len(got)-1])
	}
	if got, err = r.Events(t.Context(), 2); err != nil || len(got) != 2 || got[1] != event(maxEvents+each-1) {
		t.Errorf("the last two are %+v, %v", got, err)
	}
}
