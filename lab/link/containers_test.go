package link

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramBuckets(t *testing.T) {
	last := -1
	for ns := int64(0); ns < 1<<46; ns += max(1, ns/64) {
		i := bucketOf(ns)
		if i < last || i > last+1 {
			t.Fatalf("%d ns fell into bucket %d after %d", ns, i, last)
		}
		last = i
		top := bucketTop(i)
		if ns < 1<<maxExponent && (top < ns || top-ns > ns/32) {
			t.Fatalf("%d ns fell into bucket %d, which ends at %d", ns, i, top)
		}
		if bucketOf(top) != i || bucketOf(top+1) == i && top+1 < 1<<maxExponent {
			t.Fatalf("bucket %d does not end at %d", i, top)
		}
	}
	if last != len(histogram{}.buckets)-1 {
		t.Errorf("the last bucket in use is %d of %d", last, len(histogram{}.buckets))
	}
}

func TestHistogramQuantiles(t *testing.T) {
	h := new(histogram)
	if q := h.quantiles(0.5, 1); q[0] != 0 || q[1] != 0 {
		t.Errorf("quantiles of nothing are %v", q)
	}
	for i := range 1000 {
		h.add(int64(i+1) * 1000)
	}
	for i, got := range h.quantiles(0.5, 0.95, 0.99, 1) {
		want := []time.Duration{500, 950, 990, 1000}[i] * time.Microsecond
		if got < want || got > want+want/32 {
			t.Errorf("quantile %d is %v, want %v", i, got, want)
		}
	}
}

func TestFIFO(t *testing.T) {
	var f fifo[int]
	var model []int
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 100_000 {
		if r.IntN(100) < 50+i/1000%3 {
			f.push(i)
			model = append(model, i)
		} else if len(model) > 0 {
			if front := *f.front(); front != model[0] {
				t.Fatalf("front is %d, want %d", front, model[0])
			}
			if got := f.pop(); got != model[0] {
				t.Fatalf("popped %d, want %d", got, model[0])
			}
			model = model[1:]
		}
		if f.len() != len(model) {
			t.Fatalf("length %d, want %d", f.len(), len(model))
		}
	}
}

func TestDelayLineOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var l delayLine
		var want []wirePacket
		due := int64(0)
		for i := range 300 {
			overtakes := r.IntN(2) == 0
			p := wirePacket{index: uint16(i), at: int64(r.IntN(100))}
			if !overtakes {
				due += int64(r.IntN(2))
				p.at = due
			}
			l.push(p, overtakes)
			p.seq = uint64(i)
			want = append(want, p)
		}
		slices.SortFunc(want, func(a, b wirePacket) int {
			if before(&a, &b) {
				return -1
			}
			return 1
		})
		for i := range want {
			due, some := l.nextDue()
			if _, early := l.pop(due - 1); !some || early {
				t.Fatal("a packet left before it was due")
			}
			got, some := l.pop(due)
			if !some || got != want[i] {
				t.Fatalf("packet %d is %+v, want %+v", i, got, want[i])
			}
		}
		if l.len() != 0 {
			t.Fatalf("%d packets left over", l.len())
		}
	}
}
