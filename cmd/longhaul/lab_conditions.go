//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/lab"
	"longhaul/internal/lab/link"
	"longhaul/internal/units"
)

// defaultPoliceBurst is a policer's burst, in bytes, where none is given.
const defaultPoliceBurst = 64 << 10

// conditionFlags are the flags of lab up and lab set that describe the WAN.
// Each fills its part of c.
func conditionFlags(flags *pflag.FlagSet, c *lab.Conditions) {
	add := func(name, usage, shown string, set func(string) error) {
		flags.Var(&conditionFlag{shown: shown, set: set}, name, usage)
	}
	add("rtt", "round-trip time of the WAN", c.RTT.String(), durationInto(&c.RTT))
	add("jitter", "each packet's delay varies by ± this", c.Jitter.String(), durationInto(&c.Jitter))
	add("rate", "rate each way, 0 for no bound", units.Rate(c.RateBps).String(), rateInto(&c.RateBps))
	add("loss", "share lost from site A to B, like 10% or 0.1", "0", shareInto(&c.Loss.Probability))
	add("loss-back", "share lost from site B to A", "0", shareInto(&c.LossBA.Probability))
	add("loss-place", "lost before or after bottleneck", "before", lossPlaceInto(&c.LossPlace))
	add("loss-burst", "mean length of a loss burst, packets", "1", burstInto(&c.LossBurstPackets))
	add("queue", "queue: in BDPs, or like 256KiB", "1bdp", func(s string) error {
		if bdp, ok := strings.CutSuffix(s, "bdp"); ok {
			products, err := strconv.ParseFloat(bdp, 64)
			if err != nil || products <= 0 {
				return fmt.Errorf("%q is no queue size: write it like 1bdp or 256KiB", s)
			}
			c.QueueBDP, c.QueueBytes = products, 0
			return nil
		}
		size, err := units.ParseSize(s)
		if err != nil || size < 1 {
			return fmt.Errorf("%q is no queue size: write it like 1bdp or 256KiB", s)
		}
		c.QueueBDP, c.QueueBytes = 0, int(size)
		return nil
	})
	add("aqm", "queue management: codel (RFC 8289), or none", "none", aqmInto(&c.CoDel))
	add("mtu-ab", "largest packet from A to B, bytes", strconv.Itoa(c.MTUAB), mtuInto(&c.MTUAB))
	add("mtu-ba", "largest packet from B to A, bytes", strconv.Itoa(c.MTUBA), mtuInto(&c.MTUBA))
	add("reorder", "share held back, so that others overtake", "0", shareInto(&c.Reorder.Probability))
	add("reorder-hold", "for how long they are held back", "0s", durationInto(&c.Reorder.Hold))
	add("police", "rate that a policer admits A to B, 0 for none", "0", func(s string) error {
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
	add("police-burst", "what the policer admits after a pause", "64KiB", func(s string) error {
		size, err := units.ParseSize(s)
		if err != nil || size < 1 {
			return fmt.Errorf("%q is no burst: write it like 64KiB", s)
		}
		c.Policer.BurstBytes = int(size)
		return nil
	})
	add("packet-rate", "most packets per second each way, 0 for no bound", "0", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is no number of packets: write it like 5000", s)
		}
		c.PacketsPerSecond = n
		return nil
	})
	add("atm", "the rate is that of ATM cells, 53 bytes for 48: on or off", "off", func(s string) error {
		switch s {
		case "on", "off":
			c.ATM = s == "on"
			return nil
		}
		return fmt.Errorf("%q is neither on nor off", s)
	})
	add("seed", "same seed, same packets lost", strconv.FormatUint(c.Seed, 10), func(s string) error {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is no seed: choose a whole number from 0", s)
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
			return fmt.Errorf("%q is no outage: choose a-to-b, b-to-a, both or none", s)
		}
		return nil
	})
}

// conditionFlag is a flag whose value is parsed into a field elsewhere.
type conditionFlag struct {
	shown string
	set   func(string) error
}

func (f *conditionFlag) String() string { return f.shown }
func (f *conditionFlag) Type() string   { return "value" }
func (f *conditionFlag) Set(s string) error {
	if err := f.set(s); err != nil {
		return err
	}
	f.shown = s
	return nil
}

func durationInto(d *time.Duration) func(string) error {
	return func(s string) error {
		value, err := units.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%w: write it like 63ms", err)
		}
		*d = value
		return nil
	}
}

func shareInto(share *float64) func(string) error {
	return func(s string) error {
		number, percent := strings.CutSuffix(s, "%")
		value, err := strconv.ParseFloat(number, 64)
		if percent {
			value /= 100
		}
		if err != nil || !(value >= 0 && value <= 1) {
			return fmt.Errorf("%q is no share: write it like 10%% or 0.1", s)
		}
		*share = value
		return nil
	}
}

// rateInto reads a rate in bits per second, 0 for no bound.
func rateInto(rateBps *int64) func(string) error {
	return func(s string) error {
		if s == "0" {
			*rateBps = 0
			return nil
		}
		rate, err := units.ParseRate(s)
		if err != nil {
			return fmt.Errorf("%w: write it like 1Gbit or 100Mbit", err)
		}
		*rateBps = int64(rate)
		return nil
	}
}

func lossPlaceInto(place *link.LossPlace) func(string) error {
	return func(s string) error {
		switch s {
		case "before":
			*place = link.LossBefore
		case "after":
			*place = link.LossAfter
		default:
			return fmt.Errorf("%q is no place: choose before or after", s)
		}
		return nil
	}
}

// aqmInto reads what manages a queue beside its size.
func aqmInto(codel *link.CoDel) func(string) error {
	return func(s string) error {
		switch s {
		case "none":
			*codel = link.CoDel{}
		case "codel":
			*codel = link.DefaultCoDel()
		default:
			return fmt.Errorf("%q is no queue management: choose codel or none", s)
		}
		return nil
	}
}

func burstInto(packets *float64) func(string) error {
	return func(s string) error {
		value, err := strconv.ParseFloat(s, 64)
		if err != nil || !(value >= 1 && value <= 1e6) {
			return fmt.Errorf("%q is no burst length: choose a number from 1", s)
		}
		*packets = value
		return nil
	}
}

// The least MTU is that of IPv4 (RFC 791), the largest what an IP packet can be.
func mtuInto(mtu *int) func(string) error {
	return func(s string) error {
		value, err := strconv.Atoi(s)
		if err != nil || value < 68 || value > 65535 {
			return fmt.Errorf("%q is no MTU: choose a number of bytes from 68 to 65535", s)
		}
		*mtu = value
		return nil
	}
}
