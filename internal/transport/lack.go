package transport

import (
	"fmt"
	"time"
)

// Lack is something a leg should have and cannot get, for want of privilege
// or of a kernel feature.
type Lack struct {
	What   string `json:"what"`   // a noun phrase: "send buffer 45 MiB for 1 Gb/s at 63 ms"
	Remedy string `json:"remedy"` // a command to run, or what to change
}

// formatRTT writes a round-trip time in milliseconds: "63 ms".
func formatRTT(d time.Duration) string {
	return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
}
