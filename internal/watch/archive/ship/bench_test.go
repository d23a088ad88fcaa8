package ship

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
)

// BenchmarkBackfill ships a history of 1 000 000 records to a sink that costs nothing:
//
//	go test ./internal/watch/archive/ship -run none -bench Backfill -benchtime 1x
func BenchmarkBackfill(b *testing.B) {
	const records = 1_000_000
	store, err := history.Open(filepath.Join(b.TempDir(), "history.db"), history.Options{MaxBytes: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	maker := synthetic.NewMaker(1)
	for n := int64(0); n < records; {
		changed := store.Changed()
		batch := make([]monitor.Record, 5000)
		for i := range batch {
			batch[i] = maker.Record(time.Now())
		}
		store.Add(batch)
		n += int64(len(batch))
		for store.State().Written < n {
			<-changed
			changed = store.Changed()
		}
	}
	for b.Loop() {
		sink := &all{want: records, done: make(chan struct{})}
		ships := New(store, Options{Open: func(archive.Target) (archive.Sink, error) { return sink, nil }})
		begun, before := time.Now(), used()
		ships.Set([]archive.Target{{Name: time.Now().String(), To: "https://a.example.net/"}})
		<-sink.done
		cpu := used() - before
		b.ReportMetric(cpu.Seconds(), "cpu-s")
		b.ReportMetric(100*cpu.Seconds()/time.Since(begun).Seconds(), "%-of-a-core")
		ships.Close()
	}
}

// all is a sink that waits for so many records.
type all struct {
	want int
	done chan struct{}
}

func (a *all) Deliver(_ context.Context, rows []archive.Row) error {
	if a.want -= len(rows); a.want == 0 {
		close(a.done)
	}
	return nil
}

func (a *all) Close() error { return nil }

// used is the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
