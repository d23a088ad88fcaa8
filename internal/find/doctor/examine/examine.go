// Package examine makes the observations that [longhaul/internal/find/doctor] judges,
// and applies the remedies that it proposes.
//
// [Examiner.Watch] samples existing connections, [Examiner.Transfer] opens one to a
// measure server, and [Examiner.Capture] reads a file. All but the last probe the
// packet sizes that the path carries, and can test its capacity.
package examine

import (
	"context"
	"time"

	"longhaul/internal/find/measure"
)

// Examiner observes connections.
type Examiner struct {
	During    time.Duration // of watching, or of a transfer
	SkipProbe bool          // send no packets to probe the path's sizes

	// Test has Watch test the path's capacity with a measure server at the far
	// end, on TestPort.
	Test     bool
	TestPort uint16
	Token    measure.Token // for measure servers that need one
	Version  string        // of this program, for measure servers

	// Pairs returns the paired tunnels of this host's relays; nil: no relay has any.
	Pairs func(context.Context) []PairedTunnel

	// Progress receives a message, without a full stop, as each long step begins.
	Progress func(format string, args ...any)
	// Note receives errors that leave the observation incomplete.
	Note func(error)
}
