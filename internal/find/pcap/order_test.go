package pcap

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"longhaul/internal/find/doctor"
)

// TestOrder passes on packets of which the file has these times in milliseconds.
func TestOrder(t *testing.T) {
	for name, test := range map[string]struct {
		file, want []int64
		epochs     int
	}{
		"in order":              {[]int64{0, 1, 1, 5000}, []int64{0, 1, 1, 5000}, 0},
		"two queues":            {[]int64{0, 2, 4, 1, 3, 5, 2000}, []int64{0, 1, 2, 3, 4, 5, 2000}, 0},
		"equal times":           {[]int64{3, 1, 1, 3, 2}, []int64{1, 1, 2, 3, 3}, 0},
		"clock set back":        {[]int64{9000, 9010, 2000, 2010}, []int64{9000, 9010, 9010, 9020}, 1},
		"and again":             {[]int64{9000, 5000, 5010, 1000, 1010}, []int64{9000, 9000, 9010, 9010, 9020}, 2},
		"one wrong time":        {[]int64{9000, 100, 9020, 9030}, []int64{9000, 9000, 9020, 9030}, 2},
		"two clocks":            {[]int64{9000, 100, 9020, 130, 9040}, []int64{9000, 9000, 9020, 9030, 9040}, 4},
		"set back and right":    {[]int64{900_000, 100_000, 100_010, 905_000, 905_010}, []int64{900_000, 900_000, 900_010, 905_000, 905_010}, 2},
		"set back, and a pause": {[]int64{900_000, 100_000, 500_000, 900_500}, []int64{900_000, 900_000, 1_300_000, 1_700_500}, 1},
		"earlier than the file": {[]int64{100, 0, 200}, []int64{0, 100, 200}, 0},
	} {
		var got []int64
		epoch := 0
		o := order{pass: func(p *packet) { got, epoch = append(got, p.at/1e6-1000), max(epoch, p.epoch) }}
		for _, at := range test.file {
			o.add(&packet{at: (at + 1000) * 1e6})
		}
		o.flush()
		if diff := cmp.Diff(test.want, got); diff != "" || epoch != test.epochs {
			t.Errorf("%s: %d changes of the clock\n%s", name, epoch, diff)
		}
	}
}

// TestOrderBound has more packets within the time of sorting than are held, and times
// without sense.
func TestOrderBound(t *testing.T) {
	var passed int
	var last int64
	o := order{pass: func(p *packet) {
		passed++
		if p.at < last {
			t.Fatalf("packet %d is at %d, after %d", passed, p.at, last)
		}
		last = p.at
	}}
	const n = 3 * maxSorted
	for i := range n {
		o.add(&packet{at: int64(i)})
		if o.held() > maxSorted || cap(o.queue) > 4*maxSorted {
			t.Fatalf("%d packets held, room for %d", o.held(), cap(o.queue))
		}
	}
	for range 10 {
		for _, at := range []int64{-1 << 63, 1<<63 - 1, 0} {
			o.add(&packet{at: at})
		}
	}
	o.flush()
	if passed != n+30 {
		t.Errorf("%d packets passed on, want %d", passed, n+30)
	}
}

// TestNotInOrder compares the counts of a transfer in order with those of the same in
// another order, and with a clock that is set back.
func TestNotInOrder(t *testing.T) {
	transfer := func() *capture {
		c := newCapture(t).handshake()
		for i := range uint32(100) {
			at := 200 + 30*float64(i)
			c.add(
				seg{ms: at, from: client, flags: "A", seq: 1 + 2896*i, ack: 1, bytes: 1448},
				seg{ms: at + 1, from: client, flags: "A", seq: 1449 + 2896*i, ack: 1, bytes: 1448},
				seg{ms: at + 101, from: server, flags: "A", seq: 1, ack: 2897 + 2896*i, window: 8000},
			)
		}
		slices.SortStableFunc(c.records, func(a, b madeRecord) int { return a.at.Compare(b.at) })
		return c
	}
	read := func(c *capture) (counts [2]doctor.Counts) {
		d := c.read().Directions
		return [2]doctor.Counts{d[client].Observation.Capture.Counts, d[server].Observation.Capture.Counts}
	}
	want := read(transfer())
	marks := cmpopts.IgnoreFields(doctor.Counts{}, "BackwardSteps", "BackwardBy")
	t.Run("two queues", func(t *testing.T) {
		c := transfer()
		random := rand.New(rand.NewPCG(1, 2))
		delay := make(map[time.Time]time.Duration)
		for _, r := range c.records {
			delay[r.at] = time.Duration(random.IntN(200)) * time.Millisecond
		}
		slices.SortStableFunc(c.records, func(a, b madeRecord) int { return a.at.Add(delay[a.at]).Compare(b.at.Add(delay[b.at])) })
		got := read(c)
		if diff := cmp.Diff(want, got, marks); diff != "" || got[client].BackwardSteps < 20 || got[client].BackwardBy < 50*time.Millisecond || got[client].BackwardBy > 200*time.Millisecond {
			t.Errorf("%d steps back, up to %v\n%s", got[client].BackwardSteps, got[client].BackwardBy, diff)
		}
	})
	t.Run("clock set back by an hour", func(t *testing.T) {
		c := transfer()
		for i := range c.records {
			if i > 150 {
				c.records[i].at = c.records[i].at.Add(-time.Hour)
			}
		}
		got := read(c)
		shortly := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < 20*time.Millisecond })
		if diff := cmp.Diff(want, got, marks, shortly); diff != "" || got[client].MinRTT != want[client].MinRTT ||
			got[client].BackwardSteps+got[server].BackwardSteps == 0 || max(got[client].BackwardBy, got[server].BackwardBy) < 59*time.Minute {
			t.Errorf("%d steps back, up to %v\n%s", got[client].BackwardSteps, got[client].BackwardBy, diff)
		}
	})
}

// TestClockSteps has no time pass while the clock is set, whatever the transfer waits for.
func TestClockSteps(t *testing.T) {
	const day = 86400e3                            // ms
	for name, steps := range map[string][]float64{ // at each of the packets after the handshake
		"set right":                    {20000 * day, 20000 * day, 20000 * day, 20000 * day, 20000 * day, 20000 * day},
		"within a pause":               {0, 0, 0, 0, 20000 * day, 20000 * day},
		"before data is sent again":    {0, 0, 20000 * day, 20000 * day, 20000 * day, 20000 * day},
		"set back":                     {0, 0, -20000 * day, -20000 * day, -20000 * day, -20000 * day},
		"set back and right":           {0, 0, -20000 * day, 0, 0, 0},
		"set back by hours, and right": {0, 0, -0.5 * day, -0.5 * day, 0, 0},
		"with a closed window":         {0, 0, 0, 0, 0, 20000 * day},
	} {
		c := newCapture(t).handshake().add(
			seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
			seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 1000},
			seg{ms: 220, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1000},
			seg{ms: 620, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1000},
			seg{ms: 720, from: server, flags: "A", seq: 1, ack: 2001, window: 0},
			seg{ms: 820, from: server, flags: "A", seq: 1, ack: 2001, window: 1000},
		)
		for i, step := range steps {
			r := &c.records[len(c.records)-len(steps)+i]
			r.at = r.at.Add(time.Duration(step * 1e6))
		}
		d := &c.read().Directions[client]
		n := d.Observation.Capture
		last := d.Observation.Samples[len(d.Observation.Samples)-1]
		for what, got := range map[string]time.Duration{
			"in all": n.Time, "a stall": n.Counts.Stall.Time, "pauses": n.Counts.PauseTime, "a closed window": n.Counts.ZeroWindowTime,
			"round trips": n.Counts.P95RTT, "busy": last.Info.BusyTime, "samples": last.At, "RTT": last.Info.RTT,
		} {
			if got > time.Second {
				t.Errorf("%s: %s take %v", name, what, got)
			}
		}
	}
}
