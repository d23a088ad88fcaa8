package postgres

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/sys/process"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres/pgtest"
	"longhaul/test/nettest"
)

// BenchmarkDeliver writes records of one relay and of 50, in batches as the shippers have them when much waits,
// with all indexes and sums. CPU time is that of the shipping side, and that of the server.
func BenchmarkDeliver(b *testing.B) {
	s := pgtest.Shared(b)
	s.Exec("postgres", "ALTER SYSTEM SET max_wal_size = '4GB'; ")
	s.Exec("postgres", "SELECT pg_reload_conf()")
	for _, relays := range []int{1, 50} {
		for _, batch := range []int{40, 5000} {
			b.Run(fmt.Sprintf("relays=%d/batch=%d", relays, batch), func(b *testing.B) {
				name := fmt.Sprintf("deliver%d_%d_%d", relays, batch, b.N)
				to := database(b, s, name)
				parts := make([][]archive.Row, relays)
				sinks := make([]archive.Sink, relays)
				for i := range parts {
					parts[i] = newSpool(uint64(i), (b.N+relays-1)/relays, time.Now).rows
					sinks[i] = opened(b, to)
				}
				before, server := cpuTime(b), serverTime(s)
				b.ResetTimer()
				var wg sync.WaitGroup
				for i := range parts {
					wg.Go(func() {
						for rows := parts[i]; len(rows) > 0; rows = rows[min(batch, len(rows)):] {
							if err := sinks[i].Deliver(context.Background(), rows[:min(batch, len(rows))]); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
				b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/row")
				b.ReportMetric(float64((serverTime(s)-server).Nanoseconds())/float64(b.N), "server-cpu-ns/row")
			})
		}
	}
}

// serverTime is the CPU time of the server's processes, with those that serve connections.
func serverTime(s *pgtest.Server) (all time.Duration) {
	for _, pid := range s.Processes() {
		if one, err := process.CPUTime(pid); err == nil { // else it has ended
			all += one
		}
	}
	return all
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	nettest.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
