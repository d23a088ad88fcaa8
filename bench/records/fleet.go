package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/archive/sinks"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
)

// fleetVariable has the orders of a process of the fleet.
const fleetVariable = "RECORDS_FLEET"

// orders of a process with some relays.
type orders struct {
	Dir   string // of the files
	First int    // number of its first relay
	Rate  int    // flows a second of each relay
	To    archive.Target
}

// report is what a process says of its relays, once a second.
type report struct {
	Lag     time.Duration `json:"lag"` // of the worst one
	Waiting int64         `json:"waiting"`
	Lost    int64         `json:"lost"`
	Dropped int64         `json:"dropped"` // that the file did not take
	Problem string        `json:"problem,omitempty"`
}

// relay is one of the fleet.
type relay struct {
	store *history.Store
	ships *ship.Shippers
	maker *synthetic.Maker
	name  string
	made  int64 // records
}

func relayName(i int) string          { return fmt.Sprintf("relay-%02d.example.net", i) }
func fileOf(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("relay-%02d.db", i)) }

// runFleet keeps and ships records until it is asked to end; then it makes no more, and ends when all
// are shipped.
func runFleet() int {
	var o orders
	if err := json.Unmarshal([]byte(os.Getenv(fleetVariable)), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var all []*relay
	for i := range relaysInEach {
		n := o.First + i
		store, err := history.Open(fileOf(o.Dir, n), history.Options{MaxBytes: 8 << 30, Log: log})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		site := fmt.Sprintf("site-%02d", n/2)
		ships := ship.New(store, ship.Options{Relay: relayName(n), Site: site, Open: sinks.Open, Log: log})
		ships.Set([]archive.Target{o.To})
		all = append(all, &relay{store: store, ships: ships, maker: synthetic.NewMaker(uint64(os.Getpid()*100 + i)), name: relayName(n)})
	}
	out := json.NewEncoder(os.Stdout)
	tick := time.NewTicker(time.Second / ticks)
	defer tick.Stop()
	begun, made := time.Now(), 0
	for n := 0; ; n++ {
		<-tick.C
		if ctx.Err() == nil {
			due := int(time.Since(begun).Seconds() * float64(o.Rate))
			for _, r := range all {
				r.make(due - made)
			}
			made = due
		}
		if n%ticks == 0 {
			now := reportOf(all)
			_ = out.Encode(now) // the reader may have gone
			if ctx.Err() != nil && allShipped(all, o.To.Label()) {
				break
			}
		}
	}
	for _, r := range all {
		r.ships.Close()
		_ = r.store.Close()
	}
	return 0
}

// ticks of a second in which records are made.
const ticks = 10

// make adds the records of flows that end now.
func (r *relay) make(n int) {
	records := make([]monitor.Record, max(n, 0))
	for i := range records {
		records[i] = r.maker.Record(time.Now())
		records[i].Relay = r.name
	}
	r.store.Add(records)
	r.made += int64(len(records))
}

// allShipped reports whether each record is in its relay's file, and the sink's cursor in the file behind it.
func allShipped(all []*relay, sink string) bool {
	for _, r := range all {
		if state := r.store.State(); state.Written+state.Dropped < r.made {
			return false
		}
		file, err := history.OpenReader(r.store.Path())
		if err != nil {
			return false
		}
		c, err := file.Cursor(context.Background(), sink)
		var left history.Spool
		if err == nil {
			left, err = file.Spool(context.Background(), c.Last, 0)
		}
		file.Close()
		if err != nil || left.Lacking > 0 {
			return false
		}
	}
	return true
}

func reportOf(all []*relay) report {
	var sum report
	for _, r := range all {
		state := r.store.State()
		sum.Dropped += state.Dropped
		sum.Waiting += int64(state.Waiting)
		for _, s := range r.ships.States() {
			sum.Lag = max(sum.Lag, s.Lag.Duration())
			sum.Waiting += s.Waiting
			sum.Lost += s.Lost
			if s.Problem != "" {
				sum.Problem = s.Problem
			}
		}
	}
	return sum
}
