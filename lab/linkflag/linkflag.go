// Package linkflag parses the flags that describe an emulated link, with one wording
// for mistakes.
package linkflag

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/link"
)

// AddJitter adds --jitter.
func AddJitter(flags *pflag.FlagSet, jitter *time.Duration) {
	flagvalue.AddDelay(flags, jitter, "jitter", "each packet's delay varies by ± this (0: not at all)")
}

// AddLossPlace adds --loss-place.
func AddLossPlace(flags *pflag.FlagSet, place *link.LossPlace) {
	flagvalue.Add(flags, "PLACE", "loss-place", "loss before or after the bottleneck", "before", LossPlace(place))
}

// AddLossBurst adds --loss-burst.
func AddLossBurst(flags *pflag.FlagSet, packets *float64) {
	flagvalue.Add(flags, "N", "loss-burst", "mean length of a loss burst, in packets", "1", LossBurst(packets))
}

// AddAQM adds --aqm, --ecn and --mark-above.
func AddAQM(flags *pflag.FlagSet, aqm *link.AQM, markAbove *time.Duration) {
	flagvalue.Add(flags, "AQM", "aqm", "the queue's management: codel, fq_codel, pie or none", "none", AQM(aqm))
	flagvalue.Add(flags, "STATE", "ecn", "the AQM marks packets instead of dropping them: on or off", "off", OnOff(&aqm.ECN))
	flagvalue.AddDelay(flags, markAbove, "mark-above", "mark packets that waited this long in the queue (0: none)")
}

// AddTrace adds a flag for the file of a trace.
func AddTrace(flags *pflag.FlagSet, trace **link.Trace, name, usage string) {
	flags.Var(&traceValue{trace: trace}, name, usage)
}

// traceValue is the file of a trace. Its text is the file's absolute path, for another
// process that reads it.
type traceValue struct {
	path  string
	trace **link.Trace
}

func (v *traceValue) String() string { return v.path }
func (v *traceValue) Type() string   { return "FILE" }
func (v *traceValue) Set(file string) error {
	if file == "none" {
		v.path, *v.trace = file, nil
		return nil
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	trace, err := link.ReadTrace(path)
	if err != nil {
		return err
	}
	v.path, *v.trace = path, trace
	return nil
}

// OnOff parses on or off.
func OnOff(on *bool) func(string) error {
	return func(s string) error {
		if s != "on" && s != "off" {
			return fmt.Errorf("invalid value %q: choose on or off", s)
		}
		*on = s == "on"
		return nil
	}
}

// AddRateLoss adds --rate-loss.
func AddRateLoss(flags *pflag.FlagSet, loss *link.RateLoss) {
	flagvalue.Add(flags, "RATES", "rate-loss", "loss that grows with the rate, like 10Mbit-100Mbit:10%", "none", RateLoss(loss))
}

// RateLoss parses a loss that grows between two rates, like 10Mbit-100Mbit:10%, or none.
func RateLoss(loss *link.RateLoss) func(string) error {
	return func(s string) error {
		if s == "none" {
			*loss = link.RateLoss{}
			return nil
		}
		var parsed link.RateLoss
		rates, share, _ := strings.Cut(s, ":")
		from, to, _ := strings.Cut(rates, "-")
		if flagvalue.Rate(&parsed.FromBps)(from) != nil || flagvalue.Rate(&parsed.ToBps)(to) != nil ||
			flagvalue.Share(&parsed.Share)(share) != nil || parsed.FromBps >= parsed.ToBps {
			return fmt.Errorf("invalid loss %q: write two rates and the loss at the second, like 10Mbit-100Mbit:10%%", s)
		}
		*loss = parsed
		return nil
	}
}

// PoliceScope parses link, or flow for a policer of each flow.
func PoliceScope(perFlow *bool) func(string) error {
	return func(s string) error {
		if s != "link" && s != "flow" {
			return fmt.Errorf("invalid scope %q: choose link or flow", s)
		}
		*perFlow = s == "flow"
		return nil
	}
}

// AddHostBuffers adds --host-buffers, which has its default already.
func AddHostBuffers(flags *pflag.FlagSet, products *float64, usage string) {
	flagvalue.Add(flags, "BDP", "host-buffers", usage, fmt.Sprint(*products), BDP(products))
}

// BDP parses a number of bandwidth-delay products; 0 is the kernel's own size.
func BDP(products *float64) func(string) error {
	return func(s string) error {
		value, err := strconv.ParseFloat(strings.TrimSuffix(s, "bdp"), 64)
		if err != nil || !(value >= 0 && value <= 1000) {
			return fmt.Errorf("invalid size %q: write it in bandwidth-delay products, like 6 or 0.5", s)
		}
		*products = value
		return nil
	}
}

// LossPlace parses before or after.
func LossPlace(place *link.LossPlace) func(string) error {
	return func(s string) error {
		switch s {
		case "before":
			*place = link.LossBefore
		case "after":
			*place = link.LossAfter
		default:
			return fmt.Errorf("invalid place %q: choose before or after", s)
		}
		return nil
	}
}

// AQM parses the name of an algorithm of queue management.
func AQM(aqm *link.AQM) func(string) error {
	return func(s string) (err error) {
		aqm.Algorithm, err = link.ParseAQM(s)
		return err
	}
}

// LossBurst parses the mean length of a loss burst in packets.
func LossBurst(packets *float64) func(string) error {
	return func(s string) error {
		value, err := strconv.ParseFloat(s, 64)
		if err != nil || !(value >= 1 && value <= 1e6) {
			return fmt.Errorf("invalid burst length %q: choose a number from 1", s)
		}
		*packets = value
		return nil
	}
}

// MTU parses an MTU in bytes. The minimum is IPv4's (RFC 791), the maximum the largest
// IP packet.
func MTU(mtu *int) func(string) error {
	return func(s string) error {
		value, err := strconv.Atoi(s)
		if err != nil || value < 68 || value > 65535 {
			return fmt.Errorf("invalid MTU %q: choose a number of bytes from 68 to 65535", s)
		}
		*mtu = value
		return nil
	}
}
