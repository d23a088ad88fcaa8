package units

import (
	"errors"
	"fmt"
	"strings"
)

// Rate is a number of bits per second.
type Rate int64

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

// FormatRate writes bits per second for people, with three digits: "1 Gb/s", "45.3 Mb/s".
func FormatRate(bps float64) string {
	return scaled(bps, 1000, []string{"b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"})
}
