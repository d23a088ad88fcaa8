package units

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes.
type Size int64

// Rate is a number of bits per second.
type Rate int64

// unit is a suffix and what it multiplies by.
type unit struct {
	suffix string
	factor float64
}

var sizeUnits = []unit{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40},
}

// ParseSize reads a number of bytes: "16MiB" (binary), "16MB" (decimal), "1460B" or a
// bare "1460". A lone letter is binary, as in iperf3 and GNU's programs: "16M" is "16MiB".
func ParseSize(s string) (Size, error) {
	number, factor := s, 1.0
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			number, factor = rest, u.factor
			break
		}
	}
	v, err := scale(number, factor)
	if err != nil {
		return 0, fmt.Errorf("invalid size %q", s)
	}
	return Size(v), nil
}

// String writes the size with the largest unit that keeps it whole.
func (s Size) String() string {
	for _, u := range []unit{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if f := Size(u.factor); s >= f && s%f == 0 {
			return fmt.Sprintf("%d%s", s/f, u.suffix)
		}
	}
	return fmt.Sprintf("%dB", s)
}

var rateUnits = []unit{{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"t", 1e12}, {"", 1}}

// ErrByteRate is returned for a rate in bytes per second.
var ErrByteRate = errors.New("rates are in bits per second")

// ParseRate reads a number of bits per second: "1Gbit", "100Mbit/s", "2.5Gb/s",
// "64kbit", or "100M" as iperf3 has it. Prefixes are decimal.
func ParseRate(s string) (Rate, error) {
	bad := fmt.Errorf("invalid rate %q", s)
	body := strings.TrimSuffix(s, "/s")
	perSecond := body != s
	switch {
	case len(body) > 3 && strings.EqualFold(body[len(body)-3:], "bit"):
		body = body[:len(body)-3]
	case perSecond && strings.HasSuffix(body, "b"):
		body = body[:len(body)-1]
	case perSecond && strings.HasSuffix(body, "B"), strings.HasSuffix(s, "Bps"), strings.HasSuffix(s, "bps"):
		// "bps" is bits to some tools and bytes to tc, so it is not guessed.
		return 0, ErrByteRate
	case perSecond || !strings.ContainsAny(body[max(0, len(body)-1):], "kKMGT"):
		return 0, bad
	}
	for _, u := range rateUnits {
		if n := len(body) - len(u.suffix); n > 0 && strings.EqualFold(body[n:], u.suffix) {
			v, err := scale(body[:n], u.factor)
			if err != nil {
				return 0, bad
			}
			return Rate(v), nil
		}
	}
	return 0, bad
}

// String writes the rate with the largest unit that keeps it whole.
func (r Rate) String() string {
	for _, u := range []unit{{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}} {
		if f := Rate(u.factor); r >= f && r%f == 0 {
			return fmt.Sprintf("%d%s", r/f, u.suffix)
		}
	}
	return fmt.Sprintf("%dbit", r)
}

// ParseDuration reads "1m30s", "250ms", days as "7d", and a bare number as
// seconds, as iperf3 and ping do.
func ParseDuration(s string) (time.Duration, error) {
	if v, err := scale(s, float64(time.Second)); err == nil {
		return time.Duration(v), nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		v, err := scale(days, float64(24*time.Hour))
		if err != nil {
			return 0, fmt.Errorf("invalid duration %q", s)
		}
		return time.Duration(v), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || strings.ContainsAny(s, "+-") {
		return 0, fmt.Errorf("invalid duration %q", s)
	}
	return d, nil
}

// FormatDuration writes whole days as days, and leaves zero parts out: "7d", "1m".
func FormatDuration(v time.Duration) string {
	if day := 24 * time.Hour; v >= 2*day && v%day == 0 {
		return fmt.Sprintf("%dd", v/day)
	}
	s := v.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// scale multiplies a plain decimal number, and refuses what is no whole number of units or does not fit.
func scale(number string, factor float64) (int64, error) {
	if number == "" || strings.Trim(number, "0123456789.") != "" {
		return 0, strconv.ErrSyntax
	}
	if v, err := strconv.ParseInt(number, 10, 64); err == nil {
		if v > math.MaxInt64/int64(factor) {
			return 0, strconv.ErrRange
		}
		return v * int64(factor), nil
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v*factor >= math.MaxInt64 {
		return 0, strconv.ErrRange
	}
	return int64(math.Round(v * factor)), nil
}
