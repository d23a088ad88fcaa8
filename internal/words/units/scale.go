// Package units parses and prints rates, sizes, durations and times, for the command line, the
// configuration and JSON.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// unit is a suffix and what it multiplies by.
type unit struct {
	suffix string
	factor float64
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

// scaled writes a number with three digits and the unit that suits it.
func scaled(v, base float64, names []string) string {
	k := 0
	for v >= base && k < len(names)-1 {
		v /= base
		k++
	}
	if v >= 100 || k == 0 {
		return fmt.Sprintf("%.0f %s", v, names[k])
	}
	return fmt.Sprintf("%.3g %s", v, names[k])
}
