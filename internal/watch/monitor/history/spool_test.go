package history

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history/synthetic"
)

// spoolStore is a store with n records in its file, which has been written.
func spoolStore(t *testing.T, path string, n int, opts Options) (*Store, *Reader) {
	t.Helper()
	store, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	addSpool(t, store, n)
	reader, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	return store, reader
}

func addSpool(t *testing.T, store *Store, n int) {
	t.Helper()
	maker, all := synthetic.NewMaker(1), []monitor.Record{}
	for range n {
		all = append(all, maker.Record(time.Now()))
	}
	goal := store.State().Written + int64(n)
	for changed := store.Changed(); ; changed = store.Changed() {
		if len(all) > 0 {
			store.Add(all)
			all = nil
		}
		if store.State().Written >= goal {
			return
		}
		<-changed
	}
}

func TestSpool(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	store, reader := spoolStore(t, path, 10, Options{})
	ctx := context.Background()
	c, err := reader.Cursor(ctx, "sink")
	if err != nil || c != (Cursor{File: c.File}) {
		t.Fatalf("a sink that had nothing is at %+v, %v", c, err)
	}
	s, err := reader.Spool(ctx, 0, 4)
	if err != nil || len(s.Records) != 4 || s.Lacking != 10 || s.Gone != 0 || s.Records[3].ID != 4 || !s.Oldest.Equal(s.Records[0].End) {
		t.Fatalf("%+v, %v", s, err)
	}
	file := c.File
	store.Shipped("sink", Cursor{file, 7, 0})
	store.Close()

	// The next process goes on there, in another epoch.
	store, reader = spoolStore(t, path, 5, Options{})
	if c, err := reader.Cursor(ctx, "sink"); err != nil || c.Last != 7 {
		t.Fatalf("the sink is at %+v, %v", c, err)
	}
	again, err := reader.Spool(ctx, 7, 100)
	if err != nil || len(again.Records) != 8 || again.Lacking != 8 || again.File != s.File || s.File != file {
		t.Fatalf("%+v, %v", again, err)
	}
	for _, r := range again.Records {
		if (r.Epoch == s.Records[0].Epoch) != (r.ID <= 10) || r.Epoch <= 0 {
			t.Errorf("record %d has epoch %d, the first one %d", r.ID, r.Epoch, s.Records[0].Epoch)
		}
	}
	// A process that is behind does not take the cursor back.
	store.Shipped("sink", Cursor{file, 3, 2})
	store.Shipped("other", Cursor{file + 1, 9, 0}) // of another file
	store.Close()
	if c, err := reader.Cursor(ctx, "sink"); err != nil || c != (Cursor{file, 7, 2}) {
		t.Errorf("the sink is at %+v, %v", c, err)
	}
	if c, err := reader.Cursor(ctx, "other"); err != nil || c.Last != 0 {
		t.Errorf("the other sink is at %+v, %v", c, err)
	}
	if s, err := reader.Spool(ctx, 15, 100); err != nil || len(s.Records) != 0 || s.Lacking != 0 || s.Gone != 0 || !s.Oldest.IsZero() {
		t.Errorf("behind the last record there is %+v, %v", s, err)
	}
}

// Age takes no record that a sink lacks; the size does, and that is counted.
func TestSpoolIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	later := time.Now().Add(48 * time.Hour)
	store, reader := spoolStore(t, path, 3*segmentLen, Options{
		MaxAge: time.Hour, settle: time.Nanosecond, now: func() time.Time { return later },
	})
	ctx := context.Background()
	_ = store
	if s, err := reader.Spool(ctx, 0, 0); err != nil || s.Lacking != 0 {
		t.Fatalf("without a sink %d old records are kept, %v", s.Lacking, err)
	}

	path = filepath.Join(t.TempDir(), "history.db")
	store, err := Open(path, Options{MaxAge: time.Hour, settle: time.Nanosecond, now: func() time.Time { return later }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	store.SetSinks([]string{"sink"})
	addSpool(t, store, 3*segmentLen)
	if reader, err = OpenReader(path); err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if s, err := reader.Spool(ctx, 0, 0); err != nil || s.Lacking != 3*segmentLen || s.Gone != 0 {
		t.Fatalf("%d records are kept and %d gone, %v", s.Lacking, s.Gone, err)
	}
}

func TestSpoolIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	store, err := Open(path, Options{MaxBytes: MinBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	store.SetSinks([]string{"sink"})
	const batches = 12
	for range batches {
		addSpool(t, store, batchLen+segmentLen)
	}
	reader, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	s, err := reader.Spool(context.Background(), 0, 0)
	if all := int64(batches * (batchLen + segmentLen)); err != nil || s.Gone == 0 || s.Lacking+s.Gone != all {
		t.Errorf("of %d records %d are kept and %d gone, %v", all, s.Lacking, s.Gone, err)
	}
}

// A record keeps its epoch, also if a release without epochs has written the file meanwhile.
func TestEpochsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	ctx := context.Background()
	store, reader := spoolStore(t, path, 5, Options{})
	first, err := reader.Spool(ctx, 0, 5)
	if err != nil {
		t.Fatal(err)
	}
	store.Close()
	// The older release adds three records, as it would: with IDs, words and last_id alone.
	execute(t, path, `INSERT INTO records (id, end_ms, elapsed_us, bytes_up, bytes_down, start_ms)
		SELECT id + 5, end_ms, elapsed_us, bytes_up, bytes_down, start_ms FROM records WHERE id <= 3`)
	execute(t, path, "UPDATE state SET last_id = 8")
	between, err := reader.Spool(ctx, 0, 8)
	if err != nil {
		t.Fatal(err)
	}
	_, reader = spoolStore(t, path, 4, Options{})
	after, err := reader.Spool(ctx, 0, 12)
	if err != nil || len(between.Records) != 8 || len(after.Records) != 12 {
		t.Fatalf("%d and %d records, %v", len(between.Records), len(after.Records), err)
	}
	for i, r := range after.Records {
		switch {
		case i < 8 && r.Epoch != first.Records[0].Epoch, i < 8 && r.Epoch != between.Records[i].Epoch:
			t.Errorf("record %d had the epoch %d and has %d", r.ID, between.Records[i].Epoch, r.Epoch)
		case i >= 8 && (r.Epoch == first.Records[0].Epoch || r.Epoch != after.Records[11].Epoch):
			t.Errorf("record %d has the epoch %d", r.ID, r.Epoch)
		}
	}
}

// A file that a release without epochs has made gets them when it is opened for writing. Until then
// nothing of it is shipped.
func TestFileWithoutEpochs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	store, reader := spoolStore(t, path, 3, Options{})
	store.Close()
	execute(t, path, "DROP TABLE epochs; DROP TABLE cursors")
	ctx := context.Background()
	if _, err := reader.Spool(ctx, 0, 0); err == nil {
		t.Error("a file without epochs is read")
	}
	if all, err := reader.Query(ctx, Query{}); err != nil || len(all) != 3 {
		t.Errorf("%d records, %v", len(all), err)
	}
	_, reader = spoolStore(t, path, 2, Options{})
	if s, err := reader.Spool(ctx, 0, 5); err != nil || len(s.Records) != 5 || s.Records[0].Epoch == s.Records[3].Epoch {
		t.Errorf("%+v, %v", s, err)
	}
}

// Records that are gone between others are counted.
func TestGapsAreCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	store, reader := spoolStore(t, path, 9, Options{})
	store.Close()
	execute(t, path, "DELETE FROM records WHERE id IN (1, 4, 5, 9)")
	for _, test := range []struct {
		after int64
		limit int
		gone  int64
		ids   int
	}{{0, 0, 1, 0}, {0, 2, 1, 2}, {0, 3, 3, 3}, {3, 9, 2, 3}, {8, 9, 1, 0}} {
		s, err := reader.Spool(context.Background(), test.after, test.limit)
		if err != nil || s.Gone != test.gone || len(s.Records) != test.ids {
			t.Errorf("after %d, up to %d: %d records and %d gone, %v", test.after, test.limit, len(s.Records), s.Gone, err)
		}
	}
}

// Cursors are in the file when a process says so: its successor goes on there.
func TestCursorsAreSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	store, reader := spoolStore(t, path, 3, Options{})
	ctx := context.Background()
	c, err := reader.Cursor(ctx, "sink")
	if err != nil {
		t.Fatal(err)
	}
	for c.Last = 1; c.Last <= 3; c.Last++ {
		store.Shipped("sink", c)
		if err := store.SaveCursors(ctx); err != nil {
			t.Fatal(err)
		}
		if is, err := reader.Cursor(ctx, "sink"); err != nil || is != c {
			t.Fatalf("the cursor in the file is %+v, not %+v, %v", is, c, err)
		}
	}
	if err := store.SaveCursors(ctx); err != nil { // nothing is left
		t.Error(err)
	}
	release := lock(t, path)
	defer release()
	short, cancel := context.WithCancel(ctx)
	store.Shipped("sink", c)
	cancel()
	if err := store.SaveCursors(short); !errors.Is(err, context.Canceled) {
		t.Errorf("cursors are saved in a file that is locked: %v", err)
	}
}
