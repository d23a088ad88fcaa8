// Package linkflag parses the flags that describe an emulated link, with one wording
// for mistakes.
package linkflag

import (
	"fmt"
	"strconv"

	"longhaul/internal/lab/link"
)

// LossPlace parses before or after.
func LossPlace(place *link.LossPlace) func(string) error {
	return func(s string) error {
		switch s {
		case "before":
			*place = link.LossBefore
		case "after":
			*place = link.LossAfter
		default:
			return fmt.Errorf("invalid place %q: choose before or after", s)
		}
		return nil
	}
}

// CoDel parses the queue management: codel or none.
func CoDel(codel *link.CoDel) func(string) error {
	return func(s string) error {
		switch s {
		case "none":
			*codel = link.CoDel{}
		case "codel":
			*codel = link.DefaultCoDel()
		default:
			return fmt.Errorf("invalid queue management %q: choose codel or none", s)
		}
		return nil
	}
}

// LossBurst parses the mean length of a loss burst in packets.
func LossBurst(packets *float64) func(string) error {
	return func(s string) error {
		value, err := strconv.ParseFloat(s, 64)
		if err != nil || !(value >= 1 && value <= 1e6) {
			return fmt.Errorf("invalid burst length %q: choose a number from 1", s)
		}
		*packets = value
		return nil
	}
}

// MTU parses an MTU in bytes. The minimum is IPv4's (RFC 791), the maximum the largest
// IP packet.
func MTU(mtu *int) func(string) error {
	return func(s string) error {
		value, err := strconv.Atoi(s)
		if err != nil || value < 68 || value > 65535 {
			return fmt.Errorf("invalid MTU %q: choose a number of bytes from 68 to 65535", s)
		}
		*mtu = value
		return nil
	}
}
