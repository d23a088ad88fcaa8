package history

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

// resumed are records of which every third was resumed.
func resumed(n int) []monitor.Record {
	all := made(n, time.Second, noon)
	for i := range all {
		all[i].Tunnel = []string{"files", "mail"}[i%2]
		if i%3 == 0 {
			all[i].Resumes, all[i].Outage = int64(i%4), units.Seconds(time.Duration(i+1)*time.Millisecond)
		}
	}
	return all
}

func writeAll(t *testing.T, path string, records []monitor.Record) {
	t.Helper()
	s, _ := opened(t, path, Options{now: func() time.Time { return noon }})
	s.Add(records)
	nettest.Must(t, s.Close())
}

// What a pair did for a flow comes back, alone and in sums.
func TestResumedFlows(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	all := resumed(100)
	writeAll(t, path, all)
	r := reader(t, path)
	want := map[string]*Resumed{"": {}, "files": {}, "mail": {}}
	for i, one := range all {
		got, err := r.Get(t.Context(), int64(i+1))
		if err != nil || got.Resumes != one.Resumes || got.Outage != one.Outage {
			t.Fatalf("record %d has %d resumes and %v, want %d and %v; %v", i+1, got.Resumes, got.Outage, one.Resumes, one.Outage, err)
		}
		if one.Outage == 0 {
			continue
		}
		for _, sum := range []*Resumed{want[""], want[one.Tunnel]} {
			sum.Flows, sum.Resumes, sum.Outage = sum.Flows+1, sum.Resumes+one.Resumes, sum.Outage+one.Outage
			sum.Longest = max(sum.Longest, one.Outage)
		}
	}
	for tunnel, want := range want {
		s, err := r.Summary(t.Context(), Period{}, Selection{Tunnel: tunnel})
		if err != nil || s.Resumed == nil || *s.Resumed != *want {
			t.Errorf("tunnel %q: %+v, want %+v, %v", tunnel, s.Resumed, *want, err)
		}
	}
	for _, none := range []Period{{Since: noon.Add(time.Hour)}, {Until: noon.Add(-time.Hour)}} {
		if s, err := r.Summary(t.Context(), none, Selection{}); err != nil || s.Resumed != nil {
			t.Errorf("%+v: %+v, %v", none, s.Resumed, err)
		}
	}
	isSound(t, path)
}

// beforePairs makes a file as releases made it that knew no pairs, with records.
func beforePairs(t *testing.T, path string, records []monitor.Record) *sql.DB {
	t.Helper()
	writeAll(t, path, records)
	db, err := sql.Open("sqlite", dsn(path, "rw", 1000, ""))
	nettest.Must(t, err)
	t.Cleanup(func() { db.Close() })
	_, err = db.Exec(`DROP VIEW flows; DROP INDEX records_resumed; DROP INDEX records_named;
		ALTER TABLE records DROP COLUMN name; ALTER TABLE records DROP COLUMN peer_id; ALTER TABLE records DROP COLUMN relay_id;
		ALTER TABLE records DROP COLUMN resumes; ALTER TABLE records DROP COLUMN outage_us; CREATE VIEW flows AS SELECT id FROM records`)
	nettest.Must(t, err)
	return db
}

// A file from before there were pairs is read as it is, and continued. The release
// that began it can go on with it.
func TestFileFromBeforePairs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	old := made(20, time.Second, noon)
	db := beforePairs(t, path, old)
	r := reader(t, path)
	if got, err := r.Get(t.Context(), 7); err != nil || got.BytesUp != old[6].BytesUp || got.Outage != 0 || len(got.Goodput.UpBps) != len(old[6].Goodput.UpBps) {
		t.Errorf("a record from before: %+v, %v", got, err)
	}
	if s, err := r.Summary(t.Context(), Period{}, Selection{}); err != nil || s.Flows != 20 || s.Resumed != nil {
		t.Errorf("the summary from before: %+v, %v", s, err)
	}

	more := resumed(10)
	writeAll(t, path, more)
	// The same reader finds the new records, and the old ones.
	if got, err := r.Get(t.Context(), 24); err != nil || got.Resumes != more[3].Resumes || got.Outage != more[3].Outage {
		t.Errorf("a new record: %+v, %v", got, err)
	}
	if got, err := r.Get(t.Context(), 7); err != nil || got.BytesUp != old[6].BytesUp || got.Resumes != 0 {
		t.Errorf("an old record: %+v, %v", got, err)
	}
	if s, err := r.Summary(t.Context(), Period{}, Selection{}); err != nil || s.Flows != 30 || s.Resumed == nil || s.Resumed.Flows != 4 {
		t.Errorf("the summary: %+v, %v", s, err)
	}
	var flows int
	nettest.Must(t, db.QueryRow("SELECT count(*) FROM flows WHERE outage_s > 0 AND resumes IS NOT NULL").Scan(&flows))
	if flows != 4 {
		t.Errorf("the view has %d resumed flows", flows)
	}
	// An old release names its columns, which are all still there.
	columns := strings.ReplaceAll(commonColumns, "id, end_ms", "end_ms") + ", goodput"
	if _, err := db.Exec("INSERT INTO records (" + columns + ") SELECT " + columns + " FROM records WHERE id = 1"); err != nil {
		t.Errorf("the release that began the file cannot write it: %v", err)
	}
}
