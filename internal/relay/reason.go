package relay

// EndReason says why a flow ended, and by whom.
type EndReason string

// The reasons for which flows end.
const (
	EndClean           EndReason = "end"               // both peers ended their streams
	EndClientReset     EndReason = "client-reset"      // the client reset or its leg failed
	EndTargetReset     EndReason = "target-reset"      // the target reset or its leg failed
	EndClientTimeout   EndReason = "client-timeout"    // keepalive or user timeout of the client leg
	EndTargetTimeout   EndReason = "target-timeout"    // keepalive or user timeout of the target leg
	EndTargetRefused   EndReason = "target-refused"    // no target accepted
	EndTargetUnreached EndReason = "target-unreached"  // no route, or no answer within the connect timeout
	EndTargetUnknown   EndReason = "target-unresolved" // the target's name has no address
	EndNoHop           EndReason = "no-hop"            // every hop was taken out of service
	EndNoLocalPort     EndReason = "no-local-port"     // ephemeral ports towards the target are used up
	EndNoResources     EndReason = "no-resources"      // the system is out of descriptors or memory
	EndIdle            EndReason = "idle-timeout"
	EndHalfClosed      EndReason = "half-close-timeout"
	EndDrain           EndReason = "drain-timeout" // the relay stopped before the flow had ended
	EndCheck           EndReason = "check"         // it was an integrity check
	EndDenied          EndReason = "denied"        // source not allowed
	EndFlowLimit       EndReason = "flow-limit"
	EndRateLimit       EndReason = "rate-limit"
	EndShed            EndReason = "shed" // a limit on the process's or the host's resources is reached
	EndBadProxyHeader  EndReason = "bad-proxy-header"
)
