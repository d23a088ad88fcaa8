package daemon

import (
	"context"

	"longhaul/internal/carry/relay"
)

// relayTunnels is the part of the relay's tunnels, as the parts before have made them.
type relayTunnels struct {
	relay *relay.Relay
}

func (t relayTunnels) Prepare(_ context.Context, p *plan) (Change, error) {
	prepared, err := t.relay.Prepare(p.tunnels)
	if err != nil {
		return nil, err
	}
	return &tunnelsChange{prepared, t, int64(p.MemoryLimit)}, nil
}

// tunnelsChange is an attempt: the kernel may have no room for event loops or listeners. What the relay does
// not get back of its former addresses, the keeper looks at again.
type tunnelsChange struct {
	*relay.Change
	to               relayTunnels
	memoryLimitBytes int64
}

func (c *tunnelsChange) Try() error { return c.Change.Commit() }

func (c *tunnelsChange) Commit() { c.to.relay.SetMemoryLimit(c.memoryLimitBytes) }
