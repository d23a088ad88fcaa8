package transport

import (
	"fmt"
	"time"
)

// Lack is a setting that a leg should have, but lacks for missing privilege or
// a missing kernel feature.
type Lack struct {
	What   string `json:"what"`   // a noun phrase: "send buffer 45 MiB for 1 Gb/s at 63 ms"
	Remedy string `json:"remedy"` // a command or another action
}

// formatRTT formats a round-trip time in milliseconds: "63 ms".
func formatRTT(d time.Duration) string {
	return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
}
