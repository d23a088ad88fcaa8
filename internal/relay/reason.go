package relay

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// EndReason is the cause of a flow's end.
type EndReason string

// The causes of a flow's end.
const (
	EndClean           EndReason = "end"               // both peers ended their streams
	EndClientReset     EndReason = "client-reset"      // the client reset or its leg failed
	EndTargetReset     EndReason = "target-reset"      // the target reset or its leg failed
	EndClientTimeout   EndReason = "client-timeout"    // keepalive or user timeout of the client leg
	EndTargetTimeout   EndReason = "target-timeout"    // keepalive or user timeout of the target leg
	EndTargetRefused   EndReason = "target-refused"    // no target accepted
	EndTargetUnreached EndReason = "target-unreached"  // no route, or no answer within the connect timeout
	EndTargetUnknown   EndReason = "target-unresolved" // the target's name has no address
	EndLoop            EndReason = "loop"              // the target is a listener of the same tunnel
	EndNoHop           EndReason = "no-hop"            // every hop was taken out of service
	EndNoLocalPort     EndReason = "no-local-port"     // ephemeral ports towards the target are used up
	EndNoResources     EndReason = "no-resources"      // the system is out of descriptors or memory
	EndIdle            EndReason = "idle-timeout"
	EndHalfClosed      EndReason = "half-close-timeout"
	EndStalled         EndReason = "stalled"       // it held memory without delivering any while memory was short
	EndDrain           EndReason = "drain-timeout" // the relay stopped before the flow had ended
	EndCheck           EndReason = "check"         // it was an integrity check
	EndDenied          EndReason = "denied"        // source not allowed
	EndFlowLimit       EndReason = "flow-limit"
	EndRateLimit       EndReason = "rate-limit"
	EndShed            EndReason = "shed" // a limit on the process's or the host's resources is reached
	EndBadProxyHeader  EndReason = "bad-proxy-header"
)

// endReasons lists all reasons in alphabetical order.
var endReasons = func() []EndReason {
	all := []EndReason{EndClean, EndClientReset, EndTargetReset, EndClientTimeout, EndTargetTimeout, EndTargetRefused,
		EndTargetUnreached, EndTargetUnknown, EndLoop, EndNoHop, EndNoLocalPort, EndNoResources, EndIdle, EndHalfClosed, EndStalled, EndDrain,
		EndCheck, EndDenied, EndFlowLimit, EndRateLimit, EndShed, EndBadProxyHeader}
	slices.Sort(all)
	return all
}()

// EndedBy returns the party that caused the end: client, target, both or relay.
func (r EndReason) EndedBy() string {
	switch r {
	case EndClean:
		return "both"
	case EndClientReset, EndClientTimeout:
		return "client"
	case EndTargetReset, EndTargetTimeout, EndTargetRefused, EndTargetUnreached, EndTargetUnknown:
		return "target"
	}
	return "relay"
}

// Ended counts flows that ended for the same reason.
type Ended struct {
	Reason  EndReason `json:"reason"`
	EndedBy string    `json:"ended_by"`
	Flows   int64     `json:"flows"`
}

const maxReasons = 32

// endCounts counts the ended flows of a tunnel by the index of their reason.
type endCounts [maxReasons]atomic.Int64

func (c *endCounts) add(r EndReason) {
	if i, ok := slices.BinarySearch(endReasons, r); ok {
		c[i].Add(1)
	}
}

// list returns the reasons with at least one flow.
func (c *endCounts) list() []Ended {
	all := []Ended{}
	for i, r := range endReasons {
		if n := c[i].Load(); n > 0 {
			all = append(all, Ended{r, r.EndedBy(), n})
		}
	}
	return all
}

// errnoCounts counts errors by number; they are rare.
type errnoCounts struct {
	mu     sync.Mutex
	counts map[unix.Errno]int64
}

func (c *errnoCounts) add(errno unix.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[unix.Errno]int64{}
	}
	c.counts[errno]++
}

func (c *errnoCounts) byName() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	named := make(map[string]int64, len(c.counts))
	for errno, n := range c.counts {
		name := unix.ErrnoName(errno)
		if name == "" {
			name = "unknown"
		}
		named[name] += n
	}
	return named
}
