package units

import (
	"math"
	"strconv"
	"time"
)

// Seconds is a time that JSON has in seconds.
type Seconds time.Duration

// Duration is the same time.
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// Seconds is the same time as a number.
func (s Seconds) Seconds() float64 { return time.Duration(s).Seconds() }

// String is the time as [time.Duration] writes it.
func (s Seconds) String() string { return time.Duration(s).String() }

// MarshalJSON writes a number of seconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, s.Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON reads a number of seconds, to the nanosecond. null leaves the
// value as it is.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return err
	}
	*s = Seconds(math.Round(v * float64(time.Second)))
	return nil
}
