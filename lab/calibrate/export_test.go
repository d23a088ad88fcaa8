package calibrate

import (
	"testing"
	"time"
)

// Shorten has rates be measured for as short as they can be, until the test ends.
// The rows are made as ever; what they say of rates means nothing.
func Shorten(t *testing.T) {
	flood, settle, managed, during := floodTime, tcpSettle, managedSettle, managedDuring
	floodTime, tcpSettle, managedSettle, managedDuring = 100*time.Millisecond, 0, 0, 100*time.Millisecond
	t.Cleanup(func() { floodTime, tcpSettle, managedSettle, managedDuring = flood, settle, managed, during })
}
