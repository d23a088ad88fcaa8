package daemon

import (
	"context"

	"longhaul/internal/carry/relay"
)

// relayTunnels is the part of the relay's tunnels, as the parts before have made them.
type relayTunnels struct {
	relay  *relay.Relay
	keeper *hostKeeper
}

func (t relayTunnels) Prepare(_ context.Context, p *plan) (Change, error) {
	prepared, err := t.relay.Prepare(p.tunnels)
	if err != nil {
		return nil, err
	}
	return &tunnelsChange{prepared, t, int64(p.MemoryLimit)}, nil
}

// tunnelsChange is an attempt: the kernel may have no room for event loops or listeners.
type tunnelsChange struct {
	*relay.Change
	to               relayTunnels
	memoryLimitBytes int64
}

func (c *tunnelsChange) Try() error {
	err := c.Change.Commit()
	if err != nil {
		c.to.keeper.lookSoon() // it may not have got its former addresses back
	}
	return err
}

func (c *tunnelsChange) Commit() { c.to.relay.SetMemoryLimit(c.memoryLimitBytes) }
