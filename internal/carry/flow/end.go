package flow

import "slices"

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
	EndDenied          EndReason = "denied"        // source or target not allowed
	EndFlowLimit       EndReason = "flow-limit"
	EndRateLimit       EndReason = "rate-limit"
	EndShed            EndReason = "shed" // a limit on the process's or the host's resources is reached
	EndBadProxyHeader  EndReason = "bad-proxy-header"

	// Of flows that a pair of relays carries.
	EndWANLost       EndReason = "wan-lost"       // no connection between the relays for the time of resume
	EndPeerRefused   EndReason = "peer-refused"   // the other relay does not run: its host refuses connections
	EndPeerRestarted EndReason = "peer-restarted" // the other relay lost the flow with its process
	EndDamaged       EndReason = "damaged"        // length or checksum of the stream were wrong at its end
	EndPairDown      EndReason = "pair-down"      // no session with the other relay when the client came
)

// EndReasons lists all reasons in alphabetical order.
var EndReasons = func() []EndReason {
	all := []EndReason{EndClean, EndClientReset, EndTargetReset, EndClientTimeout, EndTargetTimeout, EndTargetRefused,
		EndTargetUnreached, EndTargetUnknown, EndLoop, EndNoHop, EndNoLocalPort, EndNoResources, EndIdle, EndHalfClosed, EndStalled, EndDrain,
		EndCheck, EndDenied, EndFlowLimit, EndRateLimit, EndShed, EndBadProxyHeader,
		EndWANLost, EndPeerRefused, EndPeerRestarted, EndDamaged, EndPairDown}
	slices.Sort(all)
	return all
}()

// EndedByPeer is the party of an end that only the other relay of a pair has seen: its
// reason and error are that relay's word.
const EndedByPeer = "peer"

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
	EndedBy string    `json:"ended_by"` // as Record.EndedBy
	Flows   int64     `json:"flows"`
}
