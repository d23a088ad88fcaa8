package pair

import "time"

// stamp is a moment in a third of time.Time's memory, of which a flow has many:
// nanoseconds of the monotonic clock since the process began. Zero: none.
type stamp int64

var processBegan = time.Now()

func stampOf(t time.Time) stamp { return stamp(t.Sub(processBegan)) }

func stampNow() stamp { return stamp(time.Since(processBegan)) }

// IsZero reports whether the stamp is of no moment.
func (s stamp) IsZero() bool { return s == 0 }

// until is the time from the stamp to a later moment.
func (s stamp) until(t time.Time) time.Duration { return time.Duration(stampOf(t) - s) }

// waited reports that there is such a moment, and that it was longer ago.
func (s stamp) waited(now time.Time, longer time.Duration) bool {
	return !s.IsZero() && s.until(now) > longer
}

func (s stamp) since() time.Duration { return time.Duration(stampNow() - s) }
