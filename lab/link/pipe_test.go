package link

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bench drives a pipe with its own clock.
type bench struct {
	*pipe
	now      int64
	live     int // super-packets not yet recycled
	out      []arrival
	names    map[*superPacket]int
	sent     int
	segments []int // of each packet sent
}

// arrival is a packet that left the pipe: its number, segment and time.
type arrival struct {
	Packet, Segment int
	At              int64
}

func newBench(s Settings) *bench {
	b := &bench{names: map[*superPacket]int{}}
	b.pipe = newPipe(s, s.QueueLimitBytes(s.Delay), func(p *superPacket) {
		if p.refs != 0 {
			panic(fmt.Sprintf("recycled with %d references", p.refs))
		}
		b.live--
	})
	return b
}

// send makes a packet of size bytes arrive now.
func (b *bench) send(size int) { b.sendSuper(&superPacket{packet: make([]byte, size), segments: 1}) }

func (b *bench) sendSuper(p *superPacket) {
	b.names[p] = b.sent
	b.sent++
	b.segments = append(b.segments, p.segments)
	b.live++
	b.arrive(b.now, p)
}

// run advances the clock and collects each packet at the exact nanosecond it is
// due.
func (b *bench) run(until int64) {
	for {
		due, some := b.next()
		if !some || due > until {
			break
		}
		b.now = max(b.now, due)
		b.collect()
	}
	b.now = until
	b.collect()
}

func (b *bench) collect() {
	b.advance(b.now)
	for {
		p, some := b.pop(b.now)
		if !some {
			return
		}
		b.out = append(b.out, arrival{b.names[p.super], int(p.index), b.now})
		b.done(p.super, 1, int(p.size), true)
	}
}

const (
	us = int64(time.Microsecond)
	ms = int64(time.Millisecond)
)

func TestPipeDelaysExactly(t *testing.T) {
	b := newBench(Settings{Delay: 10 * time.Millisecond})
	for _, at := range []int64{0, 1, 500} {
		b.now = at
		b.send(1500)
	}
	b.run(time.Second.Nanoseconds())
	want := []arrival{{0, 0, 10 * ms}, {1, 0, 10*ms + 1}, {2, 0, 10*ms + 500}}
	if diff := cmp.Diff(want, b.out); diff != "" {
		t.Error(diff)
	}
}

// TestPipeRateIsExact: the fraction of a nanosecond is carried, so the last of
// n packets leaves after n*size*8/rate, rounded down once.
func TestPipeRateIsExact(t *testing.T) {
	for _, rate := range []int64{1_000, 1_000_000, 9_999_991, 1_000_000_007, 39_999_999_999} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			const packets, size = 9_999, 1499
			b := newBench(Settings{RateBps: rate, QueueBytes: packets * size})
			for range packets {
				b.send(size)
			}
			b.run(math.MaxInt64 / 2)
			if len(b.out) != packets {
				t.Fatalf("%d packets left, want %d", len(b.out), packets)
			}
			want := int64(float64(packets) * size * 8 / float64(rate) * 1e9)
			if got := b.out[packets-1].At; got < want-1-want>>50 || got > want+1+want>>50 {
				t.Errorf("the last packet left after %d ns, want %d", got, want)
			}
		})
	}
}

// TestPipeCells: a packet takes whole cells, including trailers.
func TestPipeCells(t *testing.T) {
	for _, test := range []struct{ packet, cells int }{
		{1, 1}, {32, 1}, {33, 2}, {40, 2}, {80, 2}, {81, 3}, {576, 13}, {1500, 32}, {9180, 192},
	} {
		s := Settings{RateBps: 8e9, ATM: true, MTU: 9180, QueueBytes: 20_000}
		if got := s.wireBytes(test.packet); got != test.cells*53 {
			t.Errorf("%d bytes take %d, want %d cells", test.packet, got, test.cells)
		}
		b := newBench(s)
		b.send(test.packet)
		b.run(ms)
		if len(b.out) != 1 || b.out[0].At != int64(test.cells*53) {
			t.Errorf("%d bytes leave as %v, want after %d ns", test.packet, b.out, test.cells*53)
		}
	}
}

// TestPipePacketRate: the packet rate limits small packets, the bit rate large
// ones, and the packet rate is exact over any time.
func TestPipePacketRate(t *testing.T) {
	const packets = 3000
	for _, test := range []struct {
		size, perSecond, rate int64
		want                  time.Duration
	}{
		{100, 3000, 1e9, time.Second},
		{100, 7000, 1e9, packets * time.Second / 7000},
		{1500, 7000, 36e6, time.Second},
	} {
		b := newBench(Settings{RateBps: test.rate, PacketsPerSecond: test.perSecond, QueueBytes: packets * 1500})
		for range packets {
			b.send(int(test.size))
		}
		b.run(time.Minute.Nanoseconds())
		if last := b.out[len(b.out)-1].At; len(b.out) != packets || last != int64(test.want) {
			t.Errorf("%+v: %d packets left, the last after %v", test, len(b.out), time.Duration(last))
		}
	}
}

func TestPipeServesAtMaxOfArrivalAndFree(t *testing.T) {
	b := newBench(Settings{RateBps: 12_000_000}) // 1 ms for 1500 bytes
	b.send(1500)
	b.send(1500)
	b.run(5 * ms)
	b.send(1500)
	b.run(10 * ms)
	want := []arrival{{0, 0, 1 * ms}, {1, 0, 2 * ms}, {2, 0, 6 * ms}}
	if diff := cmp.Diff(want, b.out); diff != "" {
		t.Error(diff)
	}
	q := b.queueDelay.quantiles(0.5, 1)
	if q[0] != 0 || q[1] != time.Millisecond {
		t.Errorf("queue delays p50, max %v, want 0 and 1ms", q)
	}
}

func TestPipeDropsAtTheTail(t *testing.T) {
	b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 4500})
	for range 4 {
		b.send(1500) // three fit, including the one in service
	}
	b.send(1)
	b.run(1 * ms) // one has left
	b.send(1500)
	b.send(1)
	b.run(10 * ms)
	var got []int
	for _, a := range b.out {
		got = append(got, a.Packet)
	}
	if diff := cmp.Diff([]int{0, 1, 2, 5}, got); diff != "" {
		t.Error(diff)
	}
	if b.counters.QueueDrops != 3 {
		t.Errorf("QueueDrops %d, want 3", b.counters.QueueDrops)
	}
}

func TestPipeTakesSegmentsOneByOne(t *testing.T) {
	packet, h := tcpSuperPacket(4, 10*1448, 1448, 12)
	b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 4500})
	super := new(superPacket)
	super.parse(packet, h)
	if super.segments != 10 {
		t.Fatalf("%d segments, want 10", super.segments)
	}
	b.sendSuper(super)
	b.run(100 * ms)
	want := []arrival{{0, 0, 1 * ms}, {0, 1, 2 * ms}, {0, 2, 3 * ms}}
	if diff := cmp.Diff(want, b.out); diff != "" {
		t.Error(diff)
	}
	if b.counters.QueueDrops != 7 || b.counters.PacketsIn != 10 || b.counters.BytesIn != 15000 {
		t.Errorf("counters %+v", b.counters)
	}
}

func TestPipeMTUAndOutage(t *testing.T) {
	b := newBench(Settings{MTU: 500})
	b.send(500)
	b.send(501)
	b.set(b.now, Settings{MTU: 500, Down: true}, 0)
	b.send(100)
	b.set(b.now, Settings{}, 0)
	b.send(1500)
	b.run(1)
	if c := b.counters; len(b.out) != 2 || c.TooBig != 1 || c.Outage != 1 {
		t.Errorf("out %v, counters %+v", b.out, c)
	}
}

func TestPipeSet(t *testing.T) {
	slow := Settings{RateBps: 12_000_000, QueueBytes: 15000, Delay: 10 * time.Millisecond}
	for _, test := range []struct {
		name   string
		change func(*Settings)
		want   []int64 // arrival times of three packets sent at 0; the change is at 1.5 ms
	}{
		{"nothing", func(*Settings) {}, []int64{11 * ms, 12 * ms, 13 * ms}},
		{"rate doubled: half of the second packet is left", func(s *Settings) { s.RateBps *= 2 },
			[]int64{11 * ms, 11*ms + 750*us, 12*ms + 250*us}},
		{"rate halved", func(s *Settings) { s.RateBps /= 2 }, []int64{11 * ms, 12*ms + 500*us, 14*ms + 500*us}},
		{"rate unbounded", func(s *Settings) { s.RateBps = 0 }, []int64{11 * ms, 11*ms + 500*us, 11*ms + 500*us}},
		{"delay longer", func(s *Settings) { s.Delay *= 2 }, []int64{11 * ms, 22 * ms, 23 * ms}},
		{"delay shorter does not reorder", func(s *Settings) { s.Delay = 0 }, []int64{11 * ms, 11 * ms, 11 * ms}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(slow)
			for range 3 {
				b.send(1500)
			}
			b.run(1500 * us)
			s := slow
			test.change(&s)
			b.set(b.now, s, s.QueueLimitBytes(s.Delay))
			b.run(100 * ms)
			var got []int64
			for i, a := range b.out {
				if a.Packet != i {
					t.Fatalf("packet %d left as number %d", a.Packet, i)
				}
				got = append(got, a.At)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPipeLossPlaceAndCapacity(t *testing.T) {
	for _, test := range []struct {
		place LossPlace
		last  func(sent, lost int64) int64 // when the last packet leaves at 1 ms each
	}{
		{LossBefore, func(sent, lost int64) int64 { return sent - lost }},
		{LossAfter, func(sent, lost int64) int64 { return sent }},
	} {
		b := newBench(Settings{RateBps: 12_000_000, QueueBytes: 1 << 30, Loss: Loss{Probability: 0.5}, LossPlace: test.place, Seed: 3})
		const sent = 1000
		for range sent {
			b.send(1500)
		}
		b.run(5000 * ms)
		lost := int64(b.counters.Lost)
		if lost < 400 || lost > 600 {
			t.Fatalf("place %d: %d of %d lost", test.place, lost, sent)
		}
		// After the bottleneck, the last packets may be the lost ones.
		want, got := test.last(sent, lost), b.out[len(b.out)-1].At/ms
		if test.place == LossBefore && got != want || test.place == LossAfter && (got > want || got < want-20) {
			t.Errorf("place %d: the last packet left at %d ms, want %d", test.place, got, want)
		}
	}
}

// TestPipeLossPattern: the lost packet numbers do not depend on timing, sizes,
// grouping into super-packets, or other settings.
func TestPipeLossPattern(t *testing.T) {
	for _, loss := range []Loss{
		{Probability: 0.1},
		{Probability: 0.001, ToBad: 0.01, ToGood: 0.2, BadProbability: 0.7},
	} {
		const packets = 20_000
		lost := func(s Settings, send func(b *bench)) []int {
			s.Loss = loss
			b := newBench(s)
			for b.counters.PacketsIn < packets {
				send(b)
			}
			b.run(math.MaxInt64 / 2)
			passed := make([]bool, packets)
			number := 0
			first := map[int]int{}
			for i := range b.sent {
				first[i] = number
				number += b.segments[i]
			}
			for _, a := range b.out {
				passed[first[a.Packet]+a.Segment] = true
			}
			var lost []int
			for i, p := range passed {
				if !p {
					lost = append(lost, i)
				}
			}
			return lost
		}
		plain := lost(Settings{Seed: 7}, func(b *bench) { b.send(100) })
		other := lost(Settings{Seed: 7, LossPlace: LossAfter, RateBps: 1e9, QueueBytes: 1 << 30, Delay: time.Second,
			Jitter: time.Second, Reorder: Reorder{Probability: 0.5, Hold: time.Minute}}, func(b *bench) {
			b.run(b.now + 77*us)
			packet, h := tcpSuperPacket(4, 5*1000, 1000, 0)
			p := new(superPacket)
			p.parse(packet, h)
			b.sendSuper(p)
		})
		if !slices.Equal(plain, other) {
			t.Errorf("loss %+v: patterns of %d and %d losses differ", loss, len(plain), len(other))
		}
		if reseeded := lost(Settings{Seed: 8}, func(b *bench) { b.send(100) }); slices.Equal(plain, reseeded) {
			t.Errorf("loss %+v: another seed gave the same pattern", loss)
		}
	}
}

func TestDiceLossShare(t *testing.T) {
	const n = 1_000_000
	for _, loss := range []Loss{
		{},
		{Probability: 1},
		{Probability: 0.01},
		{Probability: 0.1},
		{Probability: 0.001, ToBad: 0.002, ToGood: 0.1, BadProbability: 0.5},
		{ToBad: 0.3, ToGood: 0.9, BadProbability: 1},
	} {
		for seed := range uint64(5) {
			d, lost := newDice(seed), 0
			for range n {
				if d.lose(&loss) {
					lost++
				}
			}
			want, sigma := loss.Share(), loss.Sigma(n)
			if got := float64(lost) / n; math.Abs(got-want) > 4*sigma {
				t.Errorf("loss %+v, seed %d: share %.5f, want %.5f ± %.5f", loss, seed, got, want, 4*sigma)
			}
		}
	}
}

func TestDiceGilbertElliottBursts(t *testing.T) {
	// With certain loss in the bad state only, the mean run of losses is
	// 1/ToGood.
	loss := Loss{ToBad: 0.01, ToGood: 0.25, BadProbability: 1}
	d, runs, lost, before := newDice(1), 0, 0, false
	for range 1_000_000 {
		now := d.lose(&loss)
		if now {
			lost++
			if !before {
				runs++
			}
		}
		before = now
	}
	if mean := float64(lost) / float64(runs); math.Abs(mean-4) > 0.15 {
		t.Errorf("mean run of losses %.2f, want 4", mean)
	}
}

func TestPipeJitter(t *testing.T) {
	s := Settings{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Seed: 1}
	b := newBench(s)
	const n = 10_000
	for range n {
		b.send(100)
		b.run(b.now + 100*us)
	}
	b.run(b.now + 1000*ms)
	var sum float64
	var least, most int64 = math.MaxInt64, 0
	overtaken := 0
	for i, a := range b.out {
		delay := a.At - int64(a.Packet)*100*us
		sum += float64(delay)
		least, most = min(least, delay), max(most, delay)
		if i > 0 && a.Packet < b.out[i-1].Packet {
			overtaken++
		}
		if i > 0 && a.At < b.out[i-1].At {
			t.Fatal("packets left out of their order in time")
		}
	}
	if len(b.out) != n || least < 15*ms || most > 25*ms || least > 15*ms+50*us || most < 25*ms-50*us ||
		math.Abs(sum/n-20e6) > 100e3 || overtaken == 0 {
		t.Errorf("%d packets, delays %v to %v, mean %.0f ns, %d overtaken", len(b.out),
			time.Duration(least), time.Duration(most), sum/n, overtaken)
	}
}

func TestPipeReorder(t *testing.T) {
	s := Settings{Delay: 10 * time.Millisecond, Reorder: Reorder{Probability: 0.1, Hold: 3 * time.Millisecond}, Seed: 1}
	b := newBench(s)
	const n = 10_000
	for range n {
		b.send(100)
		b.run(b.now + 1*ms)
	}
	b.run(b.now + 1000*ms)
	held := 0
	for _, a := range b.out {
		switch delay := a.At - int64(a.Packet)*ms; delay {
		case 10 * ms:
		case 13 * ms:
			held++
		default:
			t.Fatalf("packet %d took %d ns", a.Packet, delay)
		}
	}
	if held < 900 || held > 1100 || uint64(held) != b.counters.Reordered {
		t.Errorf("%d of %d held back, counted %d", held, n, b.counters.Reordered)
	}
}

// TestPipeAccountsForEverything changes everything at random and checks the
// sums after each step.
func TestPipeAccountsForEverything(t *testing.T) {
	traces := []*Trace{
		parsed(t, "0\n3\n3\n10\n"),
		parsed(t, "time_s,rate_bps,delay_ms,loss\n0,1000000,5,0.1\n0.005,0,5,1\n0.01,100000000,1,0\n"),
	}
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 0))
		choose := func() Settings {
			s := Settings{
				Delay:     time.Duration(r.Int64N(20 * ms)),
				RateBps:   []int64{0, 1_000_000, 100_000_000}[r.IntN(3)],
				Loss:      []Loss{{}, {Probability: 0.2}, {ToBad: 0.1, ToGood: 0.3, BadProbability: 0.8}}[r.IntN(3)],
				LossPlace: LossPlace(r.IntN(2)),
				MTU:       []int{0, 576, 9000}[r.IntN(3)],
				Down:      r.IntN(8) == 0,
				Seed:      uint64(r.IntN(2)),
			}
			if r.IntN(2) == 0 {
				s.Jitter = s.Delay / 2
			}
			if r.IntN(2) == 0 {
				s.Reorder = Reorder{Probability: 0.3, Hold: time.Millisecond}
			}
			if r.IntN(3) == 0 {
				s.Policer = Policer{RateBps: 2_000_000, BurstBytes: 9000, PerFlow: r.IntN(2) == 0}
			}
			s.ACKThinning = r.IntN(4)
			if r.IntN(3) == 0 {
				s.Aggregate = Aggregation{Every: time.Duration(1 + r.Int64N(3*ms)), Bytes: r.IntN(2) * 5000}
			}
			if r.IntN(4) == 0 {
				s.RateLoss = RateLoss{FromBps: 1e6, ToBps: 20e6, Share: 0.5}
			}
			if r.IntN(4) == 0 {
				s.RateBps, s.Trace = 0, traces[r.IntN(len(traces))]
			}
			if s.RateBps > 0 {
				s.AQM.Algorithm = AQMAlgorithm(r.IntN(len(aqmNames)))
				if s.AQM.Algorithm != NoAQM {
					s.AQM.Target, s.AQM.ECN = time.Millisecond, r.IntN(2) == 0
				}
				s.MarkAbove = time.Duration(r.Int64N(2)) * time.Millisecond
				if s.AQM.Algorithm == CoDel || s.AQM.Algorithm == FQCoDel {
					s.AQM.Interval = 5 * time.Millisecond
				}
			}
			if err := s.Validate(); err != nil {
				t.Fatal(err)
			}
			return s
		}
		b := newBench(choose())
		check := func() {
			t.Helper()
			c := b.counters
			sum := c.PacketsDelivered + c.Lost + c.Thinned + c.Policed + c.QueueDrops + c.AQMDrops + c.TooBig + c.Outage + c.WriteErrors + uint64(b.inFlight())
			if sum != c.PacketsIn {
				t.Fatalf("seed %d: %d packets came in, %d are accounted for: %+v", seed, c.PacketsIn, sum, c)
			}
		}
		for range 3000 {
			switch r.IntN(10) {
			case 0:
				s := choose()
				b.set(b.now, s, s.QueueLimitBytes(s.Delay))
			case 1, 2, 3:
				b.send(40 + r.IntN(2000))
			case 6:
				for range r.IntN(20) {
					b.sendSuper(&superPacket{packet: tcpACK(r.IntN(3), r.IntN(100)), segments: 1})
				}
			case 4, 5:
				packet, h := tcpSuperPacket(4+2*r.IntN(2), 1+r.IntN(60000), 100+r.IntN(1400), 0)
				p := new(superPacket)
				p.parse(packet, h)
				b.sendSuper(p)
			default:
				b.run(b.now + r.Int64N(2*ms))
			}
			check()
		}
		s := Settings{}
		b.set(b.now, s, 0)
		b.run(b.now + 1000*ms)
		check()
		if b.inFlight() != 0 || b.live != 0 || b.heldBytes != 0 || b.queuedBytes != 0 {
			t.Errorf("seed %d: left over: %d packets, %d super-packets, %d bytes held, %d queued",
				seed, b.inFlight(), b.live, b.heldBytes, b.queuedBytes)
		}
	}
}
