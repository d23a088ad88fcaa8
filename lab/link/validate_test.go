package link

import (
	"math"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	good := []Settings{
		{},
		{Delay: time.Hour, Jitter: time.Hour, RateBps: maxRateBps, Loss: Loss{Probability: 1}, LossPlace: LossAfter, MTU: maxMTU, QueueBytes: maxMTU},
		{RateBps: minRateBps, QueueBDP: 0.001, Loss: Loss{ToBad: 1, ToGood: 1, BadProbability: 1}, MTU: minMTU},
		{RateLoss: RateLoss{FromBps: 1, ToBps: 2, Share: 1}, ACKThinning: 8, Aggregate: Aggregation{Every: time.Millisecond, Bytes: 9}},
		{Trace: new(Trace), AQM: AQM{Algorithm: CoDel}, MarkAbove: 1},
		{Reorder: Reorder{Probability: 1, Hold: 1}, Down: true, Seed: math.MaxUint64},
		{Policer: Policer{RateBps: minRateBps, BurstBytes: DefaultMTU}},
		{RateBps: minRateBps, AQM: AQM{Algorithm: CoDel}},
		{RateBps: minRateBps, AQM: AQM{Algorithm: FQCoDel, Target: time.Hour, Interval: time.Hour}},
		{RateBps: minRateBps, AQM: AQM{Algorithm: PIE, Target: time.Second}},
	}
	for _, s := range good {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, test := range []struct {
		s    Settings
		want string
	}{
		{Settings{Delay: -1}, "link settings: Delay is -1ns, set it to between 0 and 1h0m0s"},
		{Settings{Delay: 1, Jitter: 2}, "link settings: Jitter is 2ns, set it to between 0 and Delay, which is 1ns"},
		{Settings{RateBps: -5}, "link settings: RateBps is -5, set it to 0 for no bound, or between 1000 and 1000000000000"},
		{Settings{RateBps: 999}, "link settings: RateBps is 999, set it to 0 for no bound, or between 1000 and 1000000000000"},
		{Settings{RateBps: 1e6, Trace: new(Trace)}, "link settings: RateBps is 1000000, set it to 0, because Trace is set as well"},
		{Settings{PacketsPerSecond: 5}, "link settings: PacketsPerSecond is 5, set it to 0, or set RateBps as well"},
		{Settings{RateBps: 1e6, PacketsPerSecond: -1}, "link settings: PacketsPerSecond is -1, set it to 0 for no bound, or between 1 and 100000000"},
		{Settings{ATM: true}, "link settings: ATM is true, set it to false, or set RateBps as well"},
		{Settings{Loss: Loss{Probability: 1.5}}, "link settings: Loss.Probability is 1.5, set it to between 0 and 1"},
		{Settings{Loss: Loss{Probability: math.NaN()}}, "link settings: Loss.Probability is NaN, set it to between 0 and 1"},
		{Settings{Loss: Loss{ToBad: -0.1}}, "link settings: Loss.ToBad is -0.1, set it to between 0 and 1"},
		{Settings{Loss: Loss{ToBad: 0.1}}, "link settings: Loss.ToGood is 0, set it to above 0, because Loss.ToBad is set and the bad state must end"},
		{Settings{Loss: Loss{ToGood: 2}}, "link settings: Loss.ToGood is 2, set it to between 0 and 1"},
		{Settings{Loss: Loss{ToGood: 0.2}}, "link settings: Loss.ToGood is 0.2, set it to 0, or set Loss.ToBad as well"},
		{Settings{Loss: Loss{BadProbability: 0.2}}, "link settings: Loss.BadProbability is 0.2, set it to 0, or set Loss.ToBad as well"},
		{Settings{Loss: Loss{BadProbability: -1}}, "link settings: Loss.BadProbability is -1, set it to between 0 and 1"},
		{Settings{LossPlace: 2}, "link settings: LossPlace is 2, set it to LossBefore or LossAfter"},
		{Settings{RateLoss: RateLoss{FromBps: 5, ToBps: 5, Share: 0.1}}, "link settings: RateLoss is from 5 to 5, set it to a rate from 0 and a higher one up to 1000000000000"},
		{Settings{RateLoss: RateLoss{ToBps: 5, Share: 2}}, "link settings: RateLoss.Share is 2, set it to between 0 and 1"},
		{Settings{ACKThinning: -1}, "link settings: ACKThinning is -1, set it to between 0 and 1000"},
		{Settings{Aggregate: Aggregation{Every: time.Hour}}, "link settings: Aggregate.Every is 1h0m0s, set it to between 0 and 1s"},
		{Settings{Aggregate: Aggregation{Every: 1, Bytes: -1}}, "link settings: Aggregate.Bytes is -1, set it to between 0 and 1073741824"},
		{Settings{Aggregate: Aggregation{Bytes: 1}}, "link settings: Aggregate.Bytes is 1, set it to 0, or set Aggregate.Every as well, which ends a burst that stays small"},
		{Settings{Policer: Policer{PerFlow: true}}, "link settings: Policer.PerFlow is true, set it to false, or set Policer.RateBps as well"},
		{Settings{MTU: 67}, "link settings: MTU is 67, set it to 0 for 1500, or between 68 and 65535"},
		{Settings{QueueBytes: 1499}, "link settings: QueueBytes is 1499, set it to 0, or at least the MTU of 1500 so that one packet fits"},
		{Settings{QueueBDP: math.Inf(1)}, "link settings: QueueBDP is +Inf, set it to 0 or a positive number"},
		{Settings{QueueBDP: math.NaN()}, "link settings: QueueBDP is NaN, set it to 0 or a positive number"},
		{Settings{QueueBytes: 1500, QueueBDP: 1}, "link settings: QueueBDP is 1, set it to 0, because QueueBytes is set as well"},
		{Settings{Reorder: Reorder{Probability: 2}}, "link settings: Reorder.Probability is 2, set it to between 0 and 1"},
		{Settings{Reorder: Reorder{Hold: -1}}, "link settings: Reorder.Hold is -1ns, set it to between 0 and 1h0m0s"},
		{Settings{Reorder: Reorder{Probability: 0.1}}, "link settings: Reorder.Hold is 0s, set it to above 0, because Reorder.Probability is set"},
		{Settings{Policer: Policer{RateBps: 1, BurstBytes: 1500}}, "link settings: Policer.RateBps is 1, set it to 0 for no policer, or between 1000 and 1000000000000"},
		{Settings{Policer: Policer{RateBps: 1e6}}, "link settings: Policer.BurstBytes is 0, set it to at least the MTU of 1500, so that a packet can pass, and at most 1073741824"},
		{Settings{AQM: AQM{Algorithm: 9}}, "link settings: AQM.Algorithm is 9, set it to NoAQM, CoDel, FQCoDel or PIE"},
		{Settings{AQM: AQM{Algorithm: PIE}}, "link settings: AQM.Algorithm is pie, set it to NoAQM, or set RateBps as well"},
		{Settings{AQM: AQM{Algorithm: CoDel, Target: -1}}, "link settings: AQM.Target is -1ns, set it to 0 for the algorithm's default, or up to 1h0m0s"},
		{Settings{AQM: AQM{Algorithm: CoDel, Interval: -1}}, "link settings: AQM.Interval is -1ns, set it to 0 for 100ms, or up to 1h0m0s"},
		{Settings{AQM: AQM{Target: 1}}, "link settings: AQM.Target is 1ns, set it to 0, or set AQM.Algorithm as well"},
		{Settings{RateBps: 1e6, AQM: AQM{ECN: true}}, "link settings: AQM.ECN is true, set it to false, or set AQM.Algorithm as well"},
		{Settings{RateBps: 1e6, MarkAbove: -1}, "link settings: MarkAbove is -1ns, set it to 0 for no marks, or up to 1h0m0s"},
		{Settings{MarkAbove: 1}, "link settings: MarkAbove is 1ns, set it to 0, or set RateBps as well"},
		{Settings{RateBps: 1e6, AQM: AQM{Algorithm: PIE, Interval: 1}}, "link settings: AQM.Interval is 1ns, set it to 0, or set AQM.Algorithm to CoDel or FQCoDel"},
		{Settings{Policer: Policer{BurstBytes: 1500}}, "link settings: Policer.BurstBytes is 1500, set it to 0, or set Policer.RateBps as well"},
	} {
		err := test.s.Validate()
		if err == nil || err.Error() != test.want {
			t.Errorf("%+v:\n got %v\nwant %s", test.s, err, test.want)
		}
	}
}

func TestQueueLimitBytes(t *testing.T) {
	const oneWay = 31500 * time.Microsecond
	for _, test := range []struct {
		s    Settings
		want int
	}{
		{Settings{}, 0},
		{Settings{RateBps: 1e9, Delay: oneWay}, 7_875_000},
		{Settings{RateBps: 1e9, Delay: oneWay, QueueBDP: 2}, 15_750_000},
		{Settings{RateBps: 1e9, Delay: oneWay, QueueBytes: 30000}, 30000},
		{Settings{RateBps: 1e6, Delay: oneWay}, 64 * 1500},
		{Settings{RateBps: 1e6, Delay: oneWay, MTU: 9000}, 64 * 9000},
		{Settings{RateBps: 1e6, Delay: oneWay, QueueBDP: 0.01}, 1500},
	} {
		if got := test.s.QueueLimitBytes(oneWay); got != test.want {
			t.Errorf("%+v: %d bytes, want %d", test.s, got, test.want)
		}
	}
}

// TestChange holds that Change changes both directions, and leaves their other settings.
func TestChange(t *testing.T) {
	l := &Link{settings: [2]Settings{{Delay: 1}, {Delay: 2}}}
	for i := range l.workers {
		l.workers[i] = &worker{pipe: newPipe(l.settings[i], 1<<20, func(*superPacket) {})}
	}
	if err := l.Change(func(s *Settings) { s.Down = true }); err != nil {
		t.Fatal(err)
	}
	for dir, delay := range map[Direction]time.Duration{AToB: 1, BToA: 2} {
		if s := l.Settings(dir); !s.Down || s.Delay != delay {
			t.Errorf("%v: %+v", dir, s)
		}
	}
}
