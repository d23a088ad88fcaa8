package link

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// DefaultMTU is the MTU in bytes for Settings.MTU 0.
const DefaultMTU = 1500

const (
	minMTU = 68    // RFC 791, section 3.2: every link must carry it
	maxMTU = 65535 // largest IPv4 packet

	minRateBps = 1_000
	maxRateBps = 1_000_000_000_000
	maxDelay   = time.Hour

	maxACKThinning = 1000

	maxPacketsPerSecond = 100_000_000

	minQueuePackets = 64 // of the default queue limit, in full packets
)

// setting is a condition that a setting must meet.
type setting struct {
	field string
	value any
	ok    bool
	want  string // valid values
}

// Validate returns an error that names an invalid field and its valid values.
func (s Settings) Validate() error {
	for _, one := range slices.Concat(s.rateSettings(), s.lossSettings(), s.queueSettings(), s.orderSettings()) {
		if !one.ok {
			return fmt.Errorf("link settings: %s is %v, set it to %s", one.field, one.value, one.want)
		}
	}
	return nil
}

// share is a setting of a part of the packets. NaN is none.
func share(field string, value float64) setting {
	return setting{field, value, value >= 0 && value <= 1, "between 0 and 1"}
}

// upTo is a setting from 0 to a bound.
func upTo[T int | time.Duration](field string, value, high T) setting {
	return setting{field, value, within(value, 0, high), fmt.Sprintf("between 0 and %v", high)}
}

// within reports whether a value is from low to high.
func within[T cmp.Ordered](value, low, high T) bool { return low <= value && value <= high }

// zeroOr reports whether a value is 0 or from low to high.
func zeroOr[T int | int64 | time.Duration](value, low, high T) bool {
	return value == 0 || within(value, low, high)
}

func (s Settings) rateSettings() []setting {
	return []setting{
		upTo("Delay", s.Delay, maxDelay),
		{"Jitter", s.Jitter, within(s.Jitter, 0, s.Delay), fmt.Sprintf("between 0 and Delay, which is %v", s.Delay)},
		{"RateBps", s.RateBps, zeroOr(s.RateBps, minRateBps, maxRateBps),
			fmt.Sprintf("0 for no bound, or between %d and %d", minRateBps, int64(maxRateBps))},
		{"RateBps", s.RateBps, s.Trace == nil || s.RateBps == 0, "0, because Trace is set as well"},
		{"PacketsPerSecond", s.PacketsPerSecond, zeroOr(s.PacketsPerSecond, 1, maxPacketsPerSecond),
			fmt.Sprintf("0 for no bound, or between 1 and %d", maxPacketsPerSecond)},
		{"PacketsPerSecond", s.PacketsPerSecond, s.PacketsPerSecond == 0 || s.RateBps != 0, "0, or set RateBps as well"},
		{"ATM", s.ATM, !s.ATM || s.RateBps != 0, "false, or set RateBps as well"},
	}
}

func (s Settings) lossSettings() []setting {
	l, r := s.Loss, s.RateLoss
	return []setting{
		share("Loss.Probability", l.Probability),
		share("Loss.ToBad", l.ToBad),
		share("Loss.ToGood", l.ToGood),
		share("Loss.BadProbability", l.BadProbability),
		{"Loss.ToGood", l.ToGood, l.ToBad == 0 || l.ToGood > 0,
			"above 0, because Loss.ToBad is set and the bad state must end"},
		{"Loss.ToGood", l.ToGood, l.ToBad > 0 || l.ToGood == 0, "0, or set Loss.ToBad as well"},
		{"Loss.BadProbability", l.BadProbability, l.ToBad > 0 || l.BadProbability == 0, "0, or set Loss.ToBad as well"},
		{"RateLoss", fmt.Sprintf("from %d to %d", r.FromBps, r.ToBps),
			r == RateLoss{} || r.FromBps >= 0 && r.FromBps < r.ToBps && r.ToBps <= maxRateBps,
			fmt.Sprintf("a rate from 0 and a higher one up to %d", int64(maxRateBps))},
		share("RateLoss.Share", r.Share),
		share("Alter", s.Alter),
		upTo("ACKThinning", s.ACKThinning, maxACKThinning),
		upTo("Aggregate.Every", s.Aggregate.Every, time.Second),
		upTo("Aggregate.Bytes", s.Aggregate.Bytes, maxHeldBytes),
		{"Aggregate.Bytes", s.Aggregate.Bytes, s.Aggregate.Bytes == 0 || s.Aggregate.Every != 0,
			"0, or set Aggregate.Every as well, which ends a burst that stays small"},
		{"LossPlace", uint8(s.LossPlace), s.LossPlace <= LossAfter, "LossBefore or LossAfter"},
	}
}

func (s Settings) queueSettings() []setting {
	a := s.AQM
	return []setting{
		{"MTU", s.MTU, zeroOr(s.MTU, minMTU, maxMTU),
			fmt.Sprintf("0 for %d, or between %d and %d", DefaultMTU, minMTU, maxMTU)},
		{"QueueBytes", s.QueueBytes, s.QueueBytes == 0 || s.QueueBytes >= s.mtu(),
			fmt.Sprintf("0, or at least the MTU of %d so that one packet fits", s.mtu())},
		{"QueueBDP", s.QueueBDP, s.QueueBDP >= 0 && !math.IsInf(s.QueueBDP, 1), "0 or a positive number"},
		{"QueueBDP", s.QueueBDP, s.QueueBytes == 0 || s.QueueBDP == 0, "0, because QueueBytes is set as well"},
		{"AQM.Algorithm", uint8(a.Algorithm), int(a.Algorithm) < len(aqmNames), "NoAQM, CoDel, FQCoDel or PIE"},
		{"AQM.Target", a.Target, within(a.Target, 0, maxDelay),
			fmt.Sprintf("0 for the algorithm's default, or up to %v", maxDelay)},
		{"AQM.Interval", a.Interval, within(a.Interval, 0, maxDelay),
			fmt.Sprintf("0 for %v, or up to %v", codelInterval, maxDelay)},
		{"AQM.Target", a.Target, a.Algorithm != NoAQM || a.Target == 0, "0, or set AQM.Algorithm as well"},
		{"AQM.Interval", a.Interval, a.Algorithm == CoDel || a.Algorithm == FQCoDel || a.Interval == 0,
			"0, or set AQM.Algorithm to CoDel or FQCoDel"},
		{"AQM.ECN", a.ECN, a.Algorithm != NoAQM || !a.ECN, "false, or set AQM.Algorithm as well"},
		{"MarkAbove", s.MarkAbove, within(s.MarkAbove, 0, maxDelay),
			fmt.Sprintf("0 for no marks, or up to %v", maxDelay)},
		{"MarkAbove", s.MarkAbove, s.MarkAbove == 0 || s.bounded(), "0, or set RateBps as well"},
		{"AQM.Algorithm", a.Algorithm, a.Algorithm == NoAQM || s.bounded(), "NoAQM, or set RateBps as well"},
	}
}

func (s Settings) orderSettings() []setting {
	r, p := s.Reorder, s.Policer
	return []setting{
		share("Reorder.Probability", r.Probability),
		upTo("Reorder.Hold", r.Hold, maxDelay),
		{"Reorder.Hold", r.Hold, r.Probability == 0 || r.Hold != 0, "above 0, because Reorder.Probability is set"},
		{"Policer.RateBps", p.RateBps, zeroOr(p.RateBps, minRateBps, maxRateBps),
			fmt.Sprintf("0 for no policer, or between %d and %d", minRateBps, int64(maxRateBps))},
		{"Policer.BurstBytes", p.BurstBytes, p.RateBps == 0 || within(p.BurstBytes, s.mtu(), maxHeldBytes),
			fmt.Sprintf("at least the MTU of %d, so that a packet can pass, and at most %d", s.mtu(), maxHeldBytes)},
		{"Policer.PerFlow", p.PerFlow, p.RateBps != 0 || !p.PerFlow, "false, or set Policer.RateBps as well"},
		{"Policer.BurstBytes", p.BurstBytes, p.RateBps != 0 || p.BurstBytes == 0, "0, or set Policer.RateBps as well"},
	}
}

func (s Settings) mtu() int {
	if s.MTU == 0 {
		return DefaultMTU
	}
	return s.MTU
}

// QueueLimitBytes is the bound of the bottleneck's queue if the other
// direction's delay is reverse. It is 0, no bound, without a rate.
func (s Settings) QueueLimitBytes(reverse time.Duration) int {
	if !s.bounded() {
		return 0
	}
	if s.QueueBytes > 0 {
		return s.QueueBytes
	}
	bdp := float64(s.MeanBps()) / 8 * (s.Delay + reverse).Seconds()
	if s.QueueBDP > 0 {
		return clampBytes(bdp*s.QueueBDP, s.mtu())
	}
	return clampBytes(bdp, minQueuePackets*s.mtu())
}

func clampBytes(bytes float64, minBytes int) int {
	return int(min(max(math.Ceil(bytes), float64(minBytes)), maxHeldBytes))
}
