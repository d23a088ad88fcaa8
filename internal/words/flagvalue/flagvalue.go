// Package flagvalue has the values of flags: each kind with one placeholder in the
// help, one parser and one wording for mistakes. docs/design/command-line.md lists
// the kinds.
package flagvalue

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"longhaul/internal/words/units"
)

// Add adds a flag. kind is its placeholder in the help, such as RATE; set parses its
// value into a field of the caller. The help shows usual as its default.
func Add(flags *pflag.FlagSet, kind, name, usage, usual string, set func(string) error) {
	flags.Var(&value{text: usual, kind: kind, set: set}, name, usage)
}

// AddDuration adds a flag for a length of time, which has its default already.
func AddDuration(flags *pflag.FlagSet, d *time.Duration, name, usage string) {
	usual := ""
	if *d != 0 {
		usual = units.FormatDuration(*d)
	}
	Add(flags, "DURATION", name, usage, usual, Duration(d))
}

// AddShare adds a flag for a share, which has its default already.
func AddShare(flags *pflag.FlagSet, share *float64, name, usage string) {
	usual := "0"
	if *share != 0 {
		usual = strconv.FormatFloat(100**share, 'g', -1, 64) + "%"
	}
	Add(flags, "SHARE", name, usage, usual, Share(share))
}

// AddRate adds a flag for a rate, which has its default already.
func AddRate(flags *pflag.FlagSet, rateBps *int64, name, usage string) {
	usual := "0"
	if *rateBps != 0 {
		usual = units.Rate(*rateBps).String()
	}
	Add(flags, "RATE", name, usage, usual, Rate(rateBps))
}

// AddCount adds a flag for a whole number, which has its default already.
func AddCount[T int | int64 | uint64](flags *pflag.FlagSet, n *T, name, usage string) {
	Add(flags, "N", name, usage, fmt.Sprint(*n), Count(n))
}

// AddNames adds a flag for several names, which has its default already. They are
// separated by commas, or the flag is given again.
func AddNames(flags *pflag.FlagSet, names *[]string, name, usage string) {
	given := false
	v := &value{text: strings.Join(*names, ","), kind: "LIST"}
	v.set = func(s string) error {
		var all []string
		if given {
			all = *names
		}
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); part == "" {
				return fmt.Errorf("missing name in %q: separate names by commas", s)
			}
			all = append(all, part)
		}
		*names, given = all, true
		return nil
	}
	flags.Var(v, name, usage)
}

// AddDurationOrOff adds a flag for a length of time that can be off, which is negative.
// It has its default already, and shows usual for it.
func AddDurationOrOff(flags *pflag.FlagSet, d *time.Duration, usual, name, usage string) {
	flags.Var(&value{text: usual, kind: "DURATION", set: func(s string) error {
		if s == "off" {
			*d = -1
			return nil
		}
		if err := Duration(d)(s); err != nil {
			return fmt.Errorf("%w, or off", err)
		}
		return nil
	}}, name, usage)
}

// value is a flag that set parses into a field of the caller.
type value struct {
	text string
	kind string // the placeholder in the help
	set  func(string) error
}

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return v.kind }
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
			return fmt.Errorf("%w: write it like 63ms, 1.5s, 2m or 1h, or as seconds", err)
		}
		*d = value
		return nil
	}
}

// AddDelay adds a flag for a delay of a path, which has its default already.
func AddDelay(flags *pflag.FlagSet, d *time.Duration, name, usage string) {
	usual := "0s"
	if *d != 0 {
		usual = units.FormatDuration(*d)
	}
	Add(flags, "DURATION", name, usage, usual, Delay(d))
}

// Delay parses a delay of a path like 63ms. It refuses a bare number: ping and ss print
// delays in milliseconds, and a path of 63 seconds is hardly meant.
func Delay(d *time.Duration) func(string) error {
	return func(s string) error {
		if s != "0" && s != "" && strings.Trim(s, "0123456789.") == "" {
			return fmt.Errorf("%s has no unit: write %[1]sms for milliseconds", s)
		}
		return Duration(d)(s)
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

// Count parses a whole number from 0.
func Count[T int | int64 | uint64](n *T) func(string) error {
	return func(s string) error {
		bits := 64
		if _, signed := any(*n).(uint64); !signed {
			bits = strconv.IntSize - 1
		}
		value, err := strconv.ParseUint(s, 10, bits)
		if err != nil {
			return fmt.Errorf("invalid number %q: write a whole number from 0", s)
		}
		*n = T(value)
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
func (l *List[T]) Type() string { return "LIST" }

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
