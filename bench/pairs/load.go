package main

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/words/stats"
	"longhaul/lab"
)

// What the case upgrade-load does.
const (
	loadRTT    = 20 * time.Millisecond
	loadFlows  = 200 // new flows a second
	loadLife   = 10 * time.Second
	loadBulk   = 4 // flows that fill the WAN
	loadEvery  = 5 * time.Second
	loadQuiet  = 3 * loadEvery // before the first upgrade
	loadBin    = 100 * time.Millisecond
	loadEnough = 0.9 // of the usual goodput
)

// bulkNumber is that of flows whose bytes the target counts.
const bulkNumber = echoNumber - 1

// upgradeLoad upgrades the relays in turn under thousands of flows and a full WAN.
func upgradeLoad(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	perSecond := kit.Pick(o, loadFlows, loadFlows/10)
	c := newCrowd(crowdOptions{every: time.Second / time.Duration(perSecond), minLife: loadLife, maxLife: loadLife, opening: loadLife,
		pace: pace{every: 2 * time.Second, bytes: 500}, seed: o.SeedOf(run)})
	var arrived atomic.Int64
	c.bulk = func(conn net.Conn) { countAll(conn, &arrived) }
	// BBR, the default choice, nearly stops for 0.2 s in every 10 s to probe the round-trip
	// time. That would look like a dip.
	w, err := buildWorld(ctx, o, lab.TwoSites(conditions(loadRTT, outageRateBps)), way, c.serve,
		settings{process: "defaults: {wan: {congestion_control: cubic}}"})
	if err != nil {
		return err
	}
	defer w.close()
	for range loadBulk {
		conn, err := w.dial(ctx)
		if err != nil {
			return w.errorf("dial: %w", err)
		}
		if err := write(conn, (&flow{number: bulkNumber}).header()); err != nil {
			return w.errorf("bulk: %w", err)
		}
		defer sendOn(conn)()
	}
	if err := c.gather(ctx, w); err != nil {
		return err
	}
	progress := watchProgress(&arrived)
	defer progress.stop()
	if err := kit.Pause(ctx, loadQuiet); err != nil {
		return err
	}
	usual, quiet := dipsOf(progress.all(), 0, loadQuiet, 0)
	longest, deepest, upgrades := 0.0, 0.0, kit.Pick(o, 6, 2)
	for n := range upgrades {
		from := time.Since(progress.began)
		if _, err := w.step(ctx, w.Relays[(n+1)%2], false); err != nil { // the clients' relay first
			return err
		}
		if err := kit.Pause(ctx, loadEvery-time.Since(progress.began)+from); err != nil {
			return err
		}
		_, d := dipsOf(progress.all(), from, from+loadEvery, usual)
		longest, deepest = max(longest, d.longest), max(deepest, d.second)
	}
	c.finish()
	note(kit.Measured{Name: "upgrades", Value: float64(upgrades)})
	c.tally().figures(note)
	note(kit.Measured{Name: "goodput of the bulk flows", Unit: "Mb/s", Value: usual * 8 / loadBin.Seconds() / 1e6})
	note(kit.Measured{Name: "below 90 % of it, longest", Unit: "s", Value: longest})
	note(kit.Measured{Name: "the same without an upgrade", Unit: "s", Value: quiet.longest})
	note(kit.Measured{Name: "deepest second, share below it", Value: deepest})
	return nil
}

// dip is the fall of the goodput below its usual level.
type dip struct {
	longest float64 // seconds below loadEnough
	second  float64 // share that the deepest second lacks
}

// dipsOf returns the bytes of the median bin between two times, and the dips below the usual
// bin: that median, unless it is given.
func dipsOf(seen []arrival, from, to time.Duration, usual float64) (median float64, d dip) {
	var bins []float64
	last := int64(-1)
	for at, next := 0, from; at < len(seen) && seen[at].at <= to; at++ {
		if seen[at].at < next {
			continue
		}
		if last >= 0 {
			bins = append(bins, float64(seen[at].total-last))
		}
		last, next = seen[at].total, next+loadBin
	}
	median = stats.Median(bins, kit.Itself)
	if usual == 0 {
		usual = median
	}
	below := 0
	const second = int(time.Second / loadBin)
	for i, bytes := range bins {
		if below++; bytes >= loadEnough*usual {
			below = 0
		}
		d.longest = max(d.longest, float64(below)*loadBin.Seconds())
		if i+1 >= second {
			d.second = max(d.second, 1-sum(bins[i+1-second:i+1])/usual/float64(second))
		}
	}
	return median, d
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}
