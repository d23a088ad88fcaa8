package transport

import (
	"fmt"
	"strconv"
	"time"
)

// Lack is something a leg should have and cannot get, for want of privilege
// or of a kernel feature.
type Lack struct {
	What   string // a noun phrase: "send buffer 45 MiB for 1 Gb/s at 63 ms"
	Remedy string // a command to run, or what to change
}

// formatBytes writes a size as operators do: "24 MiB".
func formatBytes(n int) string {
	switch {
	case n >= 1<<20:
		return trimFloat(float64(n)/(1<<20)) + " MiB"
	case n >= 1<<10:
		return trimFloat(float64(n)/(1<<10)) + " KiB"
	}
	return fmt.Sprintf("%d B", n)
}

// formatRate writes bits per second: "1 Gb/s".
func formatRate(bps int64) string {
	switch {
	case bps >= 1e9:
		return trimFloat(float64(bps)/1e9) + " Gb/s"
	case bps >= 1e6:
		return trimFloat(float64(bps)/1e6) + " Mb/s"
	case bps >= 1e3:
		return trimFloat(float64(bps)/1e3) + " kb/s"
	}
	return fmt.Sprintf("%d b/s", bps)
}

// formatRTT writes a round-trip time in milliseconds: "63 ms".
func formatRTT(d time.Duration) string {
	return trimFloat(float64(d)/float64(time.Millisecond)) + " ms"
}

// trimFloat keeps one decimal below ten, and none above.
func trimFloat(f float64) string {
	decimals := 0
	if f < 10 {
		decimals = 1
	}
	s := strconv.FormatFloat(f, 'f', decimals, 64)
	if decimals == 1 && s[len(s)-2:] == ".0" {
		s = s[:len(s)-2]
	}
	return s
}
