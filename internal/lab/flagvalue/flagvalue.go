// Package flagvalue parses the flags of the lab's paths and experiments, with one
// wording for mistakes.
package flagvalue

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/lab/link"
	"longhaul/internal/units"
)

// Add adds a flag. set parses its value into a field of the caller. The help shows
// usual as its default.
func Add(flags *pflag.FlagSet, name, usage, usual string, set func(string) error) {
	flags.Var(&value{text: usual, set: set}, name, usage)
}

// value is a flag that set parses into a field of the caller.
type value struct {
	text string
	set  func(string) error
}

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return "value" }
func (v *value) Set(s string) error {
	if err := v.set(s); err != nil {
		return err
	}
	v.text = s
	return nil
}

// Duration parses a duration like 63ms.
func Duration(d *time.Duration) func(string) error {
	return func(s string) error {
		value, err := units.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%w: write it like 63ms", err)
		}
		*d = value
		return nil
	}
}

// Share parses a share like 10% or 0.1.
func Share(share *float64) func(string) error {
	return func(s string) error {
		number, percent := strings.CutSuffix(s, "%")
		value, err := strconv.ParseFloat(number, 64)
		if percent {
			value /= 100
		}
		if err != nil || !(value >= 0 && value <= 1) {
			return fmt.Errorf("invalid share %q: write it like 10%% or 0.1", s)
		}
		*share = value
		return nil
	}
}

// Rate parses a rate like 100Mbit into bits per second; 0 is no bound.
func Rate(rateBps *int64) func(string) error {
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

// CoDel parses the queue management: codel or none.
func CoDel(codel *link.CoDel) func(string) error {
	return func(s string) error {
		switch s {
		case "none":
			*codel = link.CoDel{}
		case "codel":
			*codel = link.DefaultCoDel()
		default:
			return fmt.Errorf("invalid queue management %q: choose codel or none", s)
		}
		return nil
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

// List is a flag with several values, separated by commas.
type List[T any] struct {
	Values []T
	Parse  func(string) (T, error)
	text   string
}

func (l *List[T]) String() string { return l.text }

// Type is the placeholder of the values in the help.
func (l *List[T]) Type() string { return "list" }

// Set replaces the values.
func (l *List[T]) Set(s string) error {
	l.Values, l.text = nil, s
	for part := range strings.SplitSeq(s, ",") {
		value, err := l.Parse(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		l.Values = append(l.Values, value)
	}
	return nil
}

// Parse makes a list's parser from one that fills a field.
func Parse[T any](into func(*T) func(string) error) func(string) (T, error) {
	return func(s string) (v T, err error) { return v, into(&v)(s) }
}
