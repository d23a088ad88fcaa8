package history

import (
	"context"
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
	if err != nil || c != (Cursor{}) {
		t.Fatalf("a sink that had nothing is at %+v, %v", c, err)
	}
	s, err := reader.Spool(ctx, 0, 4)
	if err != nil || len(s.Records) != 4 || s.Lacking != 10 || s.Gone != 0 || s.Records[3].ID != 4 || !s.Oldest.Equal(s.Records[0].End) {
		t.Fatalf("%+v, %v", s, err)
	}
	store.Shipped("sink", Cursor{Last: 7})
	store.Close()

	// The next process goes on there, in another epoch.
	store, reader = spoolStore(t, path, 5, Options{})
	if c, err := reader.Cursor(ctx, "sink"); err != nil || c.Last != 7 {
		t.Fatalf("the sink is at %+v, %v", c, err)
	}
	again, err := reader.Spool(ctx, 7, 100)
	if err != nil || len(again.Records) != 8 || again.Lacking != 8 || again.File != s.File {
		t.Fatalf("%+v, %v", again, err)
	}
	for _, r := range again.Records {
		if (r.Epoch == s.Records[0].Epoch) != (r.ID <= 10) || r.Epoch <= 0 {
			t.Errorf("record %d has epoch %d, the first one %d", r.ID, r.Epoch, s.Records[0].Epoch)
		}
	}
	// A process that is behind does not take the cursor back.
	store.Shipped("sink", Cursor{Last: 3, Lost: 2})
	store.Close()
	if c, err := reader.Cursor(ctx, "sink"); err != nil || c != (Cursor{7, 2}) {
		t.Errorf("the sink is at %+v, %v", c, err)
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
