package lab

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/units"
	"longhaul/lab/link"
	"longhaul/lab/linkflag"
)

// Conditions are the settings of the two sites' WAN.
type Conditions struct {
	RTT     time.Duration
	Jitter  time.Duration
	RateBps int64
	// Trace and TraceBack are the bottlenecks from site A to site B and on the way
	// back over time, in place of RateBps, and of RTT if they have delays.
	Trace, TraceBack *link.Trace
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
	AQM              link.AQM      // of each direction's queue
	MarkAbove        time.Duration // each direction's queue marks packets that waited this long; 0 marks none
	Policer          link.Policer  // from site A to site B
	RateLoss         link.RateLoss // from site A to site B
	// ACKThinning passes one of so many acknowledgements from site B to site A.
	ACKThinning int
	// Aggregate and AggregateBack gather packets into bursts from site A to site B and
	// on the way back. AggregateBytes ends a burst early, both ways; 0 does not.
	Aggregate, AggregateBack time.Duration
	AggregateBytes           int
	ATM                      bool  // the bottleneck carries cells
	PacketsPerSecond         int64 // maximum of the bottleneck, each way; 0 is no bound
	Seed                     uint64
	LANMTU                   int
	DownAB, DownBA           bool // outages
	ClassicEndHost           bool // end hosts like the AIX hosts of the mitre report
	HostECN                  HostECN
	IPv6                     bool // of the transfer whose limit is of interest
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

// WithTraces returns the conditions with the rate and the round-trip time that the
// traces have in the mean. The rate is that of Trace, if there is one; each way has the
// delay of its own trace, or of the other one.
func (c Conditions) WithTraces() Conditions {
	if c.Trace != nil {
		c.RateBps = c.Trace.MeanBps()
	}
	ab, ba := c.delays()
	c.RTT = ab + ba
	return c
}

// delays returns the propagation delay each way.
func (c Conditions) delays() (ab, ba time.Duration) {
	ab, ba = c.RTT/2, c.RTT/2
	hasDelay := func(t *link.Trace) bool { return t != nil && t.HasDelay() }
	switch {
	case hasDelay(c.Trace) && hasDelay(c.TraceBack):
		return c.Trace.MeanDelay(), c.TraceBack.MeanDelay()
	case hasDelay(c.Trace):
		return c.Trace.MeanDelay(), c.Trace.MeanDelay()
	case hasDelay(c.TraceBack):
		return c.TraceBack.MeanDelay(), c.TraceBack.MeanDelay()
	}
	return ab, ba
}

// Directions returns the settings of the WAN, each way.
func (c Conditions) Directions() (ab, ba link.Settings) {
	c = c.WithTraces()
	delayAB, delayBA := c.delays()
	one := func(delay time.Duration, trace *link.Trace, loss link.Loss, mtu int, down bool, seed uint64) link.Settings {
		rateBps := c.RateBps
		if trace != nil {
			rateBps = 0
		}
		return link.Settings{
			Delay: delay, Jitter: c.Jitter, RateBps: rateBps, Trace: trace,
			Loss: inBursts(loss, c.LossBurstPackets), LossPlace: c.LossPlace,
			QueueBytes: c.QueueBytes, QueueBDP: c.QueueBDP, AQM: c.AQM, MarkAbove: c.MarkAbove,
			MTU: mtu, Reorder: c.Reorder, Down: down, Seed: seed,
			ATM: c.ATM, PacketsPerSecond: c.PacketsPerSecond,
		}
	}
	ab = one(delayAB, c.Trace, c.Loss, c.MTUAB, c.DownAB, c.Seed)
	ba = one(delayBA, c.TraceBack, c.LossBA, c.MTUBA, c.DownBA, c.Seed+1)
	ab.Policer, ab.RateLoss, ba.ACKThinning = c.Policer, c.RateLoss, c.ACKThinning
	for _, way := range []struct {
		s     *link.Settings
		every time.Duration
	}{{&ab, c.Aggregate}, {&ba, c.AggregateBack}} {
		if way.every > 0 {
			way.s.Aggregate = link.Aggregation{Every: way.every, Bytes: c.AggregateBytes}
		}
	}
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
	ipv6HeaderBytes          = 40
	tcpHeaderTimestampsBytes = 32 // 20, and the timestamps option padded to 12 (RFC 7323)
)

// PayloadShare is the payload's share of a full packet from site A to site B.
func (c Conditions) PayloadShare() float64 {
	header := ipv4HeaderBytes
	if c.IPv6 {
		header = ipv6HeaderBytes
	}
	return float64(c.MTUAB-header-tcpHeaderTimestampsBytes) / float64(c.MTUAB)
}

// LimitBps returns the maximum goodput from site A to site B; 0 means no limit. It is
// the bottleneck's rate times the payload's share of a full packet, or the payload of
// the bottleneck's packets per second if that is less. A trace counts with its mean. A loss behind the bottleneck
// reduces it by the lost share. A packet lost before it takes no capacity.
func (c Conditions) LimitBps() float64 {
	ab, _ := c.Directions()
	if ab.MeanBps() == 0 {
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

// TraceFlags adds --trace and --trace-back.
func (c *Conditions) TraceFlags(flags *pflag.FlagSet) {
	linkflag.AddTrace(flags, &c.Trace, "trace", "rate from site A to B over time, and delay, or none")
	linkflag.AddTrace(flags, &c.TraceBack, "trace-back", "the same from site B to A, or none")
}

// AccessFlags adds the flags of what access networks do to packets.
func (c *Conditions) AccessFlags(flags *pflag.FlagSet) {
	linkflag.AddRateLoss(flags, &c.RateLoss)
	flagvalue.AddCount(flags, &c.ACKThinning, "ack-thinning", "one of N ACKs passes from site B to A (0: all)")
	flagvalue.AddDelay(flags, &c.Aggregate, "aggregate", "packets leave in bursts, this far apart, A to B (0: not)")
	flagvalue.AddDelay(flags, &c.AggregateBack, "aggregate-back", "the same from site B to A (0: not)")
	flagvalue.Add(flags, "SIZE", "aggregate-bytes", "end of a burst, like 32KiB (0: no bound)", "0", func(s string) error {
		size, err := units.ParseSize(s)
		if s != "0" && (err != nil || size < 1) {
			return fmt.Errorf("invalid burst %q: write it like 32KiB", s)
		}
		c.AggregateBytes = int(size)
		return nil
	})
}

// Flags adds the flags that describe the WAN. Each fills its part of c.
func (c *Conditions) Flags(flags *pflag.FlagSet) {
	flagvalue.AddDelay(flags, &c.RTT, "rtt", "round-trip time of the WAN")
	linkflag.AddJitter(flags, &c.Jitter)
	flagvalue.AddRate(flags, &c.RateBps, "rate", "rate each way (0: no bound)")
	c.TraceFlags(flags)
	flagvalue.AddShare(flags, &c.Loss.Probability, "loss", "share lost from site A to B, like 10% (0: none)")
	flagvalue.AddShare(flags, &c.LossBA.Probability, "loss-back", "share lost from site B to A (0: none)")
	linkflag.AddLossPlace(flags, &c.LossPlace)
	linkflag.AddLossBurst(flags, &c.LossBurstPackets)
	flagvalue.Add(flags, "SIZE", "queue", "queue of the bottleneck: like 256KiB, or in BDP", "1bdp", func(s string) error {
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
	linkflag.AddAQM(flags, &c.AQM, &c.MarkAbove)
	flagvalue.Add(flags, "BYTES", "mtu", "largest packet from site A to B", strconv.Itoa(c.MTUAB), linkflag.MTU(&c.MTUAB))
	flagvalue.Add(flags, "BYTES", "mtu-back", "largest packet from site B to A", strconv.Itoa(c.MTUBA), linkflag.MTU(&c.MTUBA))
	flagvalue.AddShare(flags, &c.Reorder.Probability, "reorder", "share held back, so that others overtake (0: none)")
	flagvalue.AddDelay(flags, &c.Reorder.Hold, "reorder-hold", "how long they are held back (0: not at all)")
	flagvalue.Add(flags, "RATE", "police", "rate of a policer from A to B (0: none)", "0", func(s string) error {
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
	flagvalue.Add(flags, "SIZE", "police-burst", "burst that the policer admits after a pause", "64KiB", func(s string) error {
		size, err := units.ParseSize(s)
		if err != nil || size < 1 {
			return fmt.Errorf("invalid burst %q: write it like 64KiB", s)
		}
		c.Policer.BurstBytes = int(size)
		return nil
	})
	flagvalue.Add(flags, "SCOPE", "police-scope", "a policer for the whole link, or for each flow: link, flow", "link", linkflag.PoliceScope(&c.Policer.PerFlow))
	c.AccessFlags(flags)
	flagvalue.Add(flags, "N", "packet-rate", "maximum packets per second each way (0: no bound)", "0", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("invalid number of packets %q: write it like 5000", s)
		}
		c.PacketsPerSecond = n
		return nil
	})
	flagvalue.Add(flags, "STATE", "atm", "rate counts ATM cells, 53 bytes for 48: on or off", "off", linkflag.OnOff(&c.ATM))
	c.HostECN.Flag(flags)
	flagvalue.AddCount(flags, &c.Seed, "seed", "seed: with the same one, the same packets are lost")
	flagvalue.Add(flags, "DIRECTION", "down", "outage: a-to-b, b-to-a, both or none", "none", func(s string) error {
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
