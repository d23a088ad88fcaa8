package pair

import (
	"errors"
	"slices"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// codes are the reasons that both relays record, by their code on the wire. A code
// keeps its meaning for ever.
var codes = []flow.EndReason{
	1: flow.EndClientReset, 2: flow.EndTargetReset, 3: flow.EndClientTimeout, 4: flow.EndTargetTimeout,
	5: flow.EndTargetRefused, 6: flow.EndTargetUnreached, 7: flow.EndTargetUnknown, 8: flow.EndLoop,
	9: flow.EndNoHop, 10: flow.EndNoLocalPort, 11: flow.EndNoResources, 12: flow.EndIdle,
	13: flow.EndHalfClosed, 14: flow.EndStalled, 15: flow.EndDrain, 16: flow.EndDenied,
	17: flow.EndFlowLimit, 18: flow.EndRateLimit, 19: flow.EndShed, 20: flow.EndBadProxyHeader,
	21: flow.EndWANLost, 22: flow.EndPeerRestarted, 23: flow.EndDamaged, 24: flow.EndPairDown,
	25: flow.EndPeerRefused,
}

// cause makes a cause for both ends of a reason and an error; err may be nil.
func cause(r flow.EndReason, err error) stream.Cause {
	c := stream.Cause{Code: byte(max(slices.Index(codes, r), 0))}
	if err != nil {
		c.Text = err.Error()
	}
	return c
}

// What the other end of a flow can know is a reason that it may give. Those of pairs are of another one,
// where the flow passes several.
var (
	eitherTells = []flow.EndReason{flow.EndNoLocalPort, flow.EndNoResources, flow.EndIdle, flow.EndHalfClosed,
		flow.EndStalled, flow.EndDrain, flow.EndDenied, flow.EndFlowLimit, flow.EndRateLimit, flow.EndShed,
		flow.EndWANLost, flow.EndDamaged, flow.EndPairDown, flow.EndPeerRefused, flow.EndPeerRestarted}
	nearTells = append(slices.Clone(eitherTells), flow.EndClientReset, flow.EndClientTimeout, flow.EndBadProxyHeader)
	farTells  = append(slices.Clone(eitherTells), flow.EndTargetReset, flow.EndTargetTimeout, flow.EndTargetRefused,
		flow.EndTargetUnreached, flow.EndTargetUnknown, flow.EndLoop, flow.EndNoHop)
)

// told is the cause that a message of the other end gives to a near or a far flow. A
// reason that this end cannot know, or of a newer peer, counts as wan-lost.
func told(near bool, m wire.Message) stream.Cause {
	may := nearTells
	if near {
		may = farTells
	}
	r, _ := reasonOf(stream.Cause{Code: m.Reason})
	if !slices.Contains(may, r) {
		r = flow.EndWANLost
	}
	c := cause(r, nil)
	c.Text = m.Text
	return c
}

// reasonOf is the reason of a cause; of a code of a newer peer, wan-lost.
func reasonOf(c stream.Cause) (flow.EndReason, error) {
	r := flow.EndWANLost
	if c.Code > 0 && int(c.Code) < len(codes) {
		r = codes[c.Code]
	}
	if c.Text == "" {
		return r, nil
	}
	return r, errors.New(c.Text)
}
