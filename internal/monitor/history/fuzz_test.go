package history

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"longhaul/internal/monitor"
)

func FuzzSeries(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(encodeSeries(monitor.Series{Step: 1e9, UpBps: []float32{0, 0, 1e9, 3}, DownBps: []float32{5}}))
	f.Add(encodeSeries(monitor.Series{Step: 1e6, UpBps: make([]float32, 60), DownBps: make([]float32, 60)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSeries(b)
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
		again, err := decodeSeries(encodeSeries(s))
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
		a.summary(Period{}, "", nil)
		var again []facts
		if err := readDigest(encodeDigest(all), func(group) bool { return true }, func(f *facts) { again = append(again, *f) }); err != nil || !slices.Equal(all, again) {
			t.Fatalf("%v became %v: %v", all, again, err)
		}
	})
}

func FuzzPack(f *testing.F) {
	words := func(word string) (int64, error) { return int64(len(word)), nil }
	var rows []byte
	var written []facts
	for i, r := range made(9, time.Second, noon) {
		var one facts
		rows, one, _ = packRecord(rows, &r, int64(20+i), words)
		written = append(written, one)
	}
	f.Add(int64(28), int64(9), rows)
	f.Add(int64(1), int64(1), []byte{packFormat, 0, 0})
	f.Fuzz(func(t *testing.T, last, records int64, rows []byte) {
		p := pack{last, records, sealed(slices.Clip(rows))} // nobody finds a checksum by chance
		var all []facts
		if err := p.facts(0, func(f *facts) { all = append(all, *f) }); err != nil {
			return
		}
		if int64(len(all)) != records || all[len(all)-1].id != last {
			t.Fatalf("%d facts of %d records", len(all), records)
		}
		for _, f := range all {
			if f.up < 0 || f.down < 0 || f.elapsedUs < 0 || f.sent < -1 || f.retransmitted < -1 {
				t.Fatalf("a pack has impossible facts: %+v", f)
			}
			r, err := p.record(f.id, nil)
			if err != nil {
				continue
			}
			if r.ID != f.id || r.BytesUp != f.up {
				t.Fatalf("%+v is %+v", f, r)
			}
			// What can be read can be written, and is the same then.
			again, _, err := packRecord(nil, &r, f.id, words)
			if err != nil {
				t.Fatal(err)
			}
			same, err := (&pack{f.id, 1, sealed(again)}).record(f.id, nil)
			if err != nil || same.BytesUp != r.BytesUp || !same.End.Equal(r.End) || !same.Start.Equal(r.Start) || same.Client != r.Client {
				t.Fatalf("%+v became %+v, %v", r, same, err)
			}
		}
	})
	var read []facts
	if err := (&pack{28, 9, sealed(rows)}).facts(0, func(f *facts) { read = append(read, *f) }); err != nil || !slices.Equal(read, written) {
		f.Fatalf("%v became %v, %v", written, read, err)
	}
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
		if diff := gocmp.Diff(a.summary(Period{}, "", nil), again.summary(Period{}, "", nil)); diff != "" {
			t.Fatalf("an aggregate that is read again differs (-first +again):\n%s", diff)
		}
	})
}

func FuzzAddress(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1, 0, 80})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddress(b)
		if err != nil {
			return
		}
		written := appendAddress(nil, a)
		if again, err := decodeAddress(written[1:]); err != nil || again != a || int(written[0]) != len(written)-1 {
			t.Fatalf("%v became %v: %v", a, again, err)
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
