package pair

import "sync"

// cond is a sync.Cond that takes memory only once somebody waits.
type cond struct{ c *sync.Cond }

// wait is Wait of a condition of l, which the caller holds; so does whoever calls
// broadcast.
func (c *cond) wait(l sync.Locker) {
	if c.c == nil {
		c.c = sync.NewCond(l)
	}
	c.c.Wait()
}

func (c *cond) broadcast() {
	if c.c != nil {
		c.c.Broadcast()
	}
}
