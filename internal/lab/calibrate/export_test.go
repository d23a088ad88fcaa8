package calibrate

import (
	"testing"
	"time"
)

// Shorten has rates be measured for as short as they can be, until the test ends.
// The rows are made as ever; what they say of rates means nothing.
func Shorten(t *testing.T) {
	flood, settle := floodTime, tcpSettle
	floodTime, tcpSettle = 100*time.Millisecond, 0
	t.Cleanup(func() { floodTime, tcpSettle = flood, settle })
}
