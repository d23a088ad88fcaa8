package display

import (
	"fmt"
	"math"
	"time"
)

// Share writes a part of a whole, such as 0.25, in at most four characters. A
// share that is negative or NaN is not known: "-".
func Share(share float64) string {
	switch percent := 100 * share; {
	case math.IsNaN(share) || share < 0:
		return "-"
	case percent == 0:
		return "0%"
	case percent < 0.05:
		return "<.1%"
	case percent < 9.95:
		return fmt.Sprintf("%.1f%%", percent)
	default:
		return fmt.Sprintf("%.0f%%", percent)
	}
}

// Span writes a length of time in at most five characters. A negative one is
// not known: "-".
func Span(d time.Duration) string {
	if d < 0 {
		return "-"
	}
	return SpanSeconds(d.Seconds())
}

// SpanSeconds is [Span] of seconds. NaN is not known: "-".
func SpanSeconds(seconds float64) string {
	switch {
	case math.IsNaN(seconds):
		return "-"
	case seconds < 0.0009995:
		return fmt.Sprintf("%.0fµs", seconds*1e6)
	case seconds < 0.00995:
		return fmt.Sprintf("%.1fms", seconds*1e3)
	case seconds < 0.9995:
		return fmt.Sprintf("%.0fms", seconds*1e3)
	case seconds < 9.95:
		return fmt.Sprintf("%.1fs", seconds)
	}
	return Age(seconds)
}

// sparks are the heights of a sparkline.
var sparks = []rune("▁▂▃▄▅▆▇█")

// Sparkline draws figures from zero up to the greatest of them, one column
// each, the last ones where there are more than width. NaN is not known and
// leaves its column blank.
func Sparkline(figures []float64, width int) string {
	figures = figures[max(0, len(figures)-width):]
	most := 0.0
	for _, v := range figures {
		if v > most {
			most = v
		}
	}
	return SparklineTo(figures, most)
}

// SparklineTo draws figures from zero up to most, one column each. NaN is not
// known and leaves its column blank.
func SparklineTo(figures []float64, most float64) string {
	line := make([]rune, len(figures))
	for i, v := range figures {
		switch {
		case math.IsNaN(v):
			line[i] = ' '
		case most == 0:
			line[i] = sparks[0]
		default:
			line[i] = sparks[int(math.Round(v/most*float64(len(sparks)-1)))]
		}
	}
	return string(line)
}
