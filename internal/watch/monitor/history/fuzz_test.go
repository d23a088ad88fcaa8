package history

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"longhaul/internal/watch/monitor"
)

func FuzzSeries(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(EncodeSeries(monitor.Series{Step: 1e9, UpBps: []float32{0, 0, 1e9, 3}, DownBps: []float32{5}}))
	f.Add(EncodeSeries(monitor.Series{Step: 1e6, UpBps: make([]float32, 60), DownBps: make([]float32, 60)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSeries(b)
		if err != nil {
			return
		}
		if len(s.UpBps) > monitor.SeriesLen || len(s.DownBps) > monitor.SeriesLen {
			t.Fatal("too long")
		}
		for _, v := range slices.Concat(s.UpBps, s.DownBps) {
			if !(v >= 0) || math.IsInf(float64(v), 0) {
				t.Fatalf("a value is %v", v)
			}
		}
		again, err := DecodeSeries(EncodeSeries(s))
		if err != nil {
			t.Fatal(err)
		}
		if len(again.UpBps) != len(s.UpBps) && len(s.UpBps)+len(s.DownBps) > 0 || len(b) > 0 && len(again.UpBps)+len(again.DownBps) > 0 && again.Step != s.Step {
			t.Fatalf("%+v became %+v", s, again)
		}
	})
}

func FuzzDigest(f *testing.F) {
	f.Add(encodeDigest(nil))
	f.Add(encodeDigest(someFacts(20)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var all []facts
		if err := readDigest(b, func(group) bool { return true }, func(f *facts) { all = append(all, *f) }); err != nil {
			return
		}
		a := newAggregate(fine)
		for i := range all {
			if all[i].id <= 0 || all[i].up < 0 || all[i].sent < -1 {
				t.Fatalf("a digest has impossible facts: %+v", all[i])
			}
			a.add(&all[i], 0)
		}
		a.summary(Period{}, Selection{}, nil)
		var again []facts
		if err := readDigest(encodeDigest(all), func(group) bool { return true }, func(f *facts) { again = append(again, *f) }); err != nil || !slices.Equal(all, again) {
			t.Fatalf("%v became %v: %v", all, again, err)
		}
	})
}

// FuzzRecord reads rows with any values. A row that is read must come back from
// what is written of it.
func FuzzRecord(f *testing.F) {
	words := map[int64]string{}
	intern := func(word string) (int64, error) {
		if word != "" {
			words[int64(len(word))] = word
		}
		return int64(len(word)), nil
	}
	for i, r := range made(9, time.Second, noon) {
		values, _, err := recordValues(nil, &r, int64(20+i), intern)
		if err != nil {
			f.Fatal(err)
		}
		client, _ := values[16].(string)
		goodput, _ := values[recordLen-1].([]byte)
		f.Add(int64(20+i), r.End.UnixMilli(), r.Elapsed.Duration().Microseconds(), r.BytesUp, r.TargetLeg.BytesSent,
			r.TargetLeg.RTT.Duration().Microseconds(), client, int64(80), r.Error, goodput)
	}
	least, most := int64(math.MinInt64), int64(math.MaxInt64)
	f.Add(int64(-1), least, most, int64(-5), most, most, "fe80::1%eth0", int64(70000), "\x00\xff", []byte{1})
	f.Fuzz(func(t *testing.T, id, endMs, elapsedUs, up, sent, rttUs int64, client string, port int64, text string,
		goodput []byte) {
		r := newRowReader(recordLen)
		r.values[0], r.values[1], r.values[2], r.values[7], r.values[8] = id, endMs, elapsedUs, up, int64(0)
		r.values[9], r.values[10], r.values[11] = sent, sent, sent
		r.values[13], r.values[16], r.values[17], r.values[20] = endMs, client, port, text
		r.values[25], r.values[33], r.values[34], r.values[recordLen-1] = rttUs, elapsedUs, rttUs, goodput
		first, facts, err := readRecord(r, words)
		if err != nil {
			return
		}
		if facts.up < 0 || facts.elapsedUs < 0 || facts.sent < -1 || facts.retransmitted < -1 {
			t.Fatalf("a record has impossible facts: %+v", facts)
		}
		values, written, err := recordValues(nil, &first, first.ID, intern)
		if err != nil || len(values) != recordLen || written != facts {
			t.Fatalf("%+v became %+v, %v", facts, written, err)
		}
		copy(r.values, values)
		r.next = 0
		again, same, err := readRecord(r, words)
		if err != nil || same != facts || !again.End.Equal(first.End) || !again.Start.Equal(first.Start) ||
			again.Elapsed != first.Elapsed || again.Resumes != first.Resumes || again.Outage != first.Outage || again.ClientLeg != first.ClientLeg || again.TargetLeg != first.TargetLeg ||
			again.Client.Addr().WithZone("") != first.Client.Addr().WithZone("") {
			t.Fatalf("%+v became %+v, %v", first, again, err)
		}
	})
}

func FuzzAggregate(f *testing.F) {
	a := newAggregate(coarse)
	f.Add(a.encode())
	for _, x := range someFacts(50) {
		a.add(&x, 1)
	}
	f.Add(a.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		a := newAggregate(coarse)
		if err := a.read(b); err != nil {
			return
		}
		again := newAggregate(coarse)
		if err := again.read(a.encode()); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(a.summary(Period{}, Selection{}, nil), again.summary(Period{}, Selection{}, nil), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Fatalf("an aggregate that is read again differs (-first +again):\n%s", diff)
		}
	})
}

func someFacts(n int) []facts {
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]facts, n)
	id := int64(1000)
	for i := range all {
		id += 1 + r.Int64N(3)
		all[i] = facts{
			id: id, group: group{tunnel: 1 + r.Int64N(3), cause: r.Int64N(2), reason: 7, endedBy: 8},
			endMs: r.Int64() - math.MaxInt64/2, elapsedUs: r.Int64N(1 << 40), up: r.Int64N(1 << 50), down: r.Int64N(4), sent: r.Int64N(9) - 1, retransmitted: r.Int64N(9) - 1,
		}
	}
	return all
}

func TestDigestTakesWhatIsWanted(t *testing.T) {
	all := someFacts(segmentLen)
	want := slices.DeleteFunc(slices.Clone(all), func(f facts) bool { return f.group.tunnel != 2 })
	var got []facts
	err := readDigest(encodeDigest(all), func(g group) bool { return g.tunnel == 2 }, func(f *facts) { got = append(got, *f) })
	if err != nil || !slices.Equal(want, got) {
		t.Errorf("%d of %d, %v", len(got), len(want), err)
	}
}
