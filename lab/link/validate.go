package link

import (
	"fmt"
	"math"
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

// Validate returns an error that names an invalid field and its valid values.
func (s Settings) Validate() error {
	refuse := func(field string, value any, want string) error {
		return fmt.Errorf("link settings: %s is %v, set it to %s", field, value, want)
	}
	share := func(v float64) bool { return v >= 0 && v <= 1 } // false for NaN

	switch {
	case s.Delay < 0 || s.Delay > maxDelay:
		return refuse("Delay", s.Delay, fmt.Sprintf("between 0 and %v", maxDelay))
	case s.Jitter < 0 || s.Jitter > s.Delay:
		return refuse("Jitter", s.Jitter, fmt.Sprintf("between 0 and Delay, which is %v", s.Delay))
	case s.RateBps != 0 && (s.RateBps < minRateBps || s.RateBps > maxRateBps):
		return refuse("RateBps", s.RateBps, fmt.Sprintf("0 for no bound, or between %d and %d", minRateBps, int64(maxRateBps)))
	case s.Trace != nil && s.RateBps != 0:
		return refuse("RateBps", s.RateBps, "0, because Trace is set as well")
	case s.PacketsPerSecond != 0 && (s.PacketsPerSecond < 1 || s.PacketsPerSecond > maxPacketsPerSecond):
		return refuse("PacketsPerSecond", s.PacketsPerSecond, fmt.Sprintf("0 for no bound, or between 1 and %d", maxPacketsPerSecond))
	case s.PacketsPerSecond != 0 && s.RateBps == 0:
		return refuse("PacketsPerSecond", s.PacketsPerSecond, "0, or set RateBps as well")
	case s.ATM && s.RateBps == 0:
		return refuse("ATM", s.ATM, "false, or set RateBps as well")
	case !share(s.Loss.Probability):
		return refuse("Loss.Probability", s.Loss.Probability, "between 0 and 1")
	case !share(s.Loss.ToBad):
		return refuse("Loss.ToBad", s.Loss.ToBad, "between 0 and 1")
	case !share(s.Loss.ToGood):
		return refuse("Loss.ToGood", s.Loss.ToGood, "between 0 and 1")
	case !share(s.Loss.BadProbability):
		return refuse("Loss.BadProbability", s.Loss.BadProbability, "between 0 and 1")
	case s.Loss.ToBad > 0 && s.Loss.ToGood == 0:
		return refuse("Loss.ToGood", 0, "above 0, because Loss.ToBad is set and the bad state must end")
	case s.Loss.ToBad == 0 && s.Loss.ToGood > 0:
		return refuse("Loss.ToGood", s.Loss.ToGood, "0, or set Loss.ToBad as well")
	case s.Loss.ToBad == 0 && s.Loss.BadProbability > 0:
		return refuse("Loss.BadProbability", s.Loss.BadProbability, "0, or set Loss.ToBad as well")
	case s.RateLoss != (RateLoss{}) && !(s.RateLoss.FromBps >= 0 && s.RateLoss.FromBps < s.RateLoss.ToBps && s.RateLoss.ToBps <= maxRateBps):
		return refuse("RateLoss", fmt.Sprintf("from %d to %d", s.RateLoss.FromBps, s.RateLoss.ToBps), fmt.Sprintf("a rate from 0 and a higher one up to %d", int64(maxRateBps)))
	case !share(s.RateLoss.Share):
		return refuse("RateLoss.Share", s.RateLoss.Share, "between 0 and 1")
	case !share(s.Alter):
		return refuse("Alter", s.Alter, "between 0 and 1")
	case s.ACKThinning < 0 || s.ACKThinning > maxACKThinning:
		return refuse("ACKThinning", s.ACKThinning, fmt.Sprintf("between 0 and %d", maxACKThinning))
	case s.Aggregate.Every < 0 || s.Aggregate.Every > time.Second:
		return refuse("Aggregate.Every", s.Aggregate.Every, fmt.Sprintf("between 0 and %v", time.Second))
	case s.Aggregate.Bytes < 0 || s.Aggregate.Bytes > maxHeldBytes:
		return refuse("Aggregate.Bytes", s.Aggregate.Bytes, fmt.Sprintf("between 0 and %d", maxHeldBytes))
	case s.Aggregate.Bytes > 0 && s.Aggregate.Every == 0:
		return refuse("Aggregate.Bytes", s.Aggregate.Bytes, "0, or set Aggregate.Every as well, which ends a burst that stays small")
	case s.LossPlace > LossAfter:
		return refuse("LossPlace", uint8(s.LossPlace), "LossBefore or LossAfter")
	case s.MTU != 0 && (s.MTU < minMTU || s.MTU > maxMTU):
		return refuse("MTU", s.MTU, fmt.Sprintf("0 for %d, or between %d and %d", DefaultMTU, minMTU, maxMTU))
	case s.QueueBytes < 0 || s.QueueBytes > 0 && s.QueueBytes < s.mtu():
		return refuse("QueueBytes", s.QueueBytes, fmt.Sprintf("0, or at least the MTU of %d so that one packet fits", s.mtu()))
	case !(s.QueueBDP >= 0) || math.IsInf(s.QueueBDP, 1):
		return refuse("QueueBDP", s.QueueBDP, "0 or a positive number")
	case s.QueueBytes > 0 && s.QueueBDP > 0:
		return refuse("QueueBDP", s.QueueBDP, "0, because QueueBytes is set as well")
	case int(s.AQM.Algorithm) >= len(aqmNames):
		return refuse("AQM.Algorithm", uint8(s.AQM.Algorithm), "NoAQM, CoDel, FQCoDel or PIE")
	case s.AQM.Target < 0 || s.AQM.Target > maxDelay:
		return refuse("AQM.Target", s.AQM.Target, fmt.Sprintf("0 for the algorithm's default, or up to %v", maxDelay))
	case s.AQM.Interval < 0 || s.AQM.Interval > maxDelay:
		return refuse("AQM.Interval", s.AQM.Interval, fmt.Sprintf("0 for %v, or up to %v", codelInterval, maxDelay))
	case s.AQM.Algorithm == NoAQM && s.AQM.Target != 0:
		return refuse("AQM.Target", s.AQM.Target, "0, or set AQM.Algorithm as well")
	case s.AQM.Algorithm != CoDel && s.AQM.Algorithm != FQCoDel && s.AQM.Interval != 0:
		return refuse("AQM.Interval", s.AQM.Interval, "0, or set AQM.Algorithm to CoDel or FQCoDel")
	case s.AQM.Algorithm == NoAQM && s.AQM.ECN:
		return refuse("AQM.ECN", s.AQM.ECN, "false, or set AQM.Algorithm as well")
	case s.MarkAbove < 0 || s.MarkAbove > maxDelay:
		return refuse("MarkAbove", s.MarkAbove, fmt.Sprintf("0 for no marks, or up to %v", maxDelay))
	case s.MarkAbove != 0 && !s.bounded():
		return refuse("MarkAbove", s.MarkAbove, "0, or set RateBps as well")
	case s.AQM.Algorithm != NoAQM && !s.bounded():
		return refuse("AQM.Algorithm", s.AQM.Algorithm, "NoAQM, or set RateBps as well")
	case !share(s.Reorder.Probability):
		return refuse("Reorder.Probability", s.Reorder.Probability, "between 0 and 1")
	case s.Reorder.Hold < 0 || s.Reorder.Hold > maxDelay:
		return refuse("Reorder.Hold", s.Reorder.Hold, fmt.Sprintf("between 0 and %v", maxDelay))
	case s.Reorder.Probability > 0 && s.Reorder.Hold == 0:
		return refuse("Reorder.Hold", s.Reorder.Hold, "above 0, because Reorder.Probability is set")
	case s.Policer.RateBps != 0 && (s.Policer.RateBps < minRateBps || s.Policer.RateBps > maxRateBps):
		return refuse("Policer.RateBps", s.Policer.RateBps, fmt.Sprintf("0 for no policer, or between %d and %d", minRateBps, int64(maxRateBps)))
	case s.Policer.RateBps != 0 && (s.Policer.BurstBytes < s.mtu() || s.Policer.BurstBytes > maxHeldBytes):
		return refuse("Policer.BurstBytes", s.Policer.BurstBytes, fmt.Sprintf("at least the MTU of %d, so that a packet can pass, and at most %d", s.mtu(), maxHeldBytes))
	case s.Policer.RateBps == 0 && s.Policer.PerFlow:
		return refuse("Policer.PerFlow", s.Policer.PerFlow, "false, or set Policer.RateBps as well")
	case s.Policer.RateBps == 0 && s.Policer.BurstBytes != 0:
		return refuse("Policer.BurstBytes", s.Policer.BurstBytes, "0, or set Policer.RateBps as well")
	}
	return nil
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
