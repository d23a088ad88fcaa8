package doctor

import (
	"fmt"
	"math"
	"time"
)

func zeroIfInf(v float64) float64 {
	if math.IsInf(v, 0) {
		return 0
	}
	return v
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func count(v float64) string { return fmt.Sprintf("%.0f", v) }

func percent(share float64) string {
	switch p := 100 * share; {
	case p >= 10:
		return fmt.Sprintf("%.0f %%", p)
	case p >= 1:
		return fmt.Sprintf("%.1f %%", p)
	default:
		return fmt.Sprintf("%.2g %%", p)
	}
}

// full writes a time that must not look longer than it is.
func full(d time.Duration) string {
	return fmt.Sprintf("%.2f s", d.Truncate(10*time.Millisecond).Seconds())
}
