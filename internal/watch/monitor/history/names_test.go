package history

import (
	"database/sql"
	_ "embed"
	"path/filepath"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/test/nettest"
)

// ids are those of a list.
func ids(all []monitor.Record) []int64 {
	found := []int64{}
	for i := range all {
		found = append(found, all[i].ID)
	}
	return found
}

// sameRecords compares records with what a history returns.
func sameRecords(want, got any) string {
	return gocmp.Diff(want, got, gocmp.Comparer(func(a, b flow.Address) bool { return a == b }))
}

// A flow is found by its name wherever its records are: in the first segment, in the last one, in none.
func TestFlowsByName(t *testing.T) {
	t.Parallel()
	slowWithRace(t)
	path := filepath.Join(t.TempDir(), "history.db")
	all := made(2*segmentLen+50, 10*time.Second, noon)
	all[9].Name = flow.Name{} // of an older release
	twice := all[7].Name
	all[8].Name, all[8].Tunnel = twice, "the next tunnel"
	all[2000].Name = twice // a proxy's identifier comes back after hours
	alike := twice
	alike[15]++ // the same for the index
	all[1500].Name = alike
	writeAll(t, path, all)
	r := reader(t, path)
	for _, c := range []struct {
		name string
		q    Query
		want []int64
	}{
		{"first", Query{Name: all[0].Name}, []int64{1}},
		{"end of a segment", Query{Name: all[segmentLen-1].Name}, []int64{segmentLen}},
		{"begin of a segment", Query{Name: all[segmentLen].Name}, []int64{segmentLen + 1}},
		{"last", Query{Name: all[len(all)-1].Name}, []int64{int64(len(all))}},
		{"thrice", Query{Name: twice}, []int64{2001, 9, 8}},
		{"thrice, by bytes", Query{Name: twice, Order: Longest, Limit: 2}, nil},
		{"of a tunnel", Query{Name: twice, Selection: Selection{Tunnel: "the next tunnel"}}, []int64{9}},
		{"since", Query{Name: twice, Since: all[1000].End}, []int64{2001}},
		{"until", Query{Name: twice, Until: all[1000].End}, []int64{9, 8}},
		{"the next page", Query{Name: twice, Limit: 2, After: 9}, []int64{8}},
		{"alike", Query{Name: alike}, []int64{1501}},
		{"unknown", Query{Name: flow.Name{0: 1, 15: 1}}, []int64{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, err := r.Query(t.Context(), c.q)
			if err != nil || c.want != nil && !gocmp.Equal(ids(found), c.want) || c.want == nil && len(found) != c.q.Limit {
				t.Errorf("records %v, %v; want %v", ids(found), err, c.want)
			}
			for i := range found {
				if got := found[i]; got.Name != c.q.Name || got.Relay != "relay-a.example.net" || got.Peer != all[got.ID-1].Peer || got.Site != flow.SiteOf(got.Peer) {
					t.Errorf("record %d has %v, %s, %s, %s", got.ID, got.Name, got.Relay, got.Site, got.Peer)
				}
			}
		})
	}
	var walked []int64
	err := r.Walk(t.Context(), Query{Name: twice, Since: all[8].End}, func(r *monitor.Record) error {
		walked = append(walked, r.ID)
		return nil
	})
	if want := []int64{9, 2001}; err != nil || !gocmp.Equal(walked, want) {
		t.Errorf("Walk has records %v, %v; want %v", walked, err, want)
	}
}

// Records whose name is not found any more have gone.
func TestNamesGoWithRecords(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	all := made(2*segmentLen+5, time.Second, noon)
	writeAll(t, path, all)
	db, err := openDatabase(t.Context(), path)
	nettest.Must(t, err)
	gone, err := (&writer{db: db}).dropOldest()
	db.close()
	if err != nil || !gone {
		t.Fatalf("nothing is deleted: %v", err)
	}
	r := reader(t, path)
	for i, want := range map[int]int{3: 0, segmentLen - 1: 0, segmentLen: 1, len(all) - 1: 1} {
		if found, err := r.Query(t.Context(), Query{Name: all[i].Name}); err != nil || len(found) != want {
			t.Errorf("%d records are named like number %d, %v; want %d", len(found), i+1, err, want)
		}
	}
	isSound(t, path)
}

// A batch changes as many pages in a large file as in a small one, however random names are.
func TestNamesChangeFewPages(t *testing.T) {
	t.Parallel()
	slowWithRace(t)
	const batch, maxPages = 200, 60
	path := filepath.Join(t.TempDir(), "history.db")
	all := made(16*segmentLen+batch, time.Second, noon)
	writeAll(t, path, all[:16*segmentLen])
	s, _ := opened(t, path, Options{})
	nettest.Must(t, s.Close())
	w := newWriter(s)
	nettest.Must(t, w.open())
	defer w.letGo()
	_, err := w.db.conn.ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)")
	nettest.Must(t, err)
	w.batch = all[16*segmentLen:]
	nettest.Must(t, w.write())
	if _, wal := size(path); wal == 0 || wal > maxPages*(pageBytes+24) {
		t.Errorf("%d records changed %d pages, the bound is %d", batch, wal/(pageBytes+24), maxPages)
	}
}

// earlierFile is a file that a release without names made: eight flows, of which a target reset two.
//
//go:embed testdata/before-names.sql
var earlierFile string

// A file of an earlier release is read as it is, and continued without the loss of a record. The release that
// began it can go on with it.
func TestFileFromBeforeNames(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	db, err := sql.Open("sqlite", dsn(path, "rwc", 1000, ""))
	nettest.Must(t, err)
	t.Cleanup(func() { db.Close() })
	_, err = db.Exec(earlierFile)
	nettest.Must(t, err)

	r := reader(t, path)
	before, err := r.Query(t.Context(), Query{})
	if err != nil || len(before) != 8 || before[0].Reason != flow.EndTargetReset || before[7].BytesUp != 1000 || !before[7].Name.IsZero() || before[7].Relay != "" {
		t.Fatalf("the earlier release's records: %+v, %v", before, err)
	}
	name := flow.Name{1}
	if found, err := r.Query(t.Context(), Query{Name: name}); err != nil || len(found) > 0 {
		t.Errorf("a name in a file without names: %v, %v", found, err)
	}
	if err := r.Walk(t.Context(), Query{Name: name}, func(r *monitor.Record) error { return ErrNoRecord }); err != nil {
		t.Errorf("a name in a file without names: %v", err)
	}
	isSound(t, path)

	more := made(segmentLen, time.Second, time.Now())
	s, _ := opened(t, path, Options{})
	s.Add(more)
	nettest.Must(t, s.Close())
	after, err := r.Query(t.Context(), Query{Limit: -1})
	if err != nil || len(after) != len(before)+len(more) {
		t.Fatalf("%d records of %d and %d, %v", len(after), len(before), len(more), err)
	}
	if diff := sameRecords(before, after[len(more):]); diff != "" {
		t.Errorf("the earlier records have changed (-before +after):\n%s", diff)
	}
	if found, err := r.Query(t.Context(), Query{Name: more[3].Name}); err != nil || !gocmp.Equal(ids(found), []int64{12}) {
		t.Errorf("a new record's name: %v, %v", ids(found), err)
	}

	// The earlier release names its columns, and completes the second segment.
	columns := commonColumns[len("id, "):] + ", resumes, outage_us, goodput"
	_, err = db.Exec("INSERT INTO records (" + columns + ") SELECT " + columns + " FROM records WHERE id = 1")
	nettest.Must(t, err)
	last := int64(len(before) + len(more) + 1)
	if got, err := r.Get(t.Context(), last); err != nil || got.BytesUp != 1000 || !got.Name.IsZero() {
		t.Errorf("the record that the earlier release added: %+v, %v", got, err)
	}
	isSound(t, path)
}

// The view of sqlite3's users has names as text, and the relays.
func TestViewOfNames(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	all := made(4, time.Second, noon)
	all[0].Peer, all[1].Peer, all[2].Peer = "site-b/b1", "site-c", ""
	all[3].Name, all[3].Relay, all[3].Peer = flow.Name{}, "", ""
	writeAll(t, path, all)
	err := reader(t, path).look(t.Context(), func(v *view) error {
		return v.each("SELECT id, ifnull(name, ''), ifnull(relay, ''), ifnull(site, '-'), ifnull(peer, '-') FROM flows", nil, func(row scanner) error {
			var id int64
			var name, relay, site, peer string
			if err := row.Scan(&id, &name, &relay, &site, &peer); err != nil {
				return err
			}
			want := all[id-1]
			wantSite, wantPeer := []string{"site-b", "-", "-", "-"}[id-1], []string{"site-b/b1", "site-c", "-", "-"}[id-1]
			if name != want.Name.String() || relay != want.Relay || site != wantSite || peer != wantPeer {
				t.Errorf("record %d is %s, %s, %s, %s in the view; want %v, %s, %s, %s", id, name, relay, site, peer, want.Name, want.Relay, wantSite, wantPeer)
			}
			return nil
		})
	})
	nettest.Must(t, err)
}

// The index is what answers: without it SQLite refuses, and with it every step is a search.
func TestNamesUseTheIndex(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	writeAll(t, path, made(10, time.Second, noon))
	err := reader(t, path).look(t.Context(), func(v *view) error {
		return v.each("EXPLAIN QUERY PLAN SELECT id FROM records WHERE id IN ("+namedIDs+")", named(flow.Name{1}), func(row scanner) error {
			var id, parent, unused int64
			var detail string
			if err := row.Scan(&id, &parent, &unused, &detail); err != nil {
				return err
			}
			if detail == "SCAN records" {
				t.Errorf("all records are read: %s", detail)
			}
			return nil
		})
	})
	nettest.Must(t, err)
}
