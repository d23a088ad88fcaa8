package history

import (
	"path/filepath"
	"testing"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

// BenchmarkWrite writes batches as they come of short flows, thousands in a second.
func BenchmarkWrite(b *testing.B) {
	path := filepath.Join(b.TempDir(), "history.db")
	s, err := Open(path, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	all := made(batchLen, time.Millisecond, time.Now())
	for i := range all {
		all[i].Goodput = monitor.Series{}
		all[i].Elapsed = units.Seconds(4 * time.Millisecond)
		all[i].Start = all[i].End.Add(time.Duration(-all[i].Elapsed))
	}
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(all) {
		for s.State().Waiting > queueLen-len(all) {
			<-pace.C
		}
		s.Add(all)
	}
	for s.State().Written+s.State().Dropped < int64(b.N) {
		<-pace.C
	}
}
