package history

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"longhaul/internal/flow"

	gocmp "github.com/google/go-cmp/cmp"

	"longhaul/internal/monitor"
)

// TestPacksAreMadeWhole has two processes write a few records at a time, as flows
// end that are not many, while an upgrade lasts.
func TestPacksAreMadeWhole(t *testing.T) {
	t.Parallel()
	slowWithRace(t)
	path := filepath.Join(t.TempDir(), "history.db")
	var writers []*writer
	for range 2 {
		s, _ := opened(t, path, Options{})
		s.Close()
		w := newWriter(s)
		if err := w.open(); err != nil {
			t.Fatal(err)
		}
		defer w.letGo()
		writers = append(writers, w)
	}
	all := made(2*segmentLen+300, 10*time.Second, noon)
	for i, turn := 0, 0; i < len(all); turn++ {
		w := writers[turn/3%2]
		n := min(1+turn%4, len(all)-i)
		w.batch = append(w.batch[:0], all[i:i+n]...)
		if err := w.write(); err != nil {
			t.Fatal(err)
		}
		i += n
	}
	var whole, loose, segments int
	db := writers[0].db.conn
	if err := db.QueryRowContext(t.Context(), "SELECT (SELECT count(*) FROM packs WHERE last <= ?1 AND records = ?2), (SELECT count(*) FROM packs WHERE last > ?1), (SELECT count(*) FROM segments)",
		2*segmentLen, packLen).Scan(&whole, &loose, &segments); err != nil {
		t.Fatal(err)
	}
	if whole != 2*segmentLen/packLen || loose < 50 || segments != 2 {
		t.Errorf("%d whole packs, %d loose ones, %d segments", whole, loose, segments)
	}
	r := reader(t, path)
	i := 0
	err := r.Walk(t.Context(), Query{}, func(got *monitor.Record) error {
		if got.ID != int64(i+1) || got.Flow != all[i].Flow || got.BytesDown != all[i].BytesDown {
			t.Fatalf("record %d is %+v, want %+v", i+1, got, all[i])
		}
		one, err := r.Get(t.Context(), got.ID)
		if diff := gocmp.Diff(*got, one, gocmp.Comparer(func(a, b flow.Address) bool { return a == b })); diff != "" || err != nil {
			t.Fatalf("record %d alone is not what Walk shows (-Walk +Get), %v:\n%s", got.ID, err, diff)
		}
		i++
		return nil
	})
	if err != nil || i != len(all) {
		t.Errorf("%d records of %d, %v", i, len(all), err)
	}
	if s, err := r.Summary(t.Context(), Period{}, ""); err != nil || s.Flows != int64(len(all)) {
		t.Errorf("the summary has %d flows of %d, %v", s.Flows, len(all), err)
	}
	isSound(t, path)
}

// TestSegmentAfterAnotherProcess has one process write what a second one, or a
// transaction that failed, has changed meanwhile.
func TestSegmentAfterAnotherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	s.Close()
	w := newWriter(s)
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	defer w.letGo()
	all := made(segmentLen+10, time.Second, noon)
	write := func(from, to int) error {
		w.batch = append(w.batch[:0], all[from:to]...)
		return w.write()
	}
	for from := 0; from < 600; from += 100 {
		if err := write(from, from+100); err != nil {
			t.Fatal(err)
		}
	}
	db := w.db.conn
	// The table is away when it is wanted, so the transaction comes to nothing.
	for _, statement := range []string{"ALTER TABLE hours RENAME TO away", "ALTER TABLE away RENAME TO hours"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		if statement[len(statement)-4:] == "away" && write(600, 700) == nil {
			t.Fatal("it is written")
		}
	}
	if w.segment.last != 0 {
		t.Errorf("the segment is known up to %d after a failure", w.segment.last)
	}
	if err := write(600, 700); err != nil {
		t.Fatal(err)
	}
	// The other process lets the first ones go.
	if _, err := db.ExecContext(t.Context(), "DELETE FROM packs WHERE last <= 300"); err != nil {
		t.Fatal(err)
	}
	if err := write(700, len(all)); err != nil {
		t.Fatal(err)
	}
	r := reader(t, path)
	longest, err := r.Query(t.Context(), Query{Order: Longest, Limit: MaxLimit})
	if err != nil || len(longest) != len(all)-300 {
		t.Errorf("%d records of %d, %v", len(longest), len(all)-300, err)
	}
	for i := range longest {
		if want := all[longest[i].ID-1]; longest[i].Flow != want.Flow || longest[i].BytesUp != want.BytesUp {
			t.Errorf("record %d is %+v, want %+v", longest[i].ID, longest[i], want)
		}
	}
}

// TestCheckReadsBlobs damages what SQLite takes for any bytes.
func TestCheckReadsBlobs(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"a pack":           "UPDATE packs SET rows = substr(rows, 1, 50) || x'ffff' || substr(rows, 53) WHERE last = 1024",
		"a pack at last":   "UPDATE packs SET rows = x'01' WHERE last = (SELECT max(last) FROM packs)",
		"a pack's records": "DELETE FROM packs WHERE last = 256",
		"a digest":         "UPDATE segments SET digest = substr(digest, 1, 3000) || x'ffffffff' || substr(digest, 3005)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "history.db")
			s, _ := opened(t, path, Options{})
			add(t, s, made(segmentLen+50, time.Second, noon))
			s.Close()
			if err := Check(t.Context(), path); err != nil {
				t.Fatal(err)
			}
			db, err := openDatabase(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = db.conn.ExecContext(t.Context(), statement)
			db.close()
			if err != nil {
				t.Fatal(err)
			}
			if err := Check(t.Context(), path); !errors.Is(err, ErrUnsound) {
				t.Errorf("%v, want %v", err, ErrUnsound)
			}
		})
	}
}

func TestFlowsAreFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	all := made(segmentLen+50, 10*time.Second, noon)
	for i := range all {
		all[i].Flow = flow.ID(i % 40) // processes began anew
	}
	add(t, s, all)
	r := reader(t, path)
	for _, i := range []int{0, 7, 500, segmentLen - 1, segmentLen, len(all) - 1} {
		got, err := r.Find(t.Context(), all[i].Flow, all[i].Start)
		if err != nil || got.ID != int64(i+1) {
			t.Errorf("record %d: %d, %v", i+1, got.ID, err)
		}
	}
	if _, err := r.Find(t.Context(), 41, all[3].Start); !errors.Is(err, ErrNoRecord) {
		t.Errorf("a flow of another number is found: %v, want %v", err, ErrNoRecord)
	}
	if _, err := r.Find(t.Context(), all[3].Flow, all[3].Start.Add(-time.Hour)); !errors.Is(err, ErrNoRecord) {
		t.Errorf("a flow of another time is found: %v, want %v", err, ErrNoRecord)
	}
}
