package lab

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/flagvalue"
	"longhaul/internal/lab/link"
	"longhaul/internal/lab/linkflag"
	"longhaul/internal/units"
)

// Conditions are the settings of the two sites' WAN.
type Conditions struct {
	RTT     time.Duration
	Jitter  time.Duration
	RateBps int64
	// Loss applies to packets from site A to site B, LossBA to those on the way
	// back.
	Loss, LossBA link.Loss
	LossPlace    link.LossPlace
	// LossBurstPackets makes losses come in bursts of this mean length
	// (Gilbert-Elliott) at the same mean loss; up to 1 they are independent.
	LossBurstPackets float64
	QueueBytes       int
	QueueBDP         float64
	MTUAB, MTUBA     int
	Reorder          link.Reorder
	CoDel            link.CoDel   // of each direction's queue
	Policer          link.Policer // from site A to site B
	ATM              bool         // the bottleneck carries cells
	PacketsPerSecond int64        // maximum of the bottleneck, each way; 0 is no bound
	Seed             uint64
	LANMTU           int
	DownAB, DownBA   bool // outages
	ClassicEndHost   bool // end hosts like the AIX hosts of the mitre report
}

// MitreConditions are the conditions of the mitre report, with a WAN of 1 Gb/s.
func MitreConditions() Conditions {
	return Conditions{RTT: 63 * time.Millisecond, RateBps: 1e9, QueueBDP: 1, MTUAB: 1500, MTUBA: 1500, LANMTU: 1500, Seed: 1}
}

// LossyConditions are the conditions of the report on zone transfers to far name
// servers, with a bottleneck of 100 Mb/s.
func LossyConditions() Conditions {
	c := MitreConditions()
	c.RTT, c.RateBps, c.Loss = 300*time.Millisecond, 100e6, link.Loss{Probability: 0.1}
	return c
}

// Directions returns the settings of the WAN, each way.
func (c Conditions) Directions() (ab, ba link.Settings) {
	one := func(loss link.Loss, mtu int, down bool, seed uint64) link.Settings {
		return link.Settings{
			Delay: c.RTT / 2, Jitter: c.Jitter, RateBps: c.RateBps,
			Loss: inBursts(loss, c.LossBurstPackets), LossPlace: c.LossPlace,
			QueueBytes: c.QueueBytes, QueueBDP: c.QueueBDP, CoDel: c.CoDel,
			MTU: mtu, Reorder: c.Reorder, Down: down, Seed: seed,
			ATM: c.ATM, PacketsPerSecond: c.PacketsPerSecond,
		}
	}
	ab, ba = one(c.Loss, c.MTUAB, c.DownAB, c.Seed), one(c.LossBA, c.MTUBA, c.DownBA, c.Seed+1)
	ab.Policer = c.Policer
	return ab, ba
}

// inBursts turns independent loss into bursts of the given mean length with the same
// mean. Every packet in the bad state is lost. The chain leaves that state with
// probability 1/length, and enters it often enough to spend the share p there.
func inBursts(loss link.Loss, length float64) link.Loss {
	p := loss.Probability
	if length <= 1 || p == 0 || p == 1 || loss.ToBad > 0 {
		return loss
	}
	toGood := 1 / length
	return link.Loss{ToBad: min(1, toGood*p/(1-p)), ToGood: toGood, BadProbability: 1}
}

// Overheads of a full packet, in bytes.
const (
	ipv4HeaderBytes          = 20
	tcpHeaderTimestampsBytes = 32 // 20, and the timestamps option padded to 12 (RFC 7323)
)

// PayloadShare is the payload's share of a full packet from site A to site B.
func (c Conditions) PayloadShare() float64 {
	return float64(c.MTUAB-ipv4HeaderBytes-tcpHeaderTimestampsBytes) / float64(c.MTUAB)
}

// LimitBps returns the maximum goodput from site A to site B; 0 means no limit. It is
// the bottleneck's rate times the payload's share of a full packet, or the payload of
// the bottleneck's packets per second if that is less. A loss behind the bottleneck
// reduces it by the lost share. A packet lost before it takes no capacity.
func (c Conditions) LimitBps() float64 {
	ab, _ := c.Directions()
	if c.RateBps == 0 {
		return 0
	}
	limit := ab.CarriesBps(c.MTUAB) * c.PayloadShare()
	if c.LossPlace == link.LossAfter {
		limit *= 1 - c.Loss.Probability
	}
	return limit
}

// defaultPoliceBurst is the default burst of a policer, in bytes.
const defaultPoliceBurst = 64 << 10

// Flags adds the flags that describe the WAN. Each fills its part of c.
func (c *Conditions) Flags(flags *pflag.FlagSet) {
	add := func(name, usage, usual string, set func(string) error) { flagvalue.Add(flags, name, usage, usual, set) }
	add("rtt", "round-trip time of the WAN", c.RTT.String(), flagvalue.Duration(&c.RTT))
	add("jitter", "each packet's delay varies by ± this", c.Jitter.String(), flagvalue.Duration(&c.Jitter))
	add("rate", "rate each way, 0 for no bound", units.Rate(c.RateBps).String(), flagvalue.Rate(&c.RateBps))
	add("loss", "share lost from site A to B, like 10% or 0.1", "0", flagvalue.Share(&c.Loss.Probability))
	add("loss-back", "share lost from site B to A", "0", flagvalue.Share(&c.LossBA.Probability))
	add("loss-place", "loss before or after bottleneck", "before", linkflag.LossPlace(&c.LossPlace))
	add("loss-burst", "mean length of a loss burst, packets", "1", linkflag.LossBurst(&c.LossBurstPackets))
	add("queue", "queue: in BDPs, or like 256KiB", "1bdp", func(s string) error {
		if bdp, ok := strings.CutSuffix(s, "bdp"); ok {
			products, err := strconv.ParseFloat(bdp, 64)
			if err != nil || products <= 0 {
				return fmt.Errorf("invalid queue size %q: write it like 1bdp or 256KiB", s)
			}
			c.QueueBDP, c.QueueBytes = products, 0
			return nil
		}
		size, err := units.ParseSize(s)
		if err != nil || size < 1 {
			return fmt.Errorf("invalid queue size %q: write it like 1bdp or 256KiB", s)
		}
		c.QueueBDP, c.QueueBytes = 0, int(size)
		return nil
	})
	add("aqm", "queue management: codel (RFC 8289), or none", "none", linkflag.CoDel(&c.CoDel))
	add("mtu-ab", "largest packet from A to B, bytes", strconv.Itoa(c.MTUAB), linkflag.MTU(&c.MTUAB))
	add("mtu-ba", "largest packet from B to A, bytes", strconv.Itoa(c.MTUBA), linkflag.MTU(&c.MTUBA))
	add("reorder", "share held back, so that others overtake", "0", flagvalue.Share(&c.Reorder.Probability))
	add("reorder-hold", "time for which they are held back", "0s", flagvalue.Duration(&c.Reorder.Hold))
	add("police", "rate of a policer A to B, 0 for none", "0", func(s string) error {
		if s == "0" {
			c.Policer = link.Policer{}
			return nil
		}
		rate, err := units.ParseRate(s)
		if err != nil {
			return fmt.Errorf("%w: write it like 50Mbit", err)
		}
		c.Policer.RateBps = int64(rate)
		if c.Policer.BurstBytes == 0 {
			c.Policer.BurstBytes = defaultPoliceBurst
		}
		return nil
	})
	add("police-burst", "burst that the policer admits after a pause", "64KiB", func(s string) error {
		size, err := units.ParseSize(s)
		if err != nil || size < 1 {
			return fmt.Errorf("invalid burst %q: write it like 64KiB", s)
		}
		c.Policer.BurstBytes = int(size)
		return nil
	})
	add("packet-rate", "maximum packets per second each way, 0 for no bound", "0", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("invalid number of packets %q: write it like 5000", s)
		}
		c.PacketsPerSecond = n
		return nil
	})
	add("atm", "rate counts ATM cells, 53 bytes for 48: on or off", "off", func(s string) error {
		switch s {
		case "on", "off":
			c.ATM = s == "on"
			return nil
		}
		return fmt.Errorf("invalid value %q: choose on or off", s)
	})
	add("seed", "same seed, same packets lost", strconv.FormatUint(c.Seed, 10), func(s string) error {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return fmt.Errorf("invalid seed %q: choose a whole number from 0", s)
		}
		c.Seed = seed
		return nil
	})
	add("down", "outage: a-to-b, b-to-a, both or none", "none", func(s string) error {
		switch s {
		case "none":
			c.DownAB, c.DownBA = false, false
		case "a-to-b":
			c.DownAB, c.DownBA = true, false
		case "b-to-a":
			c.DownAB, c.DownBA = false, true
		case "both":
			c.DownAB, c.DownBA = true, true
		default:
			return fmt.Errorf("invalid outage %q: choose a-to-b, b-to-a, both or none", s)
		}
		return nil
	})
}
