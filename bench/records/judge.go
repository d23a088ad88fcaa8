package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/watch/monitor/history"
)

// sums are of the records of one relay.
type sums struct {
	records   int64
	different int64 // keys
	up, down  int64
}

// judge has the fleet ship what is left and end, and compares.
func (w *world) judge(ctx context.Context, lagBound bool, note func(kit.Measured)) error {
	begun := time.Now()
	for _, p := range w.fleet {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
	}
	deadline := time.After(drainPatience)
	for _, p := range w.fleet {
		select {
		case err := <-p.ended:
			p.ended <- err
			if err != nil {
				return fmt.Errorf("a process of the fleet: %w: %s", err, p.said)
			}
		case <-deadline:
			return w.errorf(fmt.Errorf("records still wait %v after the last flow: %+v", drainPatience, p.last))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	drained := time.Since(begun)
	there, err := w.sink.sums(ctx)
	if err != nil {
		return err
	}
	var all, lacking, twice, wrong, dropped int64
	for i := range processes * relaysInEach {
		here, err := sumsOf(ctx, fileOf(w.dir, i))
		if err != nil {
			return err
		}
		db := there[relayName(i)]
		all += here.records
		lacking += max(here.records-db.different, 0)
		twice += db.records - db.different
		if here.up != db.up || here.down != db.down || db.different > here.records {
			wrong++
		}
	}
	for _, p := range w.fleet {
		dropped += p.last.Dropped
	}
	count := func(name string, v int64) kit.Measured {
		return kit.Measured{Name: name, Value: float64(v), Bound: kit.AtMost(0), Exact: true}
	}
	note(kit.Measured{Name: "records", Value: float64(all)})
	note(count("records that the database lacks", lacking))
	note(count("records that it has twice", twice))
	note(count("relays whose sums of bytes differ", wrong))
	note(count("records that a relay's file did not take", dropped))
	if bad, err := w.sink.rollups(ctx); err != nil {
		return err
	} else if bad >= 0 {
		note(count("hours and days whose sums differ from their rows", bad))
	}
	w.mu.Lock()
	lag := kit.Measured{Name: lagFigure, Value: w.lag.Seconds(), Exact: true}
	w.mu.Unlock()
	if lagBound {
		lag.Bound = kit.AtMost(maxLag.Seconds())
	}
	note(lag)
	note(kit.Measured{Name: "until the last record was there, s", Value: drained.Seconds()})
	return nil
}

// sumsOf reads a relay's file.
func sumsOf(ctx context.Context, file string) (s sums, err error) {
	r, err := history.OpenReader(file)
	if err != nil {
		return s, err
	}
	defer r.Close()
	const page = 5000
	for after := int64(0); ; {
		spool, err := r.Spool(ctx, after, page)
		if err != nil || len(spool.Records) == 0 {
			return s, err
		}
		if spool.Gone > 0 {
			return s, fmt.Errorf("%s has let go of %d records", file, spool.Gone)
		}
		for i := range spool.Records {
			s.records++
			s.up += spool.Records[i].BytesUp
			s.down += spool.Records[i].BytesDown
			after = spool.Records[i].ID
		}
	}
}
