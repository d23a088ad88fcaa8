package units

import (
	"fmt"
	"strings"
	"time"
)

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
